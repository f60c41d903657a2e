"""Whose copy is it: which recipients' copies a suspect contains, each with an exact probability.

A suspect is compared with the owner's copy R in two orders: as its tensors are named, and with its layers,
channels and signs put back in order by R. Neither looks at a pattern. Both are paid for: p is multiplied by
the orders, by the two questions (one recipient; several at once), by the number of recipients in all
registers, and by the tries, of which each model in the suspect's file is one.

Several copies that were averaged are found together: the sum over the best c of m recipients has an exact law
too, and its p is multiplied by the number of subsets of that size and by the number of sizes.

The copies of a training's clients need one thing more. What a client changed is averaged without what lies
along its own pattern; still later models tell a little of every pattern, so that p would not be exact for a
suspect that another client made from several of them. :data:`LEAK` of the deviations that an unchanged copy
has is taken off: attacks put 0.035 there, with all clients' data 0.049 (docs/tracing.md). So p of copies of a
training is a bound under this measured limit, not exact.
"""

from __future__ import annotations

import copy
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor, nn

from sigil import arguments, imprint_reading, models
from sigil.alignment import search_known, search_own, search_unknown
from sigil.errors import AlignmentError, ConfigError, ShapeError, SuspectError, shown
from sigil.imprint import REGISTER_FILE, Imprint
from sigil.keys.key import Key
from sigil.keys.statement import KeyFields
from sigil.models import Model
from sigil.rules import ALPHA, MOST_TRIES
from sigil.statistics import in_words
from sigil.suspect import Suspect, open_weights
from sigil.verdict import envelope
from sigil.verdict.arguments import as_key
from sigil.verdict.report import (
    Count,
    Hash,
    KeyFacts,
    Line,
    Log10,
    Name,
    Record,
    Software,
    Strict,
    harmless,
    moment_text,
)

Level = Literal["owner", "court"]
LEVELS: Final = get_args(Level)

ORDERS: Final = 2
"""As the tensors are named, and put back in order."""
QUESTIONS: Final = 2
"""Each recipient alone, and several at once."""
COURT_LOG2: Final = 128
"""Before others p is multiplied by 2 to this: an owner can try models, names and keys without end."""
MOST_TOGETHER: Final = 32
"""Recipients that are looked for at once."""
MOST_ALIKE: Final = 256
"""Tensors of a suspect that each of the owner's is compared with."""
LEAK: Final = 0.07
"""The share of a client's pattern that others of its training might put into a suspect: it is taken off."""
IMPRINTS: Final = "imprints"
"""Where a run keeps the registers of its clients' copies."""
_BLOCK: Final = "round-"
# Nothing is left to show: the second order, which is paid for, need not be tried.
_ENOUGH: Final = -200.0


class _Chance(Strict):
    """How likely it is by chance that a copy is found, and whether that proves it."""

    log10_p_before: Log10
    log10_p: Log10
    contained: bool
    restored: bool


class Recipient(_Chance):
    """One recipient's copy in a suspect: ``log10_p`` is corrected, ``log10_p_before`` is not.

    ``contained`` says whether the corrected p reaches the level; ``restored``, whether the suspect was put in
    order for it; ``deviations`` is T over its standard deviation; ``public``, whether everybody may hold the
    copy; ``digest`` is that of the register in which the copy is, and ``folder`` the name of its folder.
    """

    name: Name
    deviations: Annotated[float, Field(allow_inf_nan=False)]
    date: Name
    public: bool
    digest: Hash
    folder: Line


class Coalition(_Chance):
    """Recipients whose copies are less likely by chance together than any one alone.

    If ``contained``, the suspect contains the copy of one of them at least: p is that of the group.
    """

    names: tuple[Name, ...]


