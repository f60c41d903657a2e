"""The owner's secret key: 32 random bytes from which the watermark (M, b) is derived.

M (d×k, standard normal) and b (k bits) are functions of the seed, the owner's name, the activation
shape, the number of bits and the scheme version, and of nothing else. Nobody, the owner included,
can choose an entry of M or a bit of b; a commitment published before training shows that the seed
was not re-drawn afterwards either. docs/forgery.md shows what that prevents.

The derivation is bit-exact on every platform and library version, so that a key opened in ten years
gives the same M:

- HKDF-SHA256 turns the seed and the canonical encoding of all fields into one independent subkey a
  purpose ("matrix", "target", "evidence").
- AES-256 in counter mode turns a subkey into a stream of bytes. Block i of the stream is the
  encryption of the number i, so any part of M is derived without the rest of it.
- Entry (i, j) of M is the 32-bit little-endian word u at index i·k + j of the stream, taken through
  the normal quantile function at (u + 1/2)/2³² in float64 and rounded to float32.
- The quantile function is a rational approximation written with + − × ÷ and √ alone. IEEE 754
  demands the correctly rounded result of these five, so there is one possible answer; each is a
  NumPy call of its own, so no compiler can fuse two of them. The logarithm that the tails need is
  built from the same five, because the one of the system's maths library differs in its last bit
  between platforms.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import os
import secrets
import unicodedata
from collections.abc import Sequence
from typing import Final, NoReturn, final

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sigil import keyfile
from sigil.errors import ConfigError, KeyFileError, ShapeError

SCHEME_VERSION: Final = 1
SEED_BYTES: Final = 32
MAX_OWNER: Final = 128
MAX_BITS: Final = 65_536
# What an attack leaves of a mark proves the more, the longer the key is. The paper finds 500 bits no burden
# for 16,384 dimensions; the shortest leaves room below the usual level of proof.
LONGEST_DEFAULT_BITS: Final = 512
SHORTEST_DEFAULT_BITS: Final = 32
# With fewer dimensions a bit the mark pulled whole activations towards zero and training with them.
DIMENSIONS_PER_BIT: Final = 16
MAX_AXES: Final = 4
MAX_DIMENSION: Final = 2**26

_DOMAIN: Final = b"sigil key v1"
# Words that are turned into normal numbers at a time: the float64 intermediates stay in the cache,
# and the memory needed beside the result stays at a few megabytes whatever the shape.
_BLOCK_WORDS: Final = 1 << 16

_Floats = npt.NDArray[np.float64]


def default_bits(shape: Sequence[int]) -> int:
    """How long a key is if nobody says: a bit for every 16 dimensions of the activation, 512 at most.

    The strongest attack tried leaves 128 bits in 2,048 dimensions below the level of proof and 256 in 4,096
    above it (``results/cpu/proof``, ``results/cpu/scaling``). No key is shorter than 32 bits, whose smallest
    p-value is 2.3e-10.
    """
    room = math.prod(_check_shape(shape)) // DIMENSIONS_PER_BIT
    return max(SHORTEST_DEFAULT_BITS, min(LONGEST_DEFAULT_BITS, room))


@final
class Key:
    """The secret that marks a model and later proves who marked it; make one with `generate`.

    A key never changes. It compares equal to another key with the same commitment, and it refuses
    to be pickled or copied, because a pickle would carry the seed to a place that nobody guards:
    use `save` and `load`.
    """

    __slots__ = ("_commitment", "_matrix", "_seed", "_target", "bits", "owner", "shape", "version")

    owner: str
    shape: tuple[int, ...]
    bits: int
    version: int
    _seed: bytes
    _commitment: str
    _matrix: torch.Tensor | None
    _target: torch.Tensor | None

    def __init__(self, owner: str, *, shape: Sequence[int], bits: int, seed: bytes) -> None:
        if not isinstance(seed, bytes) or len(seed) != SEED_BYTES:
            raise ConfigError(
                f"A seed must be exactly {SEED_BYTES} bytes; "
                "leave it out to draw one from the operating system."
            )
        values = {
            "owner": _check_owner(owner),
            "shape": _check_shape(shape),
            "bits": _check_bits(bits),
            "version": SCHEME_VERSION,
            "_seed": seed,
            "_matrix": None,
            "_target": None,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        committed = hashlib.sha256(self._encode("commitment") + seed)
        object.__setattr__(self, "_commitment", committed.hexdigest())

    @classmethod
    def generate(
        cls,
        owner: str,
        *,
        shape: Sequence[int],
        bits: int | None = None,
        seed: bytes | None = None,
    ) -> Key:
        """Draw a new key from the operating system's randomness.

        `owner` is the name to prove, 1 to 128 printable characters; `shape` is the shape of one
        sample's activation at the cut, e.g. (256, 8, 8); `bits` is the length k of the watermark,
        `default_bits(shape)` if not given.
        A given `seed` of 32 bytes makes a fixed key, for tests.
        """
        if seed is None:
            seed = secrets.token_bytes(SEED_BYTES)
        failure: ConfigError
        try:
            if bits is None:
                bits = default_bits(shape)
            return cls(owner, shape=shape, bits=bits, seed=seed)
        except ConfigError as error:
            # Raised again from a frame that does not hold the seed: some error reporters record
            # the local variables of every frame.
            failure = ConfigError(str(error))
        del seed
        raise failure

    @property
    def dimension(self) -> int:
        """The number d of activations at the cut: the product of `shape`."""
        return math.prod(self.shape)

    @property
    def commitment(self) -> str:
        """A SHA-256 hash over all fields and the seed, in hex; it is safe to publish.

        It hides the seed, which has 256 random bits, and it binds the owner to it, since a second
        key with the same commitment would be a collision of SHA-256.
        """
        return self._commitment

    @property
    def matrix(self) -> torch.Tensor:
        """The secret directions M, float32 (d, bits), entries N(0, 1); treat it as read-only.

        Row i belongs to entry i of the flattened activation (in the order of `shape`). It is
        derived at first use and kept.
        """
        if self._matrix is None:
            object.__setattr__(self, "_matrix", self.rows(0, self.dimension))
        assert self._matrix is not None
        return self._matrix

    @property
    def target(self) -> torch.Tensor:
        """The secret bits b, float32 (bits,) of zeros and ones; treat it as read-only."""
        if self._target is None:
            stream = self._keystream("target", 0, -(-self.bits // 8))
            octets = np.frombuffer(stream, dtype=np.uint8)
            bits = np.unpackbits(octets, count=self.bits, bitorder="little")
            object.__setattr__(self, "_target", torch.from_numpy(bits.astype(np.float32)))
        assert self._target is not None
        return self._target

    def rows(self, start: int, stop: int) -> torch.Tensor:
        """Rows `start` to `stop` (exclusive) of M, float32 (stop - start, bits), and no others.

        Memory: the result and a few megabytes.
        """
        if not 0 <= start <= stop <= self.dimension:
            raise ShapeError(
                f"Rows {start} to {stop} were asked for, but the matrix of this key has rows "
                f"0 to {self.dimension}; give 0 <= start <= stop <= {self.dimension}."
            )
        try:
            out = np.empty((stop - start, self.bits), dtype=np.float32)
        except MemoryError:
            size = (stop - start) * self.bits * 4 / 2**30
            raise ConfigError(
                f"{stop - start} rows of {self.bits} bits need {size:.1f} GiB, more than this "
                "machine can give; use fewer bits or derive fewer rows at a time."
            ) from None
        flat = out.reshape(-1)
        for begin in range(0, flat.size, _BLOCK_WORDS):
            block = flat[begin : begin + _BLOCK_WORDS]
            stream = self._keystream("matrix", 4 * (start * self.bits + begin), 4 * block.size)
            block[:] = _standard_normal(np.frombuffer(stream, dtype="<u4"))
        return torch.from_numpy(out)

    def statement(self) -> str:
        """One line to publish or timestamp before training; it reveals nothing of the seed."""
        public = self.signing_key().public_key().public_bytes_raw().hex()
        return (
            f"sigil-commitment v{self.version} owner={json.dumps(self.owner, ensure_ascii=False)} "
            f"shape={'x'.join(map(str, self.shape))} bits={self.bits} "
            f"commitment={self.commitment} evidence-key={public}"
        )

    def signing_key(self) -> Ed25519PrivateKey:
        """The Ed25519 key that signs evidence; its public half is part of `statement`."""
        return Ed25519PrivateKey.from_private_bytes(self._subkey("evidence"))

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        passphrase: str | None = None,
        overwrite: bool = False,
    ) -> None:
        """Write the key to a file that only its owner can read (mode 0600, less than 1 KB).

        With a `passphrase` the seed is encrypted. An existing file is left alone and refused,
        unless `overwrite` is true; the file at `path` is at any moment the old or the new one.
        """
        fields = keyfile.Fields(
            version=self.version,
            owner=self.owner,
            shape=self.shape,
            bits=self.bits,
            commitment=self.commitment,
            seed=self._seed,
        )
        keyfile.write(path, fields, passphrase=passphrase, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, passphrase: str | None = None) -> Key:
        """Read a key from a file; a missing, damaged or locked one raises `KeyFileError`."""
        fields = keyfile.read(path, passphrase=passphrase)
        if fields.version != SCHEME_VERSION:
            raise KeyFileError(
                f"{os.fspath(path)} holds a key of scheme version {fields.version}, but this "
                f"release knows version {SCHEME_VERSION}; install a release that knows it."
            )
        try:
            key = cls(fields.owner, shape=fields.shape, bits=fields.bits, seed=fields.seed)
        except ConfigError:
            key = None
        if key is None or (key.owner, key.commitment) != (fields.owner, fields.commitment):
            raise KeyFileError(
                f"{os.fspath(path)} contradicts itself: its owner, shape, bits and seed do not "
                "give the commitment it states; restore the file from a backup."
            )
        return key

    def _encode(self, purpose: str) -> bytes:
        """The canonical encoding of everything public and a purpose.

        Each field is preceded by its length and each integer has eight bytes, so two different
        sets of fields never share an encoding.
        """
        fields = (
            _DOMAIN,
            _integer(self.version),
            self.owner.encode(),
            b"".join(map(_integer, self.shape)),
            _integer(self.bits),
            purpose.encode(),
        )
        return b"".join(len(field).to_bytes(4, "big") + field for field in fields)

    def _subkey(self, purpose: str) -> bytes:
        hkdf = HKDF(algorithm=SHA256(), length=32, salt=_DOMAIN, info=self._encode(purpose))
        return hkdf.derive(self._seed)

    def _keystream(self, purpose: str, offset: int, size: int) -> bytes:
        """Bytes `offset` to `offset + size` of the purpose's stream."""
        block, skip = divmod(offset, 16)
        counter = modes.CTR(block.to_bytes(16, "big"))
        encryptor = Cipher(algorithms.AES256(self._subkey(purpose)), counter).encryptor()
        return encryptor.update(bytes(skip + size))[skip:]

    def __repr__(self) -> str:
        return (
            f"Key(owner={self.owner!r}, shape={self.shape}, bits={self.bits}, "
            f"commitment='{self.commitment[:12]}…')"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Key):
            return NotImplemented
        return self.commitment == other.commitment

    def __hash__(self) -> int:
        return hash(self.commitment)

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


