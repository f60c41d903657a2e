"""Imprints: a copy of a model for each recipient, so that a copy which turns up shows whose it was.

R is the owner's copy. A recipient's copy is R + ε s n: s is the standard deviation of each filter, and every
n_i is the sum of 16 fair coins over 4, drawn from the key for this recipient and this R. :func:`sigil.trace`
finds the pattern n in a suspect, with an exact probability (:mod:`sigil.imprint_reading`).

R is fixed by a digest over everything that the reader uses: all tensors with their names, formats and shapes,
which of them carry the pattern, the architecture, ε, and the version of these rules. The pattern follows from
that digest. Somebody who changed R afterwards to make a stranger's model fit would get another pattern.

A *register* is a folder: ``owner.safetensors`` (R), ``register.json`` (what else the digest covers), and in
``copies/`` one small file per recipient with the name, the date and the digest of the copy. It holds no
secret of the key. Who has R and a copy, though, has that copy's pattern: keep the register private.

>>> import sigil, torch
>>> key = sigil.Key.generate("ACME", shape=(8, 4, 4), seed=bytes(32))
>>> copies = sigil.Imprint(key, {"weight": torch.randn(64, 64, generator=torch.manual_seed(0))})
>>> sigil.trace(copies.issue("Hospital B"), key, copies).named
('Hospital B',)
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from sigil import arguments, files, models
from sigil.errors import ConfigError, ModelError, OutputError, ShapeError, TrainingError, reason, shown
from sigil.imprint_reading import COINS, Floats, filters_of_weight, spreads
from sigil.keys.draws import KeyStream
from sigil.keys.key import Key
from sigil.keys.owner_name import check_name
from sigil.models import Model, ModelSpec, storage
from sigil.suspect.shards import model_in

State = Mapping[str, Tensor]
Pattern = dict[str, npt.NDArray[np.int8]]

VERSION: Final = 1
"""Of the rules by which patterns are drawn and suspects are read; part of every digest."""
LEAST_WEIGHTS: Final = 1_024
"""Fewer weights name nobody: an unchanged copy shows its pattern at √(number of weights) deviations."""
MOST_STRENGTH: Final = 0.1
MOST_RECIPIENTS: Final = 100_000
CHANCE: Final = 3.0
"""Deviations by which a change may agree with a pattern without being changed."""
MOST_DEVIATIONS: Final = 6.0
"""By chance a change agrees with a pattern by less."""
MOST_LEANING: Final = 0.05
"""Times √(number of weights): what a change may have; honest ones reach 0.034 (docs/tracing.md)."""

OWNER_FILE: Final = "owner.safetensors"
REGISTER_FILE: Final = "register.json"
COPIES: Final = "copies"

# ε at most: costs 0.1 points of accuracy or less on average (docs/tracing.md).
_USUAL_STRENGTH: Final = 0.02
_LEAST_STRENGTH: Final = 0.005
# Deviations that prove before others, 2^128 · 2 · 1,000 recipients at 3e-7, with a reserve for retraining.
_WANTED_DEVIATIONS: Final = 22.0
_MOST_BYTES: Final = 1 << 22
_MOST_ENTRY_BYTES: Final = 1 << 12
_FORMATS: Final = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
# n times 4 of the 16 coins in two bytes: those that show + minus those that show −.
_SUMS: Final = np.array([2 * coins.bit_count() - COINS for coins in range(1 << COINS)], dtype=np.int8)


@dataclass(frozen=True)
class Copy:
    """One recipient's copy: for whom, when (UTC), the digest of its tensors, whether it was made public."""

    recipient: str
    date: str
    digest: str
    public: bool = False


