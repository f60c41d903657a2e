"""How likely is a watermark success rate (WSR) by chance: exact p-values, thresholds and words.

Null hypothesis: the ``k`` target bits are fair coin flips, independent of the suspect, which is
true when the key was committed before the suspect existed. Let ``n_j`` of ``N`` probes give bit
``j`` the value 1, ``w_j = 2 n_j - N`` and ``T = sum_j (2 b_j - 1) w_j``. Then
``WSR = 1/2 + T / (2 N k)``, and since only the signs ``2 b_j - 1`` are random::

    p = P( sum_j +-|w_j| >= T )

Nothing is assumed about the suspect: probes may agree as much as they like, the ``w_j`` are what
was observed. Write ``a_j`` for the non-zero ``|w_j|`` divided by their greatest common divisor
``g``, ``A = sum a_j`` and ``D`` for the *deficit*, the sum of the ``a_j`` whose sign is negative.
The event is ``D <= d`` with ``d = floor((A - T/g) / 2)``, so that ``p`` is the number of subsets of
the ``a_j`` with sum at most ``d``, divided by ``2^k``. It is found in one of three ways:

*Table.* Count the subsets of every sum up to ``d``, one weight after the other. Only positive
numbers are added, so the relative error is about ``k`` times 1.1e-16 at most, and up to 53 bits the
count has none at all.

*Tilted blocks*, for more than 1,000 bits or large tables. A subset of sum ``D`` gets the weight
``exp(-tilt D)``, with the tilt that puts the mean of ``D`` at ``d``; the tables of a few blocks of
weights are then convolved by FFT. The rounding of an FFT is relative to its largest value, and
tilting puts the largest value where the answer is: the relative error stays near 1e-12 even for
``p = 2^-3000``. Mass outside a window that holds all but 1e-20 of it (Hoeffding) is left out.

*Bound*, when a second of work would not do (``Tail.exact`` is then False; this depends on the
weights only, not on ``T``). Chernoff's bound
``exp(tilt d) prod (1 + exp(-tilt a_j)) / 2``, which equals
``min_t exp(-t T) prod cosh(t w_j)``, times a factor of at most one; see :func:`_log_bound`.

Worked example: three bits, four probes, counts of ones 4, 1, 2, so ``w = 4, -2, 0``. With target
bits 1, 0, 0 the statistic is ``T = 6``, which two of the eight sign patterns reach (the third weight
is zero):

>>> tail([4, -2, 0], 6).p
0.25
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import scipy  # loads scipy.fft and scipy.optimize, which take a second, only where they are used
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, expit

from sigil.errors import ShapeError, SigilError

PAPER_THRESHOLD = 0.70
"""The paper's fixed rule, ``WSR > 0.70``: reported beside a verdict, never instead of it."""

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

# Elementary steps that exact computation may take, about one nanosecond each.
_WORK_LIMIT = 10**9
# Longest table of doubles, 64 MB.
_LENGTH_LIMIT = 1 << 23
# Counts up to 2^1000 fit a double; a block of 512 leaves room for the FFT.
_TABLE_BITS = 1000
_BLOCK_BITS = 512
# Tilted probability that the window of the block method may leave out.
_LEFT_OUT = 1e-20
# Constant of the Berry-Esseen inequality for summands that are not identically distributed
# (I. G. Shevtsova, Doklady Mathematics 82, 2010).
_BERRY_ESSEEN = 0.56
_PLOT_POINTS = 2000
_PREFIXES = ("m", "b", "tr", "quadr", "quint", "sext", "sept", "oct", "non")


@dataclass(frozen=True)
class Tail:
    """The probability of a result at least this good by chance, as its decimal logarithm.

    ``log10_p`` is always finite. ``exact`` is False if it is a proven upper bound instead.
    """

    log10_p: float
    exact: bool

    @property
    def p(self) -> float:
        """The probability itself; 0.0 if it is too small for a float, where log10_p still holds."""
        return float(10.0**self.log10_p)


