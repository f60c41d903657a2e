"""What a key states in public, its fields and the line to publish, and what its secrets follow from.

F, the encoding of the fields that everything secret is derived with, is the concatenation of LP(x) =
4-byte big-endian length ‖ x over the texts of `KeyFields.texts`, in their order. The statement S is
the JSON object of the same fields, the commitment and the evidence key, in the canonical form of RFC
8785: names sorted, no spaces, UTF-8. There is one correct spelling and no other is accepted.

HKDF-SHA256 turns the seed into one independent subkey per purpose: "matrix", "target", "probes",
"inputs", "share", "initial/<tensor>", "imprint/<digest>/<recipient>". With σ the seal (32 zero bytes of a
plain key):

    evidence key = HKDF(seed, salt "sigil key v2", info LP("evidence") ‖ F)
    commitment   = SHA-256(LP("sigil commitment v2") ‖ F ‖ LP(evidence public key) ‖ LP(seed))
    subkey       = HKDF(seed, salt σ, info LP("sigil v2") ‖ LP(purpose) ‖ SHA-256(S))

The evidence key cannot depend on the seal, since its public half is in the statement that is sealed.
docs/formats.md describes all of it byte by byte.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Final, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sigil.arguments import whole
from sigil.errors import ConfigError, shown
from sigil.keys.owner_name import check_name
from sigil.rules import ALPHA

VERSION: Final = 2
FORMAT: Final = "sigil-statement/2"
MAX_STATEMENT: Final = 4_000
MAX_BITS: Final = 65_536
MAX_AXES: Final = 4
MAX_DIMENSION: Final = 2**26
PROBES: Final = 512
LEAST_PROBES: Final = 256
MOST_PROBES: Final = 65_536
INITIALISER: Final = "fan-out-normal"

SealKind = Literal["none", "rfc3161"]
Scheme = Literal["paper", "shares"]

_SALT: Final = b"sigil key v2"
_COMMITMENT: Final = b"sigil commitment v2"
_SUBKEY: Final = b"sigil v2"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+/-]{0,127}")
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_SHARE_RULE: Final = re.compile(r"balanced(-[1-9][0-9]{0,4})?")
_LEVEL: Final = re.compile(r"[1-9](\.[0-9]{0,15}[1-9])?e-[1-9][0-9]{0,2}")
_NUMBER: Final = r"-?(?:0|[1-9][0-9]{0,8})(?:\.[0-9]{0,17}[1-9])?"
_NORMALISATION: Final = re.compile(rf"({_NUMBER}(?:,{_NUMBER})*)/({_NUMBER}(?:,{_NUMBER})*)")


def level_text(alpha: float | str) -> str:
    """A level such as 3e-07 in the one spelling that a statement has: "3e-7"."""
    try:
        return f"{Decimal(str(alpha)).normalize():e}"
    except (ArithmeticError, ValueError):
        raise ConfigError(f"The level alpha is {shown(alpha)} but must be a number, such as 3e-7.") from None


@dataclass(frozen=True)
class KeyFields:
    """Everything public that a key is made for; None is what was left open.

    `shape` is that of one activation at the cut, `input_shape` that of one input. `normalisation` is
    "mean,mean,…/deviation,deviation,…" per channel. `share_rule` says how bits are dealt out among
    clients under the scheme "shares". `inputs_digest` fixes the real inputs that the mark is read on,
    `probes` the number of noise probes, `alpha` the level of proof, `initialiser` how initial weights
    are drawn from the key, `seal` whether a time stamp is part of the key.
    """

    owner: str
    shape: tuple[int, ...]
    bits: int
    model: str | None = None
    width: int | None = None
    classes: int | None = None
    cut: str | None = None
    input_shape: tuple[int, ...] | None = None
    normalisation: str | None = None
    scheme: Scheme = "paper"
    share_rule: str | None = None
    inputs_digest: str | None = None
    probes: int = PROBES
    alpha: str = level_text(ALPHA)
    initialiser: str | None = INITIALISER
    seal: SealKind = "none"
    version: int = VERSION

    def __post_init__(self) -> None:
        self._set(version=whole("The version of the key", self.version, least=VERSION, most=VERSION))
        self._set(owner=check_name(self.owner, "owner"))
        self._set(shape=check_shape(self.shape, "activation shape"), bits=check_bits(self.bits))
        if self.input_shape is not None:
            self._set(input_shape=check_shape(self.input_shape, "input shape"))
        for name in ("model", "cut"):
            _check_text(name, getattr(self, name), _NAME, "letters, digits and . _ + / -, at most 128")
        for name in ("width", "classes"):
            if getattr(self, name) is not None:
                self._set(**{name: whole(f"The {name}", getattr(self, name), least=1, most=2**31)})
        probes = whole("The number of probes", self.probes, least=LEAST_PROBES, most=MOST_PROBES)
        self._set(probes=probes)
        _check_text("input-set digest", self.inputs_digest, _HEX, "64 hex digits")
        _check_text("normalisation", self.normalisation, _NORMALISATION, "mean,…/deviation,…")
        _check_channels(self.normalisation, self.input_shape)
        if not _LEVEL.fullmatch(self.alpha) or not 1e-300 <= float(self.alpha) <= ALPHA:
            raise ConfigError(
                f"The level alpha of a key is {shown(self.alpha)}, but proof begins at "
                f"{level_text(ALPHA)}; give a number above 0 and at most that."
            )
        _check_choice("scheme", self.scheme, ("paper", "shares"))
        _check_choice("initialiser", self.initialiser, (None, INITIALISER))
        _check_choice("seal", self.seal, ("none", "rfc3161"))
        _check_text("share rule", self.share_rule, _SHARE_RULE, "balanced, or balanced-R for R carriers")
        if (self.scheme == "shares") != (self.share_rule is not None):
            raise ConfigError(
                "A share rule belongs to the scheme shares, and to no other; give both or none."
            )

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def texts(self) -> tuple[str, ...]:
        """The fields in the order of F, each as text; "none" is what was left open."""
        values = (
            *(self.version, self.owner, self.model, self.width, self.classes, self.cut),
            *(self.shape, self.input_shape, self.normalisation, self.bits, self.scheme),
            *(self.share_rule, self.inputs_digest, self.probes, self.alpha, self.initialiser, self.seal),
        )
        return tuple(_text(value) for value in values)

    def encoded(self) -> bytes:
        """F: what two different sets of fields never share."""
        return b"".join(length_prefixed(text.encode()) for text in self.texts())


@dataclass(frozen=True)
class Statement:
    """The fields of a key with its commitment and the public half of its evidence key, in hex."""

    fields: KeyFields
    commitment: str
    evidence_key: str

    @property
    def text(self) -> str:
        """S: one line to publish or have stamped; it reveals nothing of the secret."""
        own = {field.name: getattr(self.fields, field.name) for field in fields(KeyFields)}
        document = own | {
            "format": FORMAT,
            "commitment": self.commitment,
            "evidence_key": self.evidence_key,
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @property
    def digest(self) -> bytes:
        """SHA-256 of S: the imprint of a time stamp."""
        return hashlib.sha256(self.text.encode()).digest()


def parse(text: str) -> Statement | None:
    """The statement that a line is, or None if it is not exactly one in its one spelling."""
    if len(text) > MAX_STATEMENT or not text.startswith("{"):
        return None
    try:
        document = json.loads(text)
        hashes = [str(document.pop(name, "")) for name in ("commitment", "evidence_key")]
        if document.pop("format", None) != FORMAT or not all(map(_HEX.fullmatch, hashes)):
            return None
        for name in ("shape", "input_shape"):
            if isinstance(document.get(name), list):
                document[name] = tuple(document[name])
        statement = Statement(KeyFields(**document), *hashes)
    except (ValueError, TypeError, RecursionError, ConfigError):
        return None
    return statement if statement.text == text else None


def evidence_key(fields: KeyFields, seed: bytes) -> Ed25519PrivateKey:
    """The Ed25519 key that signs the owner's evidence."""
    secret = _hkdf(seed, _SALT, length_prefixed(b"evidence") + fields.encoded())
    return Ed25519PrivateKey.from_private_bytes(secret)