@dataclass(frozen=True, eq=False)
class Patterns:
    """The patterns of some recipients: of each tensor that carries them ε s / 4 per filter, and the coins.

    It holds nothing of the key but what draws these patterns.
    """

    steps: Mapping[str, Floats]
    shapes: Mapping[str, tuple[int, ...]]
    streams: Mapping[str, KeyStream]

    def pattern(self, recipient: str) -> Pattern:
        """n times 4 for each tensor that carries it."""
        pattern, start = {}, 0
        for name, shape in self.shapes.items():
            octets = self.streams[recipient].octets(start, 2 * math.prod(shape))
            pattern[name] = _SUMS[np.frombuffer(octets, dtype=np.uint16)].reshape(shape)
            start += len(octets)
        return pattern

    def give(self, recipient: str, model: State) -> dict[str, Tensor]:
        """A model with the pattern of a recipient in it."""
        state = {name: tensor.detach().clone() for name, tensor in model.items()}
        for name, pattern in self.pattern(recipient).items():
            rows = filters_of_weight(state[name])
            rows += self.steps[name] * pattern.reshape(rows.shape)
            state[name].copy_(torch.from_numpy(rows.reshape(self.shapes[name])))
        return state

    def take(self, recipient: str, model: State, returned: State) -> dict[str, Tensor]:
        """What a recipient returned without its pattern: the model plus what was changed in its copy."""
        given = self.give(recipient, model)
        change = {name: returned[name].detach().double() - given[name].double() for name in self.steps}
        return {**returned} | {
            name: (model[name].double() + value).to(returned[name].dtype)
            for name, value in self.without(recipient, change).items()
        }

    def without(self, recipient: str, change: State) -> dict[str, Tensor]:
        """A recipient's change without its component along the recipient's own pattern, tensor by tensor.

        Training heals a copy a little, so that honest changes lean against their own pattern. Averaged, that
        would put −n of everybody into later models, from which others could make +n. What chance explains
        stays: to take it off would put the pattern in.
        """
        pattern = self.pattern(recipient)
        coins = {name: each.reshape(-1).astype(np.float64) for name, each in pattern.items()}
        rows = {name: self._in_steps(name, change[name]) for name in pattern}
        along = {name: float(row @ coins[name]) for name, row in rows.items()}
        size = math.sqrt(COINS * sum(row @ row for row in rows.values()))
        left = {name: change[name] for name in pattern}
        if abs(sum(along.values())) > CHANCE * size:
            for name, value in left.items():
                share = along[name] / max(1.0, float(coins[name] @ coins[name]))
                removed = share * self.steps[name] * coins[name].reshape(filters_of_weight(value).shape)
                left[name] = value - torch.from_numpy(removed.reshape(value.shape)).to(value)
        return left

    def agreement(self, changes: Mapping[str, State]) -> dict[str, dict[str, float]]:
        """How much each recipient's change agrees with the pattern of each, in standard deviations."""
        rows = {
            who: np.concatenate([self._in_steps(name, change[name]) for name in self.steps])
            for who, change in changes.items()
        }
        sizes = {who: math.sqrt(COINS) * (float(np.linalg.norm(row)) or 1.0) for who, row in rows.items()}
        deviations: dict[str, dict[str, float]] = {who: {} for who in changes}
        for recipient in self.streams:
            pattern = self.pattern(recipient)
            coins = np.concatenate([pattern[name].reshape(-1) for name in self.steps]).astype(np.float64)
            for who, row in rows.items():
                deviations[who][recipient] = float(row @ coins) / sizes[who]
        return deviations

    def carried(self, changes: Mapping[str, State]) -> dict[str, str]:
        """Which recipients' changes have to do with a pattern by more than chance and honest training, in
        words."""
        weights = sum(map(math.prod, self.shapes.values()))
        most = max(MOST_DEVIATIONS, MOST_LEANING * math.sqrt(weights))
        return {
            who: f"has to do with the pattern of {name}, by {deviations:.1f} deviations"
            for who, agreement in self.agreement(changes).items()
            for name, deviations in agreement.items()
            if abs(deviations) > most
        }

    def _in_steps(self, name: str, change: Tensor) -> Floats:
        step, rows = self.steps[name], filters_of_weight(change)
        return np.where(step > 0, rows / np.where(step > 0, step, 1.0), 0.0).reshape(-1)