class Trace(Record):
    """What a trace found: all recipients, likeliest first, and the best coalition of one register if any.

    ``log10_level`` is what a corrected p is compared with; ``weights`` is how many weights were compared in
    the order in which most were. ``registers`` is how many were looked at, ``file`` the suspect's name,
    ``sha256`` its digest and ``at`` where a graph was opened; ``entries`` are the models that it may hold,
    each of which counts as a try, and ``unread`` is how many there was no room for.
    """

    predicate_type: ClassVar = envelope.TRACE_TYPE

    recipients: Annotated[tuple[Recipient, ...], Field(min_length=1, max_length=100_000)]
    coalition: Coalition | None
    level: Level
    log10_level: Log10
    tries: Annotated[int, Field(ge=1, le=10**17)]
    weights: Count
    registers: Annotated[int, Field(ge=1, le=100_000)]
    file: Line = ""
    sha256: Hash | None = None
    at: Line | None = None
    entries: Annotated[tuple[Line, ...], Field(min_length=1, max_length=32)] = ("",)
    unread: Count = 0

    @property
    def subject(self) -> dict[str, Any] | None:
        """The suspect's file; weights that were given as such have none."""
        return None if self.sha256 is None else {"name": self.file, "digest": {"sha256": self.sha256}}

    @property
    def paid_log10(self) -> float:
        """What log10 p of every question is raised by at least."""
        return _paid(self.level, self.tries)

    @property
    def named(self) -> tuple[str, ...]:
        """Recipients whose copies the suspect contains, each by itself."""
        return tuple(each.name for each in self.recipients if each.contained)

    @property
    def found(self) -> bool:
        """Whether the suspect contains any copy of the register."""
        return bool(self.named) or (self.coalition is not None and self.coalition.contained)

    def to_dict(self) -> dict[str, Any]:
        """The outcome as plain JSON values."""
        return self.model_dump(mode="json") | {"named": list(self.named), "found": self.found}

    def __str__(self) -> str:
        return in_sentences(self)


def trace(
    suspect: nn.Module | Mapping[str, Tensor] | Suspect | str | os.PathLike[str],
    key: Key | str | os.PathLike[str],
    register: Imprint | str | os.PathLike[str] | Sequence[Imprint | str | os.PathLike[str]],
    *,
    level: Level = "owner",
    tries: int = 1,
    at: str | None = None,
    time_limit: float = 120.0,
    input_shape: Sequence[int] | None = None,
) -> Trace:
    """Find the recipients of a register, or of several, whose copies a suspect contains.

    ``suspect`` is a module, a state dict, an opened suspect or the path of any file that :func:`sigil.verify`
    opens; for a graph of ONNX ``at`` names the tensor or node at its end. ``level`` is whom to convince:
    "owner" multiplies p by what this trace tried, "court" by 2^128 more. ``tries`` are the suspects that were
    looked at in all. A folder may hold several registers, one per block of rounds, as a run's ``imprints``.
    With ``input_shape``, that of one input, the channels of a module of one's own are put back in order.

    It shows that the suspect contains a copy. Who passed that on it does not show: the recipient, somebody
    who broke in, or the owner, who can make every copy (docs/tracing.md).
    """
    key = as_key(key)
    if level not in LEVELS:
        raise ConfigError(f"The level is {shown(level)}, but it must be one of {', '.join(LEVELS)}.")
    tries = arguments.whole("tries", tries, least=1, most=MOST_TRIES)
    searches = list(_searches(register, key))
    held, stated = _tensors(suspect, tuple(searches[0].copies.state), at=at, time_limit=time_limit)
    tries *= len(held)
    own = None
    if isinstance(suspect, nn.Module) and input_shape is not None:
        own = _Own(suspect, tuple(input_shape))
    orders = [each.order(one, restored=False) for each in searches for one in held.values()]
    if min(min(order.log10_p_before) for order in orders) > _ENOUGH:
        orders += [each.order(one, restored=True, own=own) for each in searches for one in held.values()]
    weights = max(order.weights for order in orders)
    if not weights:
        raise SuspectError(
            "The suspect has no weights in the shapes of the owner's copy, so nothing can be compared; "
            "give a model of the same architecture."
        )
    paid = _paid(level, tries)
    rules = _Rules(
        log10_level=log10_level(key.fields),
        alone=paid + math.log10(sum(len(each.issued) for each in searches)),
        together=paid + math.log10(len(searches)),
    )
    recipients: dict[str, Recipient] = {}
    for each in (one for order in orders for one in rules.recipients(order)):
        if each.name not in recipients or each.log10_p_before < recipients[each.name].log10_p_before:
            recipients[each.name] = each
    # Somebody who is contained alone stays so with any other name beside.
    least = min(each.log10_p for each in recipients.values())
    groups = [one for one in map(rules.coalition, orders) if one is not None and one.log10_p < least]
    return Trace(
        recipients=tuple(sorted(recipients.values(), key=lambda one: (one.log10_p_before, one.name))),
        coalition=min(groups, key=lambda one: one.log10_p, default=None),
        level=level,
        log10_level=rules.log10_level,
        tries=tries,
        weights=weights,
        registers=len(searches),
        at=at,
        entries=tuple(map(harmless, held)),
        key=KeyFacts.of(key),
        created=moment_text(datetime.now(UTC)),
        software=Software.here(),
        **stated,
    )


