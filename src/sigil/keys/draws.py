"""Numbers drawn from a key's stream, the same to the last bit on every platform and library version.

- AES-256 in counter mode turns a subkey into a stream of bytes. Block i of the stream is the
  encryption of the number i, so any part of the stream is derived without the rest of it.
- A normal number is the 32-bit little-endian word u at its place in the stream, taken through the
  normal quantile function at (u + 1/2)/2³² in float64.
- The quantile function is a rational approximation written with + − × ÷ and √ alone. IEEE 754
  demands the correctly rounded result of these five, so there is one possible answer; each is a
  NumPy call of its own, so no compiler can fuse two of them. The logarithm that the tails need is
  built from the same five, because the one of the system's maths library differs in its last bit
  between platforms.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from sigil.errors import ConfigError, ShapeError, shown

# Words that are turned into numbers at a time: the float64 intermediates stay in the cache, and the
# memory needed beside the result stays at a few megabytes whatever the shape.
BLOCK_WORDS: Final = 1 << 16

Floats = npt.NDArray[np.float64]


class KeyStream:
    """The stream of one subkey, read at any place."""

    __slots__ = ("_subkey",)

    def __init__(self, subkey: bytes) -> None:
        self._subkey = subkey

    def octets(self, offset: int, size: int) -> bytes:
        """Bytes `offset` to `offset + size` of the stream."""
        block, skip = divmod(offset, 16)
        counter = modes.CTR(block.to_bytes(16, "big"))
        encryptor = Cipher(algorithms.AES256(self._subkey), counter).encryptor()
        return encryptor.update(bytes(skip + size))[skip:]

    def bits(self, count: int) -> npt.NDArray[np.uint8]:
        """The first `count` bits, the lowest of each byte first: (count,) of zeros and ones."""
        octets = np.frombuffer(self.octets(0, -(-count // 8)), dtype=np.uint8)
        return np.unpackbits(octets, count=count, bitorder="little")

    def normals(self, start: int, stop: int, shape: tuple[int, ...], *, what: str) -> npt.NDArray[np.float32]:
        """Standard normal numbers (stop - start, *shape), rows `start` to `stop` of an endless table."""
        size = math.prod(shape)
        try:
            out = np.empty((stop - start, *shape), dtype=np.float32)
        except MemoryError:
            raise ConfigError(
                f"{stop - start} {what} need {(stop - start) * size * 4 / 2**30:.1f} GiB, more than this "
                "machine can give; use fewer bits or derive fewer at a time."
            ) from None
        self.fill_normal(out, start=start * size)
        return out

    def fill_normal(self, out: npt.NDArray[np.float32], *, start: int = 0, scale: float = 1.0) -> None:
        """Fill `out` with normal numbers of standard deviation `scale`, from word `start` on."""
        for block, words in self._blocks(out, start):
            numbers = standard_normal(words)
            if scale != 1.0:
                numbers *= scale
            block[:] = numbers

    def fill_uniform(self, out: npt.NDArray[np.float32], *, bound: float) -> None:
        """Fill `out` with numbers between −`bound` and `bound`, one 32-bit word each."""
        for block, words in self._blocks(out, 0):
            numbers = words.astype(np.float64)
            numbers += 0.5
            numbers *= 2.0**-31
            numbers -= 1.0  # exact, and never zero: the sign is the word's highest bit
            numbers *= bound
            block[:] = numbers

    def words(self, start: int, count: int) -> npt.NDArray[np.uint64]:
        """`count` 64-bit little-endian words from word `start` on."""
        return np.frombuffer(self.octets(8 * start, 8 * count), dtype="<u8").astype(np.uint64)

    def choose(self, count: int, population: int) -> list[int]:
        """`count` different numbers below `population`, every ordered choice equally likely.

        The first steps of Fisher and Yates' shuffle: draw i is uniform on what is left. A 64-bit
        word that would favour small numbers is skipped.
        """
        moved: dict[int, int] = {}
        chosen = []
        words = (word for start in itertools.count(0, 1024) for word in self.words(start, 1024).tolist())
        for i in range(count):
            left = population - i
            limit = 2**64 - 2**64 % left
            word = next(word for word in words if word < limit)
            j = i + word % left
            chosen.append(moved.get(j, j))
            moved[j] = moved.get(i, i)
        return chosen

    def deal(self, bits: int, *, clients: int, carriers: int) -> npt.NDArray[np.bool_]:
        """(clients, bits): every bit has `carriers` clients, whose numbers of bits differ by one at most.

        Bit by bit, the clients that carry least take it; the stream decides between those that carry
        equally much, by one 64-bit word per client and bit.
        """
        mask = np.zeros((clients, bits), dtype=np.bool_)
        load = np.zeros(clients, dtype=np.int64)
        for bit in range(bits):
            lots = self.words(bit * clients, clients)
            chosen = np.lexsort((lots, load))[:carriers]
            mask[chosen, bit] = True
            load[chosen] += 1
        return mask

    def _blocks(
        self, out: npt.NDArray[np.float32], start: int
    ) -> Iterator[tuple[npt.NDArray[np.float32], npt.NDArray[np.uint32]]]:
        flat = out.reshape(-1)
        for begin in range(0, flat.size, BLOCK_WORDS):
            block = flat[begin : begin + BLOCK_WORDS]
            stream = self.octets(4 * (start + begin), 4 * block.size)
            yield block, np.frombuffer(stream, dtype="<u4")


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


def standard_normal(words: npt.NDArray[np.uint32]) -> Floats:
    """One standard normal number per 32-bit word: Φ⁻¹((u + 1/2)/2³²), relative error < 1e-14."""
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


def _polynomial(coefficients: tuple[float, ...], x: Floats) -> Floats:
    value: Floats = x * coefficients[-1]
    value += coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        value *= x
        value += coefficient
    return value


def _log(x: Floats) -> Floats:
    """Natural logarithm of x = m·2ᵉ, √½ ≤ m < √2: e·ln 2 + 2·atanh((m − 1)/(m + 1))."""
    mantissa, exponent = np.frexp(x)  # exact
    small = mantissa < _SQRT_HALF
    mantissa[small] *= 2.0
    exponent[small] -= 1
    s = (mantissa - 1.0) / (mantissa + 1.0)
    result: Floats = exponent * _LN2
    result += 2.0 * s * _polynomial(_ATANH, s * s)
    return result


def span(what: str, start: int, stop: int, end: int) -> tuple[int, int]:
    """The bounds of a part of a table that has `end` rows, each of which is a `what`."""
    if not 0 <= start <= stop <= end:
        raise ShapeError(
            f"{what.capitalize()}s {shown(start)} to {shown(stop)} were asked for, but this key has {what}s "
            f"0 to {end}; give 0 <= start <= stop <= {end}."
        )
    return operator.index(start), operator.index(stop)