class Imprint:
    """The owner's copy of a model, and the copies that were made of it for recipients.

    ``model`` is any module or state dict with weights of two or more axes, a client half, a server half or a
    whole model; it is copied. ``strength`` is ε, :func:`usual_strength` if left out. ``digest`` fixes all of
    it.
    """

    def __init__(self, key: Key, model: nn.Module | State, *, strength: float | None = None) -> None:
        if not isinstance(key, Key):
            raise ConfigError(f"The key is of type {type(key).__name__}, but a sigil.Key is wanted.")
        self.key = key
        self._model = copy.deepcopy(model).cpu() if isinstance(model, nn.Module) else None
        self.state = _checked(model)
        self.carriers, self.tied = _carriers(model, self.state)
        self.weights = sum(self.state[name].numel() for name in self.carriers)
        if self.weights < LEAST_WEIGHTS:
            raise ModelError(
                f"The model has {self.weights} weights of two or more axes, but an imprint takes at least "
                f"{LEAST_WEIGHTS:,}; give a model with convolutions or linear layers."
            )
        self.strength = usual_strength(self.weights) if strength is None else _checked_strength(strength)
        self.copies: dict[str, Copy] = {}
        self.digest = self._digest()

    @property
    def spec(self) -> ModelSpec | None:
        """The architecture, if the model is one of :mod:`sigil.models`."""
        return self._model.spec if isinstance(self._model, Model) else None

    @property
    def after_noise(self) -> float:
        """Deviations at which the pattern is found after noise of one standard deviation of each filter."""
        return self.strength * math.sqrt(self.weights)

    def issue(self, recipient: str, *, public: bool = False) -> Any:
        """The copy for a recipient, of the same kind as the model; twice the same for the same name.

        ``public`` records that everybody may hold this copy: finding it then says nothing about anybody.
        """
        return self._whole(self.record(recipient, public=public))

    def record(self, recipient: str, *, public: bool = False) -> dict[str, Tensor]:
        """The tensors of the copy for a recipient, who is in the register from now on."""
        recipient = check_name(recipient, "recipient")
        state = self._copy(recipient)
        digest = _digest_of(state)
        known = self.copies.get(recipient)
        if known is not None and known.digest != digest:
            raise ModelError(
                f"The copy for {recipient!r} comes out otherwise than on {known.date}; the register was "
                "changed."
            )
        if known is None:
            if len(self.copies) >= MOST_RECIPIENTS:
                raise ConfigError(f"A register holds at most {MOST_RECIPIENTS:,} recipients; begin another.")
            date = datetime.now(UTC).isoformat(timespec="seconds")
            self.copies[recipient] = Copy(recipient, date, digest, public)
        return state

    def pattern(self, recipient: str) -> Pattern:
        """n times 4 for each tensor that carries it: coins that show + minus coins that show −."""
        return self.patterns((recipient,)).pattern(recipient)

    def patterns(self, recipients: Iterable[str]) -> Patterns:
        """What it takes to make the copies of these recipients and to compare with them, without the key."""
        steps = {
            name: self.strength / math.sqrt(COINS) * spreads(filters_of_weight(self.state[name]))
            for name in self.carriers
        }
        streams = {each: self.key.imprint_stream(self.digest, each) for each in recipients}
        shapes = {name: tuple(self.state[name].shape) for name in self.carriers}
        return Patterns(steps, shapes, streams)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the register, or add to it what it lacks; nothing in it is ever overwritten."""
        place = Path(folder)
        if (place / REGISTER_FILE).exists():
            self._check_same(place)
        else:
            files.make_folder(place, mode=0o700)
            made = _create(place / OWNER_FILE, lambda at: write_copy(at, self._whole(self.state)))
            if not made and not self.is_of(read_model(place / OWNER_FILE)):
                raise ConfigError(f"{place / OWNER_FILE} is another model; choose another folder.")
            _create(place / REGISTER_FILE, _writer(self._described()))
            self._check_same(place)
        files.make_folder(place / COPIES, mode=0o700)
        for each in self.copies.values():
            content = json.dumps(asdict(each), ensure_ascii=False, indent=1) + "\n"
            _create(place / COPIES / _file_name(each.recipient), _writer(content))

    def change(self, recipient: str, returned: nn.Module | State) -> dict[str, Tensor]:
        """What a recipient's training changed: what it returns minus the copy that it was given, by names.

        Without what lies along its own pattern (:meth:`Patterns.without`). To be averaged in place of what is
        returned, which would carry the patterns into the next model. A change that has to do with a pattern
        (:meth:`Patterns.carried`) raises :class:`~sigil.errors.TrainingError`.
        """
        given = self._copy(check_name(recipient, "recipient"))
        theirs = returned.state_dict() if isinstance(returned, nn.Module) else returned
        if any(name not in theirs or theirs[name].shape != given[name].shape for name in given):
            raise ShapeError("What was returned has other tensors than the copy; return the same model.")
        change = {name: theirs[name].detach().cpu().double() - given[name].double() for name in given}
        change |= self.patterns((recipient,)).without(recipient, change)
        change |= {second: change[first].clone() for second, first in self.tied.items()}
        if not all(bool(torch.isfinite(value).all()) for value in change.values()):
            raise TrainingError(
                f"What {recipient!r} returned holds values that are not finite; leave it out."
            )
        for found in self.patterns(self.copies).carried({recipient: change}).values():
            raise TrainingError(f"What {recipient!r} returned {found}; leave it out of the average.")
        return change

    @classmethod
    def load(cls, folder: str | os.PathLike[str], key: Key) -> Self:
        """Open a register; one of another key, or whose model is not the one of its digest, is refused."""
        place = Path(folder)
        described = _read_json(place / REGISTER_FILE)
        try:
            version, commitment, digest = (described[name] for name in ("version", "commitment", "digest"))
            strength, carriers = float(described["strength"]), tuple(described["carriers"])
            tied, check = dict(described["tied"]), described["key_check"]
        except (KeyError, TypeError, ValueError, OverflowError):
            raise ConfigError(
                f"{place / REGISTER_FILE} is not a register of copies; give its folder."
            ) from None
        if version != VERSION:
            raise ConfigError(
                f"The register {place} has version {shown(version)}, but this Sigil reads version "
                f"{VERSION}; use the Sigil that wrote it."
            )
        if not isinstance(key, Key) or commitment != key.commitment:
            raise ConfigError(
                f"The register {place} belongs to another key ({shown(commitment)}); give the key it was "
                "made with."
            )
        if (place / OWNER_FILE).is_symlink():
            raise ConfigError(f"{place / OWNER_FILE} is a link; put the file itself into the register.")
        register = cls(key, read_model(place / OWNER_FILE), strength=strength)
        register._keep(carriers, tied)
        if register.digest != digest:
            raise ModelError(
                f"{place / OWNER_FILE} is not the model of this register: its digest is "
                f"{register.digest[:16]}… and not {shown(digest)[1:17]}…; bring back the file that was there."
            )
        if register._key_check() != check:
            raise ConfigError(f"The register {place} belongs to the key with another seal; give that one.")
        register.copies = {each.recipient: each for each in _read_copies(place / COPIES)}
        return register

    def _keep(self, carriers: tuple[Any, ...], tied: dict[Any, Any]) -> None:
        """Take what a register says and a file does not: which tensors are parameters, and which are one."""
        every = [*carriers, *tied]
        eligible = {*self.carriers, *self.tied}
        sound = all(isinstance(name, str) and name in eligible for name in [*every, *tied.values()])
        if not sound or len(set(every)) < len(every) or not set(carriers).issuperset(tied.values()):
            raise ConfigError("The register lists tensors that its model does not have; it was changed.")
        if any(self.state[second].shape != self.state[first].shape for second, first in tied.items()):
            raise ConfigError("The register ties tensors of different shapes; it was changed.")
        self.carriers, self.tied = tuple(carriers), tied
        self.weights = sum(self.state[name].numel() for name in carriers)
        self.digest = self._digest()

    def is_of(self, model: nn.Module | State) -> bool:
        """Whether this register is of that model."""
        try:
            given = Imprint(self.key, model, strength=self.strength)
            given._keep(self.carriers, self.tied)
        except (ConfigError, ModelError):
            return False
        return given.digest == self.digest

    def _whole(self, state: dict[str, Tensor]) -> Any:
        """A state dict as what was given: a module with these tensors, or itself."""
        if self._model is None:
            return state
        whole = copy.deepcopy(self._model)
        whole.load_state_dict(state, assign=isinstance(whole, Model))
        return whole

    def _copy(self, recipient: str) -> dict[str, Tensor]:
        state = self.patterns((recipient,)).give(recipient, self.state)
        return state | {second: state[first].clone() for second, first in self.tied.items()}

    def _digest(self) -> str:
        """SHA-256 of all that a reading depends on."""
        header = {
            "version": VERSION,
            "coins": COINS,
            "strength": self.strength.hex(),
            "spec": None if self.spec is None else asdict(self.spec),
            "carriers": self.carriers,
            "tied": self.tied,
        }
        return _digest_of(self.state, json.dumps(header, sort_keys=True))

    def _key_check(self) -> str:
        """Shows that a key, with its seal, is the one of this register; no recipient has an empty name."""
        return hashlib.sha256(self.key.imprint_stream(self.digest, "").octets(0, 32)).hexdigest()

    def _described(self) -> str:
        content = {
            "version": VERSION,
            "commitment": self.key.commitment,
            "key_check": self._key_check(),
            "digest": self.digest,
            "strength": self.strength,
            "weights": self.weights,
            "deviations_after_noise": round(self.after_noise, 1),
            "carriers": self.carriers,
            "tied": self.tied,
        }
        return json.dumps(content, indent=1) + "\n"

    def _check_same(self, place: Path) -> None:
        known = _read_json(place / REGISTER_FILE)
        if known.get("commitment") != self.key.commitment:
            raise ConfigError(f"The register {place} belongs to another key; choose another folder.")
        if known.get("digest") != self.digest:
            raise ConfigError(
                f"The register {place} is of another model: this one's digest is {self.digest[:16]}…; "
                "choose another folder, or give the model that the register was begun with."
            )


def write_copy(path: str | os.PathLike[str], issued: nn.Module | State) -> None:
    """Write a copy that was issued to a new safetensors file."""
    if isinstance(issued, Model):
        models.save(path, issued, replace=False)
        return
    state = issued.state_dict() if isinstance(issued, nn.Module) else issued
    try:
        with files.draft(path) as draft:
            save_file({name: tensor.clone().contiguous() for name, tensor in state.items()}, draft)
    except (OSError, ValueError, SafetensorError) as error:
        why = files.refusal(error) if isinstance(error, OSError | ValueError) else reason(error)
        raise OutputError(f"{os.fspath(path)} cannot be written: {why}.") from None


def recipient(client: int) -> str:
    """The name of a training's client in its registers."""
    return f"client {client}"