def p_value(ones: ArrayLike, target: ArrayLike, probes: int) -> Tail:
    """Probability that a random key does at least as well on this suspect as the target does.

    ``ones``: (k,) for each bit the number of probes for which the suspect gave 1.
    ``target``: (k,) the bits of the key, 0 or 1. ``probes``: the number of probes N.

    >>> in_words(p_value([512] * 50, [1] * 50, 512).log10_p)  # all of 50 bits right
    'one in 1.1 quadrillion'
    """
    counts = _integers(ones, "counts of ones")
    bits = _integers(target, "target bits")
    _positive(probes, "number of probes")
    if len(counts) != len(bits):
        raise ShapeError(
            f"There are {len(counts)} counts of ones but {len(bits)} target bits; "
            "give one count for each bit of the key."
        )
    if counts.min() < 0 or counts.max() > probes:
        raise SigilError(
            f"The counts of ones run from {counts.min()} to {counts.max()} but must lie between "
            f"0 and the number of probes, {probes}; count them over the same probes."
        )
    if bits.min() < 0 or bits.max() > 1:
        raise SigilError(
            f"The target bits run from {bits.min()} to {bits.max()} but must be 0 or 1; "
            "give the bits of the key."
        )
    weights = 2 * counts - probes
    return tail(weights, int(np.dot(2 * bits - 1, weights)))


def tail(weights: ArrayLike, statistic: int) -> Tail:
    """``P(sum_j +-|w_j| >= T)`` for fair and independent signs, the null distribution's tail.

    ``weights``: (k,) integers ``w_j = 2 n_j - N``; their signs do not matter. ``statistic``: ``T``,
    at most ``sum |w_j|`` (what cannot happen has no logarithm).
    """
    sizes, unit = _reduce(_integers(weights, "weights"))
    _whole(statistic, "statistic")
    total = int(sizes.sum())
    if statistic > total * unit:
        raise SigilError(
            f"The statistic {statistic} is larger than the sum of the weights, {total * unit}, "
            "so no choice of bits gives it; compute both from the same counts."
        )
    deficit = (total * unit - int(statistic)) // (2 * unit)
    bits = len(sizes)
    if deficit >= total:
        return Tail(0.0, exact=True)
    if deficit < sizes[0]:  # only one sign pattern of 2^k is as good
        return Tail(-math.log10(1 << bits), exact=True)
    blocks = _blocks(sizes)
    if blocks == 0:
        return Tail(_log_bound(sizes, deficit) / math.log(10.0), exact=False)
    if blocks == 1:
        subsets = float(_table(sizes, np.ones(bits), deficit).sum())
        return Tail(min(0.0, math.log10(math.ldexp(subsets, -bits))), exact=True)
    tilt = _tilt(sizes, deficit)
    start, law = _tilted(sizes, tilt, deficit, blocks)
    below = law[: deficit - start + 1]
    decay = np.exp(tilt * np.arange(1 - len(below), 1, dtype=np.float64))
    log_p = _log_moment(sizes, tilt) + tilt * deficit + math.log(float(np.sum(below * decay)))
    return Tail(min(0.0, log_p / math.log(10.0)), exact=True)


def threshold(weights: ArrayLike, *, probes: int, alpha: float) -> float:
    """Smallest success rate this suspect can show whose p-value is at most ``alpha``.

    ``weights``: (k,) as for :func:`tail`. ``math.inf`` if even a perfect match is not enough, which
    is so when fewer than ``log2(1 / alpha)`` weights differ from zero. Where :func:`tail` gives a
    bound, it is the smallest rate whose bound is at most ``alpha``.

    >>> threshold([512] * 50, probes=512, alpha=3e-7)  # 43 of 50 bits
    0.86
    """
    values = _integers(weights, "weights")
    _positive(probes, "number of probes")
    _within(values, probes)
    if not 0.0 < alpha < 1.0:
        raise SigilError(f"The level alpha is {alpha} but must lie between 0 and 1, such as 3e-7.")
    sizes, unit = _reduce(values)
    if math.log2(alpha) < -len(sizes):
        return math.inf
    total = int(sizes.sum())
    blocks = _blocks(sizes)
    if blocks == 0:
        deficit = _largest_bounded(sizes, math.log(alpha))
    elif blocks == 1:
        subsets = np.cumsum(_table(sizes, np.ones(len(sizes)), total))
        deficit = int(np.searchsorted(subsets, math.ldexp(alpha, len(sizes)), side="right")) - 1
        deficit = _largest_subset_sum(sizes, deficit)
    else:
        deficit = _largest_subset_sum(sizes, _largest_tilted(sizes, math.log(alpha), blocks))
    return 0.5 + unit * (total - 2 * deficit) / (2 * probes * len(values))