def _integer(value: int) -> bytes:
    return value.to_bytes(8, "big")


def _check_owner(owner: str) -> str:
    """The name in Unicode's composed form (NFC): the same name gives the same key however typed."""
    name = unicodedata.normalize("NFC", owner) if isinstance(owner, str) else ""
    # Nothing invisible: two owners that look alike in a printed statement must be alike.
    if not (0 < len(name) <= MAX_OWNER and name.isprintable() and name == name.strip()):
        raise ConfigError(
            f"The owner's name must be 1 to {MAX_OWNER} printable characters, without line breaks, "
            "control characters or spaces at either end; give a name such as ACME."
        )
    return name


def _check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    try:
        sizes = tuple(operator.index(size) for size in shape)
    except TypeError:
        sizes = ()
    if not (1 <= len(sizes) <= MAX_AXES and min(sizes) >= 1 and math.prod(sizes) <= MAX_DIMENSION):
        raise ConfigError(
            f"The activation shape must be 1 to {MAX_AXES} positive whole numbers with a product "
            f"of at most {MAX_DIMENSION}, but it is {_shorten(shape)}; try (256, 8, 8)."
        )
    return sizes


def _check_bits(bits: int) -> int:
    try:
        count = operator.index(bits)
    except TypeError:
        count = 0
    if not 1 <= count <= MAX_BITS:
        raise ConfigError(
            f"The number of bits must be a whole number from 1 to {MAX_BITS}, but it is "
            f"{_shorten(bits)}; 50 is what the paper uses."
        )
    return count


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:39] + "…"