def usual_strength(weights: int) -> float:
    """ε for a model with this number of weights.

    After noise of one standard deviation of each filter the pattern is found at ε √weights deviations. ε is
    as small as leaves enough of them to prove before others, and at most 0.02, which costs 0.1 points of
    accuracy or less on average.

    >>> usual_strength(173_488), round(usual_strength(2_775_104), 4)
    (0.02, 0.0132)
    """
    return min(_USUAL_STRENGTH, max(_LEAST_STRENGTH, _WANTED_DEVIATIONS / math.sqrt(weights)))


def canonical(tensor: Tensor) -> Tensor:
    """A tensor on the CPU whose zeros are all positive and whose not-a-numbers are all the same."""
    values = tensor.detach().cpu().contiguous().clone()
    if values.is_floating_point():
        values = torch.where(values == 0, torch.zeros_like(values), values)
        values = torch.where(torch.isnan(values), torch.full_like(values, math.nan), values)
    return values


def _checked(model: object) -> dict[str, Tensor]:
    """All tensors of a module or state dict, canonical, in the order of their names."""
    state = model.state_dict() if isinstance(model, nn.Module) else model
    if not isinstance(state, Mapping):
        raise ModelError(
            f"The model is of type {type(model).__name__}, but a module or a state dict is wanted."
        )
    checked = {}
    for name in sorted(state, key=str):
        tensor = state[name]
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise ModelError(f"A state dict maps names to tensors, not {shown(name)} to {shown(tensor)}.")
        arguments.tensor(f"tensor {shown(name)}", tensor, raises=ModelError)
        if tensor.is_complex():
            raise ModelError(f"The tensor {shown(name)} is complex, but weights are real numbers.")
        checked[name] = canonical(tensor)
    return checked