def log10_level(stated: KeyFields) -> float:
    """What a corrected p is compared with, for the key of this statement."""
    return math.log10(min(ALPHA, float(stated.alpha)))


def _paid(level: Level, tries: int) -> float:
    """What log10 p of any question is raised by."""
    return math.log10(ORDERS * QUESTIONS * tries) + (COURT_LOG2 * math.log10(2) if level == "court" else 0.0)


def beside(run: Path) -> Path:
    """Where the copies are registered that were issued of a finished run."""
    return Path(f"{run}.copies")


def _searches(given: Any, key: Key) -> Iterator[_Search]:
    """The registers that are meant: in memory, folders of one each, or all those of a training."""
    if isinstance(given, Imprint):
        yield _Search(given, key)
        return
    if isinstance(given, list | tuple):
        for each in given:
            yield from _searches(each, key)
        return
    place = Path(given)
    run, issued = place / IMPRINTS, beside(place)
    if not (place / REGISTER_FILE).exists() and (issued / REGISTER_FILE).exists():
        yield _Search(issued, key)
        if not run.is_dir():
            return
    folders = (run if run.is_dir() else place).glob(f"{_BLOCK}*/{REGISTER_FILE}")
    blocks = [] if (place / REGISTER_FILE).exists() else sorted(each.parent for each in folders)
    for each in blocks or [place]:
        yield _Search(each, key)


@dataclass(frozen=True, eq=False)
class _Order:
    """The suspect in one order against one register: coins of each weight, and for each recipient those on
    its side and log10 p."""

    search: _Search
    weights: int
    coins: tuple[int, ...]
    positive: npt.NDArray[np.int64]
    log10_p_before: tuple[float, ...]
    restored: bool

    def deviations(self, chosen: Sequence[int]) -> float:
        """T over its standard deviation, of some recipients together."""
        coins = [len(chosen) * number for number in self.coins]
        return imprint_reading.deviations(self.positive[list(chosen)].sum(0).tolist(), coins)


class _Search:
    """One register, which is in memory only while it is read: a training may have a hundred of them."""

    def __init__(self, register: Imprint | Path, key: Key) -> None:
        self._register, self._key = register, key
        self.name = register.name if isinstance(register, Path) else ""
        copies = self.copies
        if copies.key != key:
            raise ConfigError("The register belongs to another key; give the key that it was made with.")
        if not copies.copies:
            raise ConfigError("The register names no recipient yet; make a copy with `sigil issue` first.")
        self.issued, self.digest = list(copies.copies.values()), copies.digest

    @property
    def copies(self) -> Imprint:
        return Imprint.load(self._register, self._key) if isinstance(self._register, Path) else self._register

    def order(self, tensors: Mapping[str, Tensor], *, restored: bool, own: _Own | None = None) -> _Order:
        """Read a suspect as its tensors are named, or put in order."""
        copies = self.copies
        ours = {name: copies.state[name] for name in copies.carriers}
        theirs = _in_order(tensors, copies, own) if restored else _renamed(tensors, ours)
        reading = imprint_reading.read(ours, theirs)
        positive = [reading.positive(copies.pattern(each.recipient)) for each in self.issued]
        return _Order(
            search=self,
            weights=sum(levels.size for levels in reading.levels.values()),
            coins=reading.coins,
            positive=np.array(positive, dtype=np.int64),
            log10_p_before=tuple(imprint_reading.log10_p_before(each, reading.coins) for each in positive),
            restored=restored,
        )