def state(fields: KeyFields, seed: bytes) -> Statement:
    """The statement of the key with these fields and this seed: its commitment binds all of it."""
    public = evidence_key(fields, seed).public_key().public_bytes_raw()
    parts = length_prefixed(public) + length_prefixed(seed)
    committed = hashlib.sha256(length_prefixed(_COMMITMENT) + fields.encoded() + parts)
    return Statement(fields, committed.hexdigest(), public.hex())


def subkey(statement: Statement, seed: bytes, sigma: bytes, purpose: str) -> bytes:
    """The subkey of one purpose, 32 bytes; `sigma` is the seal, all zero for a plain key."""
    named = purpose.encode("utf-8", "surrogatepass")  # the name of a suspect's tensor can be any text
    info = length_prefixed(_SUBKEY) + length_prefixed(named) + statement.digest
    return _hkdf(seed, sigma, info)


def _hkdf(seed: bytes, salt: bytes, info: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=salt, info=info).derive(seed)


def length_prefixed(part: bytes) -> bytes:
    """LP(x): the length in four bytes, big end first, and x."""
    return len(part).to_bytes(4, "big") + part


def share_rule(scheme: str, carriers_per_bit: int | None) -> str | None:
    """How a scheme deals bits out among clients, in the words of a statement."""
    if carriers_per_bit is None:
        return "balanced" if scheme == "shares" else None
    return f"balanced-{whole('The number of carriers per bit', carriers_per_bit, least=1, most=10**5 - 1)}"