# The normal quantile function. With p = (u + 1/2)/2³² and q = p − 1/2:
#   |q| ≤ 0.425:  x = q·A(r)/B(r),  r = 0.425² − q²
#   otherwise:    x = ±C(r)/D(r),   r = √(−ln min(p, 1 − p)) − 1.6
# with polynomials of degree seven, constant term first: the coefficients of M. J. Wichura, "The
# percentage points of the normal distribution", Applied Statistics 37 (1988), algorithm AS 241.
# Its third region begins at √(−ln p) = 5; the smallest p here, 2⁻³³, is at 4.78.
# fmt: off
_A: Final = (
    3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
    1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
    3.3430575583588128105e4, 2.5090809287301226727e3,
)
_B: Final = (
    1.0, 4.2313330701600911252e1, 6.8718700749205790830e2,
    5.3941960214247511077e3, 2.1213794301586595867e4, 3.9307895800092710610e4,
    2.8729085735721942674e4, 5.2264952788528545610e3,
)
_C: Final = (
    1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
    3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
    2.27238449892691845833e-2, 7.74545014278341407640e-4,
)
_D: Final = (
    1.0, 2.05319162663775882187e0, 1.67638483018380384940e0,
    6.89767334985100004550e-1, 1.48103976427480074590e-1, 1.51986665636164571966e-2,
    5.47593808499534494600e-4, 1.05075007164441684324e-9,
)
# fmt: on
_LN2: Final = 0.69314718055994530942
_SQRT_HALF: Final = 0.70710678118654752440
_ATANH: Final = tuple(1.0 / (2 * n + 1) for n in range(12))


