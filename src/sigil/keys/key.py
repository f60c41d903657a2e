"""The owner's secret key: 32 random bytes from which the watermark (M, b) is derived.

M (d×k, standard normal) and b (k bits) are functions of the seed, of everything that the key's
statement says in public, and of its seal, and of nothing else. Nobody, the owner included, can choose
an entry of M or a bit of b. A key can be drawn again, though, until one happens to fit, so there are two
kinds: a *plain* key, whose verdicts multiply p by 2⁸⁰, and a *stamped* one, which also follows from the
signature of a time stamp over its statement: every try costs a dated request, and p is multiplied by
2²⁴. docs/p-value.md shows what that prevents.

Noise probes, the choice of inputs, shares of the bits and initial weights are derived likewise, each
for a purpose of its own (`sigil.keys.statement`), and bit-exactly (`sigil.keys.draws`), so that a key
opened in ten years gives the same numbers.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import os
import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Literal, NoReturn, final

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from sigil import arguments
from sigil.errors import ConfigError, KeyFileError, SealError, ShapeError, shown
from sigil.keys import keyfile, length, seal, statement
from sigil.keys.draws import KeyStream, span
from sigil.keys.length import default_bits
from sigil.keys.seal import Seal
from sigil.keys.statement import KeyFields, Scheme, SealKind, Statement, check_shape
from sigil.rules import ALPHA, PLAIN_ALLOWANCE_LOG2, STAMPED_ALLOWANCE_LOG2

SEED_BYTES: Final = 32
MAX_CHOICE: Final = 10**7
MAX_CLIENTS: Final = 4_096
MAX_POPULATION: Final = 2**53
MAX_ENTRIES: Final = 2**31


@final
class Key:
    """The secret that marks a model and later proves who marked it; make one with `generate`.

    A key never changes. It compares equal to another key with the same commitment and the same seal, and
    it refuses to be pickled or copied, because a pickle would carry the seed to a place that nobody
    guards: use `save` and `load`. `fields` is all that it states in public.
    """

    __slots__ = ("_matrix", "_seal", "_seed", "_statement", "_target", "fields")

    fields: KeyFields
    _seed: bytes
    _statement: Statement
    _seal: Seal | None
    _matrix: torch.Tensor | None
    _target: torch.Tensor | None

    def __init__(self, fields: KeyFields, seed: bytes, stamp: Seal | None = None) -> None:
        if not isinstance(fields, KeyFields):
            raise ConfigError(
                "A key is made by sigil.Key.for_activation, sigil.Key.generate or sigil.Key.load, not by its "
                "constructor."
            )
        if len(seed) != SEED_BYTES:
            raise ConfigError(
                f"A seed must be exactly {SEED_BYTES} bytes; "
                "leave it out to draw one from the operating system."
            )
        values = {
            "fields": fields,
            "_seed": seed,
            "_statement": statement.state(fields, seed),
            "_seal": stamp,
            "_matrix": None,
            "_target": None,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    @keyfile.without_frames
    def generate(
        cls,
        owner: str,
        shape: Sequence[int],
        *,
        bits: int | None = None,
        seed: bytes | None = None,
        model: str | None = None,
        width: int | None = None,
        classes: int | None = None,
        cut: str | None = None,
        input_shape: Sequence[int] | None = None,
        normalisation: tuple[Sequence[float], Sequence[float]] | None = None,
        scheme: Scheme = "paper",
        carriers_per_bit: int | None = None,
        inputs_digest: str | None = None,
        probes: int = statement.PROBES,
        alpha: float | str = ALPHA,
        initialiser: str | None = statement.INITIALISER,
        seal: SealKind = "none",
    ) -> Key:
        """Draw a new key from the operating system's randomness.

        `owner` is the name to prove, 1 to 128 printable characters; `shape` is the shape of one
        sample's activation at the cut, e.g. (256, 8, 8); `bits` is the length k of the watermark,
        `default_bits(shape)` if not given. A given `seed` of 32 bytes makes a fixed key, for tests.

        The rest is stated in public, and what is stated cannot be chosen afterwards: the `model` with its
        `width` and `classes`, the `cut` in it, the `input_shape` and the (means, deviations) of the inputs'
        `normalisation`, the `scheme` ("shares" deals the bits out among clients, `carriers_per_bit` of
        them for each), the `inputs_digest` of the real inputs to read the mark on, the number of noise
        `probes`, the level `alpha`, whether initial weights are drawn from the key (`initialiser`). With
        `seal="rfc3161"` the key is one to be stamped: it is of no use until `seal` made it whole.
        """
        shape = check_shape(shape)
        fields = KeyFields(
            owner=owner,
            shape=shape,
            bits=default_bits(shape, seal) if bits is None else bits,
            model=model,
            width=width,
            classes=classes,
            cut=cut,
            input_shape=None if input_shape is None else check_shape(input_shape, "input shape"),
            normalisation=statement.normalisation_text(normalisation),
            scheme=scheme,
            share_rule=statement.share_rule(scheme, carriers_per_bit),
            inputs_digest=inputs_digest,
            probes=probes,
            alpha=statement.level_text(alpha),
            initialiser=initialiser,
            seal=seal,
        )
        return cls(fields, secrets.token_bytes(SEED_BYTES) if seed is None else seed)

    @classmethod
    def for_activation(cls, activation: torch.Tensor, owner: str, **stated: Any) -> Key:
        """Draw a new key for the cut at which this batch of activations (n, *shape) arrived.

        The rest is as in `generate`: bits, model, cut and what else is to be stated. A key that is too short
        to prove anything is made with a warning.
        """
        if activation.ndim < 2 or not len(activation):
            raise ShapeError(
                f"A batch of activations (n, …) is wanted, but the tensor has the shape "
                f"{tuple(activation.shape)}."
            )
        key = cls.generate(owner, tuple(activation.shape[1:]), **stated)
        length.warn_if_too_short(key.fields)
        return key

    @classmethod
    def load_or_generate(
        cls,
        path: str | os.PathLike[str],
        owner: str,
        shape: Sequence[int],
        *,
        passphrase: str | None = None,
        **stated: Any,
    ) -> Key:
        """Read the key at `path`, or draw one and save it there: for scripts that are run again.

        The rest is as in `generate`. What is asked for must be what a key that exists states; what is left
        out is not compared.

        >>> import tempfile
        >>> path = f"{tempfile.mkdtemp()}/owner.key"
        >>> key = Key.load_or_generate(path, "ACME", (64, 4, 4))
        >>> Key.load_or_generate(path, "ACME", (64, 4, 4)) == key
        True
        """
        key = None
        if not os.path.lexists(path):
            key = cls.generate(owner, shape, **stated)
            try:
                key.save(path, passphrase=passphrase)
            except KeyFileError:
                if not os.path.lexists(path):
                    raise
                key = None  # another process was faster
        if key is None:
            key = cls.load(path, passphrase=passphrase)
            key._check_states(path, {"owner": owner, "shape": shape} | stated)
        length.warn_if_too_short(key.fields)
        return key

    def _check_states(self, path: str | os.PathLike[str], asked: dict[str, Any]) -> None:
        """Raise unless the key, read from `path`, states all that is asked for; None asks for nothing."""
        asked = {name: value for name, value in asked.items() if value is not None}
        # As `generate` would spell it.
        wanted = Key.generate(**({"seed": bytes(SEED_BYTES)} | asked))
        differing = []
        for name, value in asked.items():
            if name == "seed":
                if Key(self.fields, value)._statement != self._statement:
                    differing.append("another seed")
                continue
            field = "share_rule" if name == "carriers_per_bit" else name
            has, wants = getattr(self.fields, field), getattr(wanted.fields, field)
            if has != wants:
                differing.append(f"{field.replace('_', ' ')} {shown(has)} and not {shown(wants)}")
        if differing:
            raise KeyFileError(
                f"{os.fspath(path)} holds another key than was asked for, with {', '.join(differing)}; ask "
                "for what it states, or name another file."
            )

    @property
    def owner(self) -> str:
        """The name that the key proves."""
        return self.fields.owner

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample's activation at the cut."""
        return self.fields.shape

    @property
    def bits(self) -> int:
        """The length k of the watermark."""
        return self.fields.bits

    @property
    def version(self) -> int:
        """The version of the derivation."""
        return self.fields.version

    @property
    def dimension(self) -> int:
        """The number d of activations at the cut: the product of `shape`."""
        return math.prod(self.shape)

    @property
    def kind(self) -> Literal["plain", "stamped"]:
        """What the key's secrets follow from: the seed alone, or the seed and a time stamp."""
        return "plain" if self._seal is None else "stamped"

    @property
    def allowance_log2(self) -> int:
        """The logarithm to base 2 of how many keys of this kind a claimant may have drawn: 80 or 24."""
        return PLAIN_ALLOWANCE_LOG2 if self._seal is None else STAMPED_ALLOWANCE_LOG2

    @property
    def awaits_seal(self) -> bool:
        """Whether the key was made to be stamped and is not sealed yet; it derives nothing before."""
        return self._seal is None and self.fields.seal != "none"

    @property
    def stamp(self) -> Seal | None:
        """The time stamp of a stamped key; its `check` finds out whether a trusted root vouches for it."""
        return self._seal

    @property
    def stamped_at(self) -> datetime | None:
        """When a stamped key's statement was stamped, by its authority's clock."""
        return None if self._seal is None else self._seal.time

    @property
    def commitment(self) -> str:
        """A SHA-256 hash over all fields and the seed, in hex; it is safe to publish.

        It hides the seed, which has 256 random bits, and binds the owner to it by SHA-256's collisions.
        """
        return self._statement.commitment

    @property
    def matrix(self) -> torch.Tensor:
        """The secret directions M, float32 (d, bits), entries N(0, 1); treat it as read-only.

        Row i belongs to entry i of the flattened activation. M is derived at first use and kept.
        """
        if self._matrix is None:
            object.__setattr__(self, "_matrix", self.rows(0, self.dimension))
        assert self._matrix is not None
        return self._matrix

    @property
    def target(self) -> torch.Tensor:
        """The secret bits b, float32 (bits,) of zeros and ones; treat it as read-only."""
        if self._target is None:
            bits = self._stream("target").bits(self.bits).astype(np.float32)
            object.__setattr__(self, "_target", torch.from_numpy(bits))
        assert self._target is not None
        return self._target

    def rows(self, start: int, stop: int) -> torch.Tensor:
        """Rows `start` to `stop` (exclusive) of M, float32 (stop - start, bits), and no others.

        Memory: the result and a few megabytes.
        """
        start, stop = span("row", start, stop, self.dimension)
        drawn = self._stream("matrix").normals(start, stop, (self.bits,), what=f"rows of {self.bits} bits")
        return torch.from_numpy(drawn)

    def noise_probes(self, start: int, stop: int, shape: Sequence[int] | None = None) -> torch.Tensor:
        """Noise probes `start` to `stop` (exclusive) of this key, float32 (stop - start, *shape), N(0, 1).

        `shape` is that of one input, the stated one if not given. Probe i is fixed and independent of b.
        """
        wanted = self.fields.input_shape if shape is None else shape
        if wanted is None:
            raise ConfigError("The key states no input shape; say for which shape of input to draw probes.")
        sizes = check_shape(wanted, "input shape")
        start, stop = span("probe", start, stop, 2**32)
        drawn = self._stream("probes").normals(start, stop, sizes, what=f"probes of shape {sizes}")
        return torch.from_numpy(drawn)

    def choose(self, count: int, population: int, purpose: str = "inputs") -> torch.Tensor:
        """`count` different indices below `population`, int64, in the order that the key draws them.

        Every choice is equally likely. Other uses have other purposes: "inputs" or "inputs/<name>".
        """
        if purpose != "inputs" and not purpose.startswith("inputs/"):
            raise ConfigError(f"A choice has the purpose 'inputs' or 'inputs/<name>', not {shown(purpose)}.")
        count = arguments.whole("The count", count)
        population = arguments.whole("The population", population)
        if not 0 <= count <= min(population, MAX_CHOICE) or population > MAX_POPULATION:
            raise ConfigError(
                f"{count} of {population} cannot be chosen; ask for at most all of them, and at most "
                f"{MAX_CHOICE:,}."
            )
        return torch.tensor(self._stream(purpose).choose(count, population), dtype=torch.int64)

    def share_of(self, client: int, clients: int, carriers_per_bit: int | None = None) -> torch.Tensor:
        """Which bits client number `client` of `clients` carries, bool (bits,), dealt out by the key.

        Every bit has `carriers_per_bit` clients (the stated number, or 1); their loads differ by 1 at most.
        """
        stated = (self.fields.share_rule or "").partition("-")[2]
        carriers = carriers_per_bit if carriers_per_bit is not None else int(stated or 1)
        if stated and carriers != int(stated):
            raise ConfigError(f"The key states {stated} carriers per bit, but {carriers} were asked for.")
        if not (1 <= carriers <= clients <= MAX_CLIENTS and 0 <= client < clients):
            raise ConfigError(
                f"Client {client} of {clients} with {carriers} carriers per bit is impossible; give "
                f"0 <= client < clients <= {MAX_CLIENTS} and 1 <= carriers <= clients."
            )
        dealt = self._stream("share").deal(self.bits, clients=clients, carriers=carriers)
        return torch.from_numpy(dealt[client].copy())

    def initial(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        """The owner's initial weights for one tensor, float32: `name` as in the module's state dict.

        Two axes are a linear layer's, U(−1/√inputs, 1/√inputs); three or more a convolution's,
        N(0, 2/fan-out), as `sigil.models.build` draws them. Never publish them.
        """
        sizes = tuple(map(operator.index, shape))
        if len(sizes) < 2 or min(sizes) < 1 or math.prod(sizes) > MAX_ENTRIES:
            raise ConfigError(
                f"Initial weights have two axes or more and at most 2^31 entries, but {list(sizes)[:8]} was "
                "asked for; biases and norm layers are not drawn from a key."
            )
        out = np.empty(sizes, dtype=np.float32)
        if len(sizes) == 2:
            self._initial_stream(name).fill_uniform(out, bound=1.0 / math.sqrt(sizes[1]))
        else:
            fan_out = sizes[0] * math.prod(sizes[2:])
            self._initial_stream(name).fill_normal(out, scale=math.sqrt(2.0 / fan_out))
        return torch.from_numpy(out)

    def held_out(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        """Which initial weights of a tensor, bool, never help to find an order of channels: one in eight."""
        sizes = tuple(map(operator.index, shape))
        if not sizes or min(sizes) < 0 or math.prod(sizes) > MAX_ENTRIES:
            raise ConfigError(f"A tensor has at most 2^31 entries, but {list(sizes)[:8]} was asked for.")
        octets = self._stream(f"held-out/{name}").octets(0, math.prod(sizes))
        return torch.from_numpy(np.frombuffer(octets, dtype=np.uint8) % 8 == 7).reshape(sizes)

    @torch.no_grad()
    def initialise(self, module: nn.Module) -> tuple[str, ...]:
        """Give a module the owner's initial weights, in place, before it is trained; return their names.

        Weights of convolutions and linear layers are drawn from the key, the same on every platform and with
        fair signs. Only these belong to the owner: biases and the numbers of norm layers are set as usual.
        Names are those of the state dict, so halves may come one by one. A tensor that several layers share
        is drawn once, under its first name; parameters of other kinds of layers stay as they are.
        """
        drawn: list[str] = []
        seen: set[int] = set()
        for path, layer in module.named_modules():
            if isinstance(layer, _NormBase | nn.LayerNorm | nn.GroupNorm):
                layer.reset_parameters()
            weight = layer._parameters.get("weight") if isinstance(layer, _ConvNd | nn.Linear) else None
            if weight is None or id(weight) in seen:
                continue
            seen.add(id(weight))
            name = f"{path}.weight" if path else "weight"
            weight.copy_(self.initial(name, weight.shape))
            drawn.append(name)
            bias = layer._parameters.get("bias")
            if bias is not None and isinstance(layer, nn.Linear):
                out = np.empty(tuple(bias.shape), dtype=np.float32)
                stream = self._initial_stream(name.removesuffix("weight") + "bias")
                stream.fill_uniform(out, bound=1.0 / math.sqrt(layer.in_features))
                bias.copy_(torch.from_numpy(out))
            elif bias is not None:
                bias.zero_()
        if not drawn:
            raise ConfigError(
                "The module has no convolution and no linear layer, so a key has nothing to draw."
            )
        return tuple(drawn)

    def imprint_stream(self, digest: str, recipient: str) -> KeyStream:
        """The stream that draws one recipient's pattern over the model with this digest (`sigil.imprint`).

        Each has its own subkey, so that one pattern can be opened to an auditor without the others.
        """
        return self._stream(f"imprint/{digest}/{recipient}")

    def statement(self) -> str:
        """One line to publish or have stamped before training; it reveals nothing of the seed."""
        return self._statement.text

    def to_be_stamped(self) -> Key:
        """The key with the same seed whose statement awaits a time stamp: what an authority is asked for."""
        if self._seal is not None:
            raise SealError("The key is sealed already; a seal is for good, so make a new key for another.")
        return Key(dataclasses.replace(self.fields, seal="rfc3161"), self._seed)

    def seal(self, token: bytes) -> Key:
        """A new key whose secrets also follow from a time stamp over its statement.

        `token` is an authority's answer (.tsr) for the statement of `to_be_stamped()`. A model that was
        marked before stays with the old key.
        """
        waiting = self.to_be_stamped()
        return Key(waiting.fields, waiting._seed, seal.read(token, waiting._statement.digest))

    def signing_key(self) -> Ed25519PrivateKey:
        """The Ed25519 key that signs evidence; its public half is part of `statement`."""
        return statement.evidence_key(self.fields, self._seed)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        passphrase: str | None = None,
        overwrite: bool = False,
    ) -> None:
        """Write the key to a file that only its owner can read (mode 0600), with its seal if it has one.

        With a `passphrase` the seed is encrypted. An existing file is left alone and refused,
        unless `overwrite` is true; the file at `path` is at any moment the old or the new one.
        """
        token = None if self._seal is None else self._seal.response
        content = keyfile.Content(self._statement.text, token, self._seed)
        keyfile.write(path, content, passphrase=passphrase, overwrite=overwrite)

    @classmethod
    @keyfile.without_frames
    def load(cls, path: str | os.PathLike[str], *, passphrase: str | None = None) -> Key:
        """Read a key from a file; a missing, damaged or locked one raises `KeyFileError`."""
        content = keyfile.read(path, passphrase=passphrase)
        return cls(*keyfile.unpack(content, os.fspath(path)))

    def _initial_stream(self, name: str) -> KeyStream:
        if self.fields.initialiser is None:
            raise ConfigError("The key states no initial weights; make a new key to have them drawn from it.")
        return self._stream(f"initial/{name}")

    def _stream(self, purpose: str) -> KeyStream:
        """The stream of one purpose; a key that awaits its seal has none."""
        if self.awaits_seal:
            raise SealError(
                "The key awaits its time stamp and is of no use before; get one with `sigil key stamp`, "
                "then use the key that `sigil key seal` writes."
            )
        sigma = seal.PLAIN if self._seal is None else self._seal.sigma
        return KeyStream(statement.subkey(self._statement, self._seed, sigma, purpose))

    def _identity(self) -> tuple[str, bytes]:
        return self.commitment, seal.PLAIN if self._seal is None else self._seal.sigma

    def __repr__(self) -> str:
        return (
            f"Key(owner={self.owner!r}, shape={self.shape}, bits={self.bits}, "
            f"commitment='{self.commitment[:12]}…')"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Key):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"A key never changes: cannot set {name!r}; generate another key.")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"A key never changes: cannot delete {name!r}.")

    def __getstate__(self) -> NoReturn:
        raise KeyFileError(
            "A key cannot be pickled or copied, since that would write its secret seed to a place "
            "that nobody guards; share the object itself, or use Key.save and Key.load."
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        self.__getstate__()