def normalisation_text(moments: tuple[Sequence[float], Sequence[float]] | None) -> str | None:
    """Means and standard deviations per channel in the one spelling that a statement has."""
    if moments is None:
        return None
    try:
        means, deviations = ([*part] for part in moments)
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError(
            f"The normalisation is {shown(moments)} but must be the means and the deviations of the "
            "channels, such as ((0.5, 0.5, 0.5), (0.2, 0.2, 0.2))."
        ) from None
    return "/".join(",".join(_plain(number) for number in part) for part in (means, deviations))


def check_shape(shape: Sequence[int], what: str = "activation shape") -> tuple[int, ...]:
    """The sizes of a shape, or one sentence about what is wrong with them."""
    sizes = tuple(map(operator.index, shape))
    if not (1 <= len(sizes) <= MAX_AXES and min(sizes) >= 1 and math.prod(sizes) <= MAX_DIMENSION):
        raise ConfigError(
            f"The {what} must be 1 to {MAX_AXES} positive whole numbers with a product "
            f"of at most {MAX_DIMENSION}, but it is {shown(shape)}; try (256, 8, 8)."
        )
    return sizes


def check_bits(bits: int) -> int:
    """The number of bits, or one sentence about what is wrong with it."""
    return whole("The number of bits", bits, least=1, most=MAX_BITS)


def _text(value: str | int | tuple[int, ...] | None) -> str:
    if value is None:
        return "none"
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _check_text(name: str, value: str | None, form: re.Pattern[str], wanted: str) -> None:
    # "none" is how F spells what was left open, so that nothing may be called so.
    if value is not None and (not form.fullmatch(value) or value == "none"):
        raise ConfigError(f"The {name} is {shown(value)} but must be {wanted}.")


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        known = ", ".join(str(choice) for choice in choices)
        raise ConfigError(f"The {name} is {shown(value)} but must be one of: {known}.")


def _check_channels(normalisation: str | None, input_shape: tuple[int, ...] | None) -> None:
    if normalisation is None:
        return
    means, deviations = (part.split(",") for part in normalisation.split("/"))
    channels = len(means) if input_shape is None else input_shape[0]
    one_spelling = all(_plain(float(number)) == number for number in (*means, *deviations))
    if not (len(means) == len(deviations) == channels) or not one_spelling:
        raise ConfigError(
            f"The normalisation is {shown(normalisation)} but must have one mean and one deviation "
            f"per channel, {channels} of each."
        )
    if any(float(number) <= 0 for number in deviations):
        raise ConfigError("The deviations of a normalisation must be above 0.")


def _plain(number: float) -> str:
    try:
        return f"{Decimal(repr(float(number) + 0.0)).normalize():f}"
    except (ArithmeticError, ValueError, TypeError):
        raise ConfigError(f"The normalisation holds {shown(number)}, which is not a number.") from None