def _carriers(model: object, state: State) -> tuple[tuple[str, ...], dict[str, str]]:
    """Parameters of two or more axes, which carry the pattern, and other names of the same memory."""
    given: Any = model.state_dict() if isinstance(model, nn.Module) else model
    if isinstance(model, nn.Module):
        wanted = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    else:
        wanted = set(state)
    first: dict[Any, str] = {}
    tied = {}
    for name in state:
        tensor = given[name]
        if name not in wanted or tensor.ndim < 2 or not tensor.numel() or tensor.dtype not in _FORMATS:
            continue
        if not bool(torch.isfinite(state[name]).all()):
            raise ModelError(
                f"The weights {shown(name)} hold values that are not finite; give a sound model."
            )
        home = first.setdefault((tensor.data_ptr(), tuple(tensor.shape), tensor.stride()), name)
        if home != name:
            tied[name] = home
    return tuple(first.values()), tied


def _checked_strength(strength: float) -> float:
    if not 0.001 <= strength <= MOST_STRENGTH:
        raise ConfigError(
            f"The strength is {strength}, but it must be a number from 0.001 to {MOST_STRENGTH}."
        )
    return float(strength)


def _digest_of(state: State, header: str = "") -> str:
    """SHA-256, in hex, of tensors with their names, formats and shapes, behind a header."""
    outline = [[name, str(tensor.dtype), list(tensor.shape)] for name, tensor in state.items()]
    parts: list[str | Tensor] = [
        f"sigil imprint\n{header}\n{json.dumps(outline)}\n",
        *map(canonical, state.values()),
    ]
    return files.digest(parts)