@dataclass(frozen=True)
class _Rules:
    """What a corrected p is compared with, and the logarithms of what p is multiplied by."""

    log10_level: float
    alone: float
    together: float

    def recipients(self, order: _Order) -> Iterator[Recipient]:
        """What one order says of each recipient."""
        for place, (issued, log10_p_before) in enumerate(
            zip(order.search.issued, order.log10_p_before, strict=True)
        ):
            corrected = self._corrected(order, log10_p_before, [place], self.alone)
            yield Recipient(
                name=issued.recipient,
                log10_p_before=log10_p_before,
                log10_p=corrected,
                contained=corrected <= self.log10_level,
                deviations=float(order.deviations([place])),
                restored=order.restored,
                date=issued.date,
                public=issued.public,
                digest=order.search.digest,
                folder=harmless(order.search.name),
            )

    def _corrected(
        self, order: _Order, log10_p_before: float, chosen: Sequence[int], log10_price: float
    ) -> float:
        """p times its price; of a training's copies a bound, by Hoeffding's inequality, without the leak."""
        corrected = min(0.0, log10_p_before + log10_price)
        if corrected > self.log10_level or not order.search.name.startswith(_BLOCK):
            return corrected
        left = max(0.0, order.deviations(chosen) - LEAK * math.sqrt(order.weights * len(chosen)))
        return max(corrected, min(0.0, -(left**2) / 2 / math.log(10) + log10_price))

    def coalition(self, order: _Order) -> Coalition | None:
        """The best set of two or more: of each size the recipients with the largest sums."""
        sums = order.positive @ np.arange(1, len(order.coins) + 1)
        ranking = np.argsort(-sums, kind="stable")
        sizes = range(2, min(len(ranking), MOST_TOGETHER) + 1)
        best = None
        for size in sizes:
            chosen = ranking[:size].tolist()
            log10_p_before = imprint_reading.log10_p_before(
                order.positive[chosen].sum(0).tolist(), tuple(size * number for number in order.coins)
            )
            ways = math.log10(math.comb(len(ranking), size) * len(sizes))
            corrected = self._corrected(order, log10_p_before, chosen, self.together + ways)
            if best is None or corrected < best.log10_p:
                names = tuple(order.search.issued[place].recipient for place in chosen)
                contained = corrected <= self.log10_level
                best = Coalition(
                    names=names,
                    log10_p_before=log10_p_before,
                    log10_p=corrected,
                    contained=contained,
                    restored=order.restored,
                )
        return best


def _tensors(
    suspect: object, names: Sequence[str], *, at: str | None, time_limit: float
) -> tuple[dict[str, Mapping[str, Tensor]], dict[str, Any]]:
    """The weights of the models in a suspect, by their names, and what a trace states of its file."""
    if isinstance(suspect, str | os.PathLike):
        path = Path(suspect)
        opened = open_weights(path, names, at=at, time_limit=time_limit)
        stated = {"file": harmless(str(path)), "sha256": opened.sha256, "unread": opened.unread}
        return dict(opened.entries), stated
    if isinstance(suspect, Suspect):
        stated = {"sha256": suspect.sha256, "unread": suspect.unread}
        if suspect.module is None:
            return {"": {str(place): one for place, one in enumerate(suspect.filters())}}, stated
        each = {one.entry: _weights(one.module.state_dict()) for one in suspect.each() if one.module}
        return dict(each), stated
    if isinstance(suspect, nn.Module | Mapping):
        return {"": _weights(_state(suspect))}, {}
    raise SuspectError(
        f"The suspect is of type {type(suspect).__name__}, which shows no weights; give a module, a state "
        "dict or the path of the model's file."
    )