def _standard_normal(words: npt.NDArray[np.uint32]) -> _Floats:
    """One standard normal number a 32-bit word: Φ⁻¹((u + 1/2)/2³²), relative error < 1e-14."""
    p = words.astype(np.float64)
    p += 0.5
    p *= 2.0**-32  # exact: at most 33 significant bits
    q = p - 0.5
    r = 0.180625 - q * q
    # The central formula for all words, then the other one for the 15 % in the tails: cheaper than
    # gathering both parts. B has no root where it is used in vain.
    x = q * _polynomial(_A, r)
    x /= _polynomial(_B, r)
    tail = np.flatnonzero(r < 0.0)
    lower = p[tail]
    r = np.sqrt(-_log(np.minimum(lower, 1.0 - lower))) - 1.6
    magnitude = _polynomial(_C, r) / _polynomial(_D, r)
    x[tail] = np.where(lower < 0.5, -magnitude, magnitude)
    return x


def _polynomial(coefficients: tuple[float, ...], x: _Floats) -> _Floats:
    value: _Floats = x * coefficients[-1]
    value += coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        value *= x
        value += coefficient
    return value


def _log(x: _Floats) -> _Floats:
    """Natural logarithm of x = m·2ᵉ, √½ ≤ m < √2: e·ln 2 + 2·atanh((m − 1)/(m + 1))."""
    mantissa, exponent = np.frexp(x)  # exact
    small = mantissa < _SQRT_HALF
    mantissa[small] *= 2.0
    exponent[small] -= 1
    s = (mantissa - 1.0) / (mantissa + 1.0)
    result: _Floats = exponent * _LN2
    result += 2.0 * s * _polynomial(_ATANH, s * s)
    return result