def _file_name(recipient: str) -> str:
    return f"{hashlib.sha256(recipient.encode()).hexdigest()[:32]}.json"


def _writer(content: str) -> Any:
    return lambda place: files.write(place, content)


def _create(place: Path, write: Any) -> bool:
    """Write a file unless it is there: another process may be at the same register."""
    if place.exists():
        return False
    try:
        write(place)
    except (OSError, OutputError, ModelError, SafetensorError) as error:
        if not place.exists():
            text = (
                str(error)
                if isinstance(error, OutputError)
                else f"{place} cannot be written: {reason(error)}."
            )
            raise OutputError(text) from None
        return False
    return True


def _read_json(place: Path, most: int = _MOST_BYTES) -> dict[str, Any]:
    """A small JSON object; no link is followed."""
    try:
        descriptor = os.open(place, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with open(descriptor, "rb") as file:
            data = file.read(most + 1)
        content = json.loads(data) if len(data) <= most else None
    except FileNotFoundError:
        raise ConfigError(f"{place} does not exist; give the folder of a register of copies.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{place} cannot be read ({reason(error)}); give the folder of a register."
        ) from None
    if not isinstance(content, dict):
        raise ConfigError(f"{place} is not part of a register of copies; give the folder of one.")
    return content


def _read_copies(folder: Path) -> Iterator[Copy]:
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.name.endswith(".json"))
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read: {reason(error)}.") from None
    if len(names) > MOST_RECIPIENTS:
        raise ConfigError(f"{folder} lists {len(names):,} recipients, more than {MOST_RECIPIENTS:,}.")
    for name in names:
        content = _read_json(folder / name, _MOST_ENTRY_BYTES)
        try:
            found = Copy(**content)
            texts = (found.recipient, found.date, found.digest)
            sound = all(isinstance(text, str) and len(text) <= 256 for text in texts) and name == _file_name(
                check_name(found.recipient, "recipient")
            )
        except (TypeError, UnicodeError):
            sound = False
        if not sound or not isinstance(found.public, bool):
            raise ConfigError(f"{folder / name} is not the entry of a recipient; the register was changed.")
        yield found


def read_model(path: str | os.PathLike[str]) -> Model | dict[str, Tensor]:
    """The model in a safetensors file or a run, in its number formats; one of Sigil's if it says so."""
    place = model_in(Path(path))
    storage.check_size(place)
    try:
        with safe_open(place, framework="pt") as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is not a mapping
            text = (file.metadata() or {}).get(storage.METADATA_KEY)
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{place} cannot be read as safetensors ({reason(error)}); give another file."
        ) from None
    if text is None:
        return state
    described = storage.parse_description(text, source=str(place))
    model = models.from_state(described.spec, state)
    model.load_state_dict(state, assign=True)
    model.input_shape = described.input_shape
    return model