def _state(model: nn.Module | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return model.state_dict() if isinstance(model, nn.Module) else model


def _weights(state: Mapping[Any, Any]) -> dict[str, Tensor]:
    found = {}
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise SuspectError(f"A state dict maps names to tensors, not {shown(name)} to {shown(tensor)}.")
        if tensor.ndim and tensor.is_floating_point():
            found[name] = arguments.tensor(f"suspect's {shown(name)}", tensor, raises=SuspectError)
    return found


def _renamed(tensors: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The suspect's tensors without what a wrapper put before all their names."""
    longest = max(ours, key=len)
    prefixes = sorted(name.removesuffix(longest) for name in tensors if name.endswith(longest))
    prefix = max(prefixes, key=lambda each: sum(each + own in tensors for own in ours), default="")
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


@dataclass(frozen=True)
class _Own:
    """A suspect that can be run: a module of one's own, and the shape of one input."""

    module: nn.Module
    shape: tuple[int, ...]

    def in_order(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Its weights in the order of the owner's, if it has the owner's layers; otherwise none."""
        theirs = {name: tuple(one.shape) for name, one in self.module.state_dict().items()}
        if theirs != {name: tuple(one.shape) for name, one in state.items()}:
            return {}
        ours = copy.deepcopy(self.module)
        ours.load_state_dict(state)
        try:
            return search_own(self.module, ours, self.shape).restored()
        except (AlignmentError, SuspectError, ShapeError):
            return {}


def _in_order(
    tensors: Mapping[str, Tensor], copies: Imprint, runs: _Own | None = None
) -> Mapping[str, Tensor]:
    """The suspect's weights in the order, shapes and signs of the owner's, as far as they can be found."""
    ours = {name: copies.state[name] for name in copies.carriers}
    own = _own_half(copies)
    if own is None:
        return (runs and runs.in_order(copies.state)) or _most_alike(tensors, ours)
    named = _renamed(tensors, ours)
    finite = {name: torch.nan_to_num(named[name]) for name in own.state_dict() if name in named}
    try:
        search = search_known(models.from_state(own.spec, finite), own)
        if search.result().believed:
            return search.restored()
    except (SuspectError, AlignmentError):  # other layers, names or widths
        pass
    # Names may lie: layers of one shape may have changed theirs.
    filters = [tensors[name] for name in sorted(tensors, key=_natural) if tensors[name].ndim == 4]
    return search_unknown(filters, own).restored() if filters else {}


def _own_half(copies: Imprint) -> Model | None:
    """As much of the owner's copy as channels can be followed in; None if its layers are not known."""
    spec = copies.spec
    if spec is None or spec.part == "server":
        return None
    cut = spec.cut or models.cut_points(spec.name)[-1]
    return models.from_state(replace(spec, part="client", cut=cut), copies.state)


def _most_alike(tensors: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """For each of the owner's tensors that of the suspect's in its shape which resembles it most."""
    left = dict(tensors)
    found = {}
    for name, own in ours.items():
        fitting = [each for each, tensor in left.items() if tensor.shape == own.shape][:MOST_ALIKE]
        if fitting:
            best = max(fitting, key=lambda each: imprint_reading.likeness(own, left[each]))
            found[name] = left.pop(best)
    return found


def _natural(name: str) -> list[tuple[int, str]]:
    """Layer 10 behind layer 2."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,9})", name)]


def in_sentences(outcome: Trace) -> str:
    """What was found, in the words of a report."""
    level = "for the owner's own use" if outcome.level == "owner" else "before others"
    limit = f"{in_words(outcome.log10_level)}, {level}"
    lines = []
    for each in outcome.recipients:
        if each.contained:
            lines.append(
                f"The suspect contains the copy that was made for {each.name} on {each.date[:10]}: by "
                f"chance, {in_words(each.log10_p)} (corrected; the level is {limit})."
            )
            if each.public:
                lines.append(
                    "The register says that this copy was made public, so finding it says nothing about "
                    "anybody."
                )
    together = outcome.coalition
    if together is not None and together.contained and not set(together.names) <= set(outcome.named):
        lines.append(
            f"The suspect contains a mixture of copies: at least one, as a group, of those made for "
            f"{', '.join(together.names)}: by chance, {in_words(together.log10_p)} (corrected)."
        )
    if not lines:
        first = outcome.recipients[0]
        return (
            f"The suspect is not shown to contain any of the {len(outcome.recipients)} copies: the "
            f"likeliest, made for {first.name}, would be found as well by chance, "
            f"{in_words(first.log10_p)} (corrected; the level is {limit})."
            f"{f' Of the file {outcome.unread:,} parts were not read.' if outcome.unread else ''}"
        )
    lines.append(
        "Who passed it on is not shown: the recipient, somebody who broke in there, or the owner, who can "
        "make every copy. An older common ancestor that was public would explain it too."
    )
    return "\n".join(lines)