def correct(log10_p: float, tries: int) -> float:
    """Decimal logarithm of ``min(1, tries * p)``: the p-value after several keys or suspects.

    >>> correct(-9.0, 1000)
    -6.0
    """
    _positive(tries, "number of tries")
    return min(0.0, _checked(log10_p) + math.log10(tries))


def null_distribution(weights: ArrayLike, *, probes: int) -> tuple[Floats, Floats]:
    """Success rates that a random key reaches on this suspect and their probabilities, to draw.

    Returns the rates, ascending, at most 2,000 of them, and the probability of each; neighbouring
    rates are put together where there are more. Weights too large for an exact table are rounded
    first, by less than can be seen: use :func:`tail` for numbers.
    """
    values = _integers(weights, "weights")
    _positive(probes, "number of probes")
    _within(values, probes)
    sizes, unit = _reduce(values)
    total = int(sizes.sum())
    if _blocks(sizes) == 0:
        grain = -(-total // (100 * _PLOT_POINTS))
        sizes = (sizes + grain // 2) // grain
        sizes = sizes[sizes > 0]
        unit, total = unit * grain, int(sizes.sum())
    blocks = _blocks(sizes)
    law = np.zeros(total + 1)
    if blocks <= 1:
        law[:] = np.ldexp(_table(sizes, np.ones(len(sizes)), total), -len(sizes))
    else:
        start, window = _tilted(sizes, 0.0, total, blocks)
        law[start : start + len(window)] = window[: total + 1 - start]
    step = -(-len(law) // _PLOT_POINTS)
    edges = np.arange(0, len(law), step)
    last = np.append(edges[1:], len(law)) - 1
    middle = unit * ((edges + last) - float(total))
    return 0.5 + middle / (2 * probes * len(values)), np.add.reduceat(law, edges)


def in_words(log10_p: float) -> str:
    """A probability in the words of a report; below one in ten, N is rounded down, never up.

    >>> in_words(math.log10(2**-4)), in_words(math.log10(2**-50)), in_words(-300.2)
    ('one in 16', 'one in 1.1 quadrillion', 'one in 10^300')
    """
    exponent = -_checked(log10_p)
    if exponent <= 1.0:
        share = Fraction(10.0**-exponent).limit_denominator(10)
        return f"{share.numerator} in {share.denominator}"
    # A logarithm carries rounding; without this one in 16 could read one in 15.
    exponent += 1e-12
    if exponent < 6.0:
        return f"one in {math.floor(10.0**exponent):,}"
    if exponent < 33.0:
        group = int(exponent // 3)
        number = 10.0 ** (exponent - 3 * group)
        figure = math.floor(number * 10) / 10 if number < 100 else math.floor(number)
        return f"one in {figure:g} {_PREFIXES[group - 2]}illion"
    return f"one in 10^{math.floor(exponent)}"


def _reduce(weights: Integers) -> tuple[Integers, int]:
    """The non-zero ``|w_j|`` over their greatest common divisor, ascending, and that divisor."""
    sizes = np.sort(np.abs(weights[weights != 0]))
    unit = int(np.gcd.reduce(sizes)) if len(sizes) else 1
    return sizes // unit, unit


def _length(sizes: Integers) -> int:
    """Length of the circular convolution: a window that holds the deficit but for ``_LEFT_OUT``.

    By Hoeffding's inequality ``P(|D - E D| > h) <= 2 exp(-2 h^2 / sum a_j^2)`` at any tilt.
    """
    squares = float(np.sum(sizes.astype(np.float64) ** 2))
    window = 2.0 * math.sqrt(squares * math.log(2.0 / _LEFT_OUT) / 2.0)
    return int(scipy.fft.next_fast_len(min(int(window) + 3, int(sizes.sum()) + 1), real=True))


def _blocks(sizes: Integers) -> int:
    """Blocks that make the exact law cheapest: 1 is the plain table, 0 is too much work."""
    bits, total = len(sizes), int(sizes.sum())
    length = _length(sizes)
    transform = length * math.log2(length + 1)
    # Tables of n blocks take k A / 2 n steps, their transforms n L log L: equal parts are best.
    blocks = max(2, -(-bits // _BLOCK_BITS), round(math.sqrt(bits * total / (2 * transform))))
    work = bits * total / (2 * blocks) + blocks * transform
    longest = max(length, total // blocks)
    # Half of the sums matter when the target does better than chance.
    table = bits * total / 4
    if bits <= _TABLE_BITS and table <= work:
        blocks, work, longest = 1, table, total
    return blocks if work <= _WORK_LIMIT and longest <= _LENGTH_LIMIT else 0


def _table(sizes: Integers, factors: Floats, highest: int) -> Floats:
    """Sum over the subsets of each sum 0..highest of the product of their factors."""
    table = np.zeros(min(int(sizes.sum()), highest) + 1)
    table[0] = 1.0
    filled = 1
    for size, factor in zip(sizes.tolist(), factors.tolist(), strict=True):
        filled = min(filled + size, len(table))
        if filled > size:
            table[size:filled] += factor * table[: filled - size]
    return table


def _tilted(sizes: Integers, tilt: float, highest: int, blocks: int) -> tuple[int, Floats]:
    """Law of the deficit under ``exp(-tilt D)``, from the returned start; valid up to highest."""
    factors = np.exp(-tilt * sizes)
    length = _length(sizes)
    spectrum = np.ones(length // 2 + 1, dtype=np.complex128)
    for block in range(blocks):
        part = factors[block::blocks]
        table = _table(sizes[block::blocks], part, highest) * np.prod(1.0 / (1.0 + part))
        if len(table) > length:
            rows = -(-len(table) // length)
            table = np.pad(table, (0, rows * length - len(table))).reshape(rows, length).sum(axis=0)
        spectrum *= scipy.fft.rfft(table, length)
    law = np.maximum(scipy.fft.irfft(spectrum, length), 0.0)
    # The convolution is circular: the window around the mean says which turn each place is on.
    mean = _mean(sizes, tilt)
    start = min(max(0, int(mean) - length // 2), max(0, int(sizes.sum()) + 1 - length))
    return start, np.roll(law, -(start % length))


def _log_moment(sizes: Integers, tilt: float) -> float:
    """``log E exp(-tilt D)`` under the null."""
    return float(np.sum(np.log1p(np.exp(-tilt * sizes)) - math.log(2.0)))


def _mean(sizes: Integers, tilt: float) -> float:
    """Mean of the tilted deficit."""
    # Not np.dot: its threads make a short product slow on a busy machine.
    return float(np.sum(sizes * expit(-tilt * sizes)))


def _tilt(sizes: Integers, deficit: int) -> float:
    """Tilt whose mean deficit is ``deficit``; 0 from the middle of the distribution on."""
    total = int(sizes.sum())
    wanted = max(float(deficit), 0.5)
    if wanted >= total / 2:
        return 0.0
    # sum a / (1 + e^(t a)) <= A e^-t, so that the upper end is past the root.
    return float(
        scipy.optimize.brentq(
            lambda tilt: _mean(sizes, tilt) - wanted,
            0.0,
            math.log(total / wanted),
            xtol=1e-300,
            rtol=1e-12,
        )
    )


def _log_bound(sizes: Integers, deficit: int) -> float:
    """Natural logarithm of a proven upper bound of ``P(D <= d)``.

    With ``M = E exp(-t D)`` and ``Q`` the measure tilted by ``exp(-t D) / M``,
    ``P(D <= d) = M exp(t d) E_Q[exp(-t V); V >= 0]`` with ``V = d - D``, for any ``t >= 0``. The
    expectation is at most 1, which gives Chernoff's bound. It is also
    ``int_0^inf t exp(-t v) Q(0 <= V <= v) dv``, and by the inequality of Berry and Esseen
    ``Q(0 <= V <= v)`` differs from its value for a normal variable of the same mean and variance by
    at most twice ``0.56 sum E|X_j - E X_j|^3 / sd^3``. So it is at most the normal integral plus
    that. Every ``t`` gives a valid bound; the root taken only makes it tight.
    """
    tilt = _tilt(sizes, deficit)
    if tilt == 0.0:
        return 0.0
    scale = sizes.astype(np.float64)
    share = expit(-tilt * scale)
    spread = share * (1.0 - share)
    deviation = math.sqrt(float(np.sum(scale**2 * spread)))
    third = float(np.sum(scale**3 * spread * (share**2 + (1.0 - share) ** 2)))
    margin = (deficit - _mean(sizes, tilt)) / deviation
    normal = 0.5 * math.exp(-(margin**2) / 2) * erfcx((tilt * deviation - margin) / math.sqrt(2))
    factor = min(1.0, float(normal) + 2.0 * _BERRY_ESSEEN * third / deviation**3)
    return min(0.0, _log_moment(sizes, tilt) + tilt * deficit + math.log(factor))


def _largest_bounded(sizes: Integers, log_alpha: float) -> int:
    """A deficit whose bound is at most alpha while the bound of the next is above."""
    within, beyond = 0, (int(sizes.sum()) + 1) // 2
    while beyond - within > 1:
        middle = (within + beyond) // 2
        if _log_bound(sizes, middle) <= log_alpha:
            within = middle
        else:
            beyond = middle
    return within


def _largest_tilted(sizes: Integers, log_alpha: float, blocks: int) -> int:
    """Largest deficit ``d`` with ``P(D <= d) <= alpha``, from the law tilted towards it."""
    near = _largest_bounded(sizes, log_alpha)
    tilt = _tilt(sizes, near)
    total = int(sizes.sum())
    start, law = _tilted(sizes, tilt, total, blocks)
    rise = tilt * np.arange(start - near, start - near + len(law), dtype=np.float64)
    # Beyond e^700 the sum is far above alpha; cutting there avoids an overflow.
    sums = np.cumsum(law * np.exp(np.minimum(rise, 700.0)))
    limit = math.exp(log_alpha - _log_moment(sizes, tilt) - tilt * near)
    found = start + int(np.searchsorted(sums, limit, side="right")) - 1
    return min(max(0, found), total)


def _largest_subset_sum(sizes: Integers, highest: int) -> int:
    """Largest sum of a subset that is at most ``highest``: bit ``s`` of a number marks sum s."""
    mask = (1 << (highest + 1)) - 1
    sums = 1
    for size in sizes.tolist():
        sums |= (sums << size) & mask
    return sums.bit_length() - 1


def _checked(log10_p: float) -> float:
    if not (math.isfinite(log10_p) and log10_p <= 0.0):
        raise SigilError(
            f"The logarithm of a p-value is {log10_p} but must be finite and at most 0; "
            "give log10_p of a Tail or a report."
        )
    return float(log10_p)


def _whole(number: int, name: str) -> None:
    if isinstance(number, bool) or not isinstance(number, int | np.integer):
        raise SigilError(f"The {name} is {number!r} but must be a whole number.")


def _positive(number: int, name: str) -> None:
    _whole(number, name)
    if not 1 <= number <= 2**53:
        raise SigilError(f"The {name} is {number} but must lie between 1 and 2^53.")


def _within(weights: Integers, probes: int) -> None:
    if int(np.abs(weights).max()) > probes:
        raise SigilError(
            f"A weight is {int(np.abs(weights).max())} but cannot exceed the number of probes, "
            f"{probes}; compute weights as 2 * ones - probes."
        )


def _integers(values: ArrayLike, name: str) -> Integers:
    """The values as a vector of integers whose sums cannot overflow."""
    array = np.asarray(values)
    if array.ndim != 1 or len(array) == 0:
        raise ShapeError(f"The {name} have the shape {array.shape} but must be a list with one number a bit.")
    if array.dtype.kind not in "biuf" or not np.all(np.isfinite(array) & (array == np.rint(array))):
        raise SigilError(f"The {name} must be whole numbers; give counts, not shares.")
    if float(np.abs(array.astype(np.float64)).max()) * len(array) > 2.0**61:
        raise SigilError(f"The {name} are too large to add up; use fewer probes.")
    return array.astype(np.int64)
