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

*Bound*, when a second of work would not do (this depends on the weights only, not on
``d``). Chernoff's bound
``exp(tilt d) prod (1 + exp(-tilt a_j)) / 2``, which equals
``min_t exp(-t T) prod cosh(t a_j)`` for ``T = sum a_j - 2 d``, times a factor of at most one; see
:func:`log_bound`.

Worked example: three bits, four probes, counts of ones 4, 1, 2, so ``w = 4, -2, 0``. With target
bits 1, 0, 0 the statistic is ``T = 6``, which two of the eight sign patterns reach (the third weight
is zero):

>>> tail([4, -2, 0], 6).p
0.25
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import scipy  # loads scipy.fft and scipy.optimize, which take a second, only where they are used
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, expit

from sigil.errors import ShapeError, SigilError

PAPER_THRESHOLD = 0.70
"""The paper's fixed rule, ``WSR > 0.70``: reported beside a verdict, never instead of it."""

_PLOT_POINTS = 2000
_PREFIXES = ("m", "b", "tr", "quadr", "quint", "sext", "sept", "oct", "non")


Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

# Elementary steps that exact computation may take, about one nanosecond each.
_WORK_LIMIT = 10**9
# Longest table of doubles, 64 MB.
_LENGTH_LIMIT = 1 << 23
# Counts up to 2^1000 fit a double; a block of 512 leaves room for the FFT.
_TABLE_BITS = 1000
_BLOCK_BITS = 512
# Tilted probability that the windows of the transforms may leave out.
_LEFT_OUT = 1e-20
# Constant of the Berry-Esseen inequality for summands that are not identically distributed
# (I. G. Shevtsova, Doklady Mathematics 82, 2010).
_BERRY_ESSEEN = 0.56
MAX_COINS: Final = 2**36
MAX_WEIGHT: Final = 64
# Points of the transform that are evaluated at once.
_BLOCK: Final = 1 << 16
# The exponential of less is 0 in double precision.
_VANISHED: Final = -750.0


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
    sizes, unit = reduced(_integers(weights, "weights"))
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
    blocks = best_blocks(sizes)
    if blocks == 0:
        return Tail(log_bound(sizes, deficit) / math.log(10.0), exact=False)
    if blocks == 1:
        subsets = float(subset_table(sizes, np.ones(bits), deficit).sum())
        return Tail(min(0.0, math.log10(math.ldexp(subsets, -bits))), exact=True)
    tilt = tilt_towards(sizes, deficit)
    start, law = tilted_law(sizes, tilt, deficit, blocks)
    below = law[: deficit - start + 1]
    decay = np.exp(tilt * np.arange(1 - len(below), 1, dtype=np.float64))
    log_p = log_moment(sizes, tilt) + tilt * deficit + math.log(float(np.sum(below * decay)))
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
    sizes, unit = reduced(values)
    if math.log2(alpha) < -len(sizes):
        return math.inf
    total = int(sizes.sum())
    blocks = best_blocks(sizes)
    if blocks == 0:
        deficit = largest_bounded(sizes, math.log(alpha))
    elif blocks == 1:
        subsets = np.cumsum(subset_table(sizes, np.ones(len(sizes)), total))
        deficit = int(np.searchsorted(subsets, math.ldexp(alpha, len(sizes)), side="right")) - 1
        deficit = largest_subset_sum(sizes, deficit)
    else:
        deficit = largest_subset_sum(sizes, largest_tilted(sizes, math.log(alpha), blocks))
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
    sizes, unit = reduced(values)
    total = int(sizes.sum())
    if best_blocks(sizes) == 0:
        grain = -(-total // (100 * _PLOT_POINTS))
        sizes = (sizes + grain // 2) // grain
        sizes = sizes[sizes > 0]
        unit, total = unit * grain, int(sizes.sum())
    blocks = best_blocks(sizes)
    law = np.zeros(total + 1)
    if blocks <= 1:
        law[:] = np.ldexp(subset_table(sizes, np.ones(len(sizes)), total), -len(sizes))
    else:
        start, window = tilted_law(sizes, 0.0, total, blocks)
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


def reduced(weights: Integers) -> tuple[Integers, int]:
    """The non-zero ``|w_j|`` over their greatest common divisor, ascending, and that divisor."""
    sizes = np.sort(np.abs(weights[weights != 0]))
    unit = int(np.gcd.reduce(sizes)) if len(sizes) else 1
    return sizes // unit, unit


def window_length(sizes: Integers, counts: Integers | int = 1) -> int:
    """Length of the circular convolution: a window that holds the deficit but for ``_LEFT_OUT``.

    By Hoeffding's inequality ``P(|D - E D| > h) <= 2 exp(-2 h^2 / sum a_j^2)`` at any tilt. Of each size
    there are ``counts``.
    """
    squares = float(np.sum(sizes.astype(np.float64) ** 2 * counts))
    window = 2.0 * math.sqrt(squares * math.log(2.0 / _LEFT_OUT) / 2.0)
    return int(scipy.fft.next_fast_len(min(int(window) + 3, int(np.sum(sizes * counts)) + 1), real=True))


def _law(spectrum: NDArray[np.complex128], length: int, mean: float, total: int) -> tuple[int, Floats]:
    """The law with this transform, from the returned start on.

    The convolution is circular: the window around the mean says which turn each place is on.
    """
    law = np.maximum(scipy.fft.irfft(spectrum, length), 0.0)
    start = min(max(0, int(mean) - length // 2), max(0, total + 1 - length))
    return start, np.roll(law, -(start % length))


def best_blocks(sizes: Integers) -> int:
    """Blocks that make the exact law cheapest: 1 is the plain table, 0 is too much work."""
    bits, total = len(sizes), int(sizes.sum())
    length = window_length(sizes)
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


def subset_table(sizes: Integers, factors: Floats, highest: int) -> Floats:
    """Sum over the subsets of each sum 0..highest of the product of their factors."""
    table = np.zeros(min(int(sizes.sum()), highest) + 1)
    table[0] = 1.0
    filled = 1
    for size, factor in zip(sizes.tolist(), factors.tolist(), strict=True):
        filled = min(filled + size, len(table))
        if filled > size:
            table[size:filled] += factor * table[: filled - size]
    return table


def tilted_law(sizes: Integers, tilt: float, highest: int, blocks: int) -> tuple[int, Floats]:
    """Law of the deficit under ``exp(-tilt D)``, from the returned start; valid up to highest."""
    factors = np.exp(-tilt * sizes)
    length = window_length(sizes)
    spectrum = np.ones(length // 2 + 1, dtype=np.complex128)
    for block in range(blocks):
        part = factors[block::blocks]
        table = subset_table(sizes[block::blocks], part, highest) * np.prod(1.0 / (1.0 + part))
        if len(table) > length:
            rows = -(-len(table) // length)
            table = np.pad(table, (0, rows * length - len(table))).reshape(rows, length).sum(axis=0)
        spectrum *= scipy.fft.rfft(table, length)
    return _law(spectrum, length, tilted_mean(sizes, tilt), int(sizes.sum()))


def log_moment(sizes: Integers, tilt: float, counts: Integers | int = 1) -> float:
    """``log E exp(-tilt D)`` under the null; of each size there are ``counts``."""
    return float(np.sum(counts * (np.log1p(np.exp(-tilt * sizes)) - math.log(2.0))))


def tilted_mean(sizes: Integers, tilt: float, counts: Integers | int = 1) -> float:
    """Mean of the tilted deficit; of each size there are ``counts``."""
    # Not np.dot: its threads make a short product slow on a busy machine.
    return float(np.sum(sizes * counts * expit(-tilt * sizes)))


def tilt_towards(sizes: Integers, deficit: int, counts: Integers | int = 1) -> float:
    """Tilt whose mean deficit is ``deficit``; 0 from the middle of the distribution on."""
    total = int(np.sum(sizes * counts))
    wanted = max(float(deficit), 0.5)
    if wanted >= total / 2:
        return 0.0
    # sum a / (1 + e^(t a)) <= A e^-t, so that the upper end is past the root.
    return float(
        scipy.optimize.brentq(
            lambda tilt: tilted_mean(sizes, tilt, counts) - wanted,
            0.0,
            math.log(total / wanted),
            xtol=1e-300,
            rtol=1e-12,
        )
    )


def log_bound(sizes: Integers, deficit: int) -> float:
    """Natural logarithm of a proven upper bound of ``P(D <= d)``.

    With ``M = E exp(-t D)`` and ``Q`` the measure tilted by ``exp(-t D) / M``,
    ``P(D <= d) = M exp(t d) E_Q[exp(-t V); V >= 0]`` with ``V = d - D``, for any ``t >= 0``. The
    expectation is at most 1, which gives Chernoff's bound. It is also
    ``int_0^inf t exp(-t v) Q(0 <= V <= v) dv``, and by the inequality of Berry and Esseen
    ``Q(0 <= V <= v)`` differs from its value for a normal variable of the same mean and variance by
    at most twice ``0.56 sum E|X_j - E X_j|^3 / sd^3``. So it is at most the normal integral plus
    that. Every ``t`` gives a valid bound; the root taken only makes it tight.
    """
    tilt = tilt_towards(sizes, deficit)
    if tilt == 0.0:
        return 0.0
    scale = sizes.astype(np.float64)
    share = expit(-tilt * scale)
    spread = share * (1.0 - share)
    deviation = math.sqrt(float(np.sum(scale**2 * spread)))
    third = float(np.sum(scale**3 * spread * (share**2 + (1.0 - share) ** 2)))
    margin = (deficit - tilted_mean(sizes, tilt)) / deviation
    normal = 0.5 * math.exp(-(margin**2) / 2) * erfcx((tilt * deviation - margin) / math.sqrt(2))
    factor = min(1.0, float(normal) + 2.0 * _BERRY_ESSEEN * third / deviation**3)
    return min(0.0, log_moment(sizes, tilt) + tilt * deficit + math.log(factor))


def largest_bounded(sizes: Integers, log_alpha: float) -> int:
    """A deficit whose bound is at most alpha while the bound of the next is above."""
    within, beyond = 0, (int(sizes.sum()) + 1) // 2
    while beyond - within > 1:
        middle = (within + beyond) // 2
        if log_bound(sizes, middle) <= log_alpha:
            within = middle
        else:
            beyond = middle
    return within


def largest_tilted(sizes: Integers, log_alpha: float, blocks: int) -> int:
    """Largest deficit ``d`` with ``P(D <= d) <= alpha``, from the law tilted towards it."""
    near = largest_bounded(sizes, log_alpha)
    tilt = tilt_towards(sizes, near)
    total = int(sizes.sum())
    start, law = tilted_law(sizes, tilt, total, blocks)
    rise = tilt * np.arange(start - near, start - near + len(law), dtype=np.float64)
    # Beyond e^700 the sum is far above alpha; cutting there avoids an overflow.
    sums = np.cumsum(law * np.exp(np.minimum(rise, 700.0)))
    limit = math.exp(log_alpha - log_moment(sizes, tilt) - tilt * near)
    largest = start + int(np.searchsorted(sums, limit, side="right")) - 1
    return min(max(0, largest), total)


def largest_subset_sum(sizes: Integers, highest: int) -> int:
    """Largest sum of a subset that is at most ``highest``: bit ``s`` of a number marks sum s."""
    mask = (1 << (highest + 1)) - 1
    sums = 1
    for size in sizes.tolist():
        sums |= (sums << size) & mask
    return sums.bit_length() - 1


def log10_tail(positive: Sequence[int], coins: Sequence[int], weights: Sequence[int]) -> float:
    """The decimal logarithm of the probability that fair coins sum up to at least as much; at most 0.

    Of ``n_q`` coins of the whole weight ``q`` each shows ``+q`` or ``-q``, so that with ``a_q`` of them
    positive the sum is ``T = sum_q q (2 a_q - n_q)``. What is wanted is the probability of a sum at least
    as large by chance. With the *deficit* ``D = sum_q q (n_q - a_q)`` that is ``P(D <= d)``, where ``d``
    was observed.

    A deficit of ``D`` gets the weight ``exp(-t D)``, with the tilt ``t`` that puts its mean at ``d``. The
    tilted coins are independent, so that the generating function of their deficit is a product of a few
    powers, which is evaluated at the points of an FFT: with ``M = E exp(-t D)`` and ``Q`` the tilted law,

        P(D <= d) = M exp(t d) sum_{D <= d} Q(D) exp(-t (d - D)).

    Rounding in an FFT is relative to its largest value, and tilting puts the largest value where the answer
    is. The mass outside the window of the transform is below 1e-20 (Hoeffding). For a million coins the
    relative error is below 1e-8 from p = 1 down to p = 10^-300,000.

    >>> round(10 ** log10_tail([8], [10], [1]), 4)  # (45 + 10 + 1) / 1024
    0.0547
    >>> round(10 ** log10_tail([0, 1], [1, 1], [1, 2]), 6)  # -1 + 2, which two of the four patterns reach
    0.5

    ``positive[j]`` of the ``coins[j]`` coins of the weight ``weights[j]`` are positive. A weight is a whole
    number, and coins of the weight 0 do not count.
    """
    if len(positive) != len(coins) or not all(
        0 <= up <= number for up, number in zip(positive, coins, strict=True)
    ):
        raise SigilError(
            f"{list(positive)} of {list(coins)} coins cannot be positive; count between none and all of them."
        )
    if len(weights) != len(coins) or not all(0 <= weight <= MAX_WEIGHT for weight in weights):
        raise SigilError(
            f"The weights of {len(coins)} kinds of coins are {list(weights)}; give each one from 0 to "
            f"{MAX_WEIGHT}."
        )
    if sum(coins) > MAX_COINS:
        raise SigilError(f"There are {sum(coins)} coins, but their tail is computed for at most 2^36.")
    deficit = sum(q * (n - a) for q, a, n in zip(weights, positive, coins, strict=True))
    return log10_at_most(deficit, coins, weights)


def log10_at_most(deficit: int, coins: Sequence[int], weights: Sequence[int]) -> float:
    """The decimal logarithm of P(D <= deficit); the deficit is at least 0."""
    kinds = [(q, n) for q, n in zip(weights, coins, strict=True) if q and n]
    total = sum(q * n for q, n in kinds)
    if deficit >= total:
        return 0.0
    sizes = np.array([q for q, _ in kinds], dtype=np.int64)
    counts = np.array([n for _, n in kinds], dtype=np.int64)
    tilt = tilt_towards(sizes, deficit, counts)
    start, law = _tilted_coins(sizes, counts, tilt, total)
    below = law[: max(0, deficit - start + 1)]
    decay = np.exp(tilt * np.arange(start - deficit, start - deficit + len(below), dtype=np.float64))
    log_p = log_moment(sizes, tilt, counts) + tilt * deficit + math.log(float(np.sum(below * decay)))
    return min(0.0, log_p / math.log(10.0))


def _tilted_coins(weights: Integers, counts: Integers, tilt: float, total: int) -> tuple[int, Floats]:
    """The law of the tilted deficit from the returned start on.

    No factor of the transform is larger than 1, so that a point at which some of them have vanished is left
    out of the rest: of many coins only a few hundred points remain.
    """
    length = window_length(weights, counts)
    spectrum = np.zeros(length // 2 + 1, dtype=np.complex128)
    for first in range(0, len(spectrum), _BLOCK):
        points: Integers = np.arange(first, min(first + _BLOCK, len(spectrum)))
        log_size: Floats = np.zeros(len(points))
        phase: Floats = np.zeros(len(points))
        for weight, count in zip(weights, counts, strict=True):
            share = float(expit(-tilt * weight))
            # Whole turns are taken off while they are whole numbers: a large angle would lose its digits.
            half = ((points * int(weight)) % length) * (-math.pi / length)
            sine, cosine = np.sin(half), np.cos(half)
            # The factor 1 - share + share e^{2i half}: its size squared in the form that keeps its digits.
            spread = 4.0 * share * (1.0 - share)
            with np.errstate(divide="ignore"):
                log_square = np.where(
                    np.abs(sine) < np.abs(cosine),
                    np.log1p(-spread * sine**2),
                    np.log((1.0 - 2.0 * share) ** 2 + spread * cosine**2),
                )
            log_size += 0.5 * count * log_square
            left = log_size > _VANISHED
            points, log_size, phase = points[left], log_size[left], phase[left]
            sine, cosine = sine[left], cosine[left]
            phase += count * np.arctan2(2.0 * share * sine * cosine, 1.0 - 2.0 * share * sine**2)
        spectrum[points] = np.exp(log_size) * (np.cos(phase) + 1j * np.sin(phase))
    return _law(spectrum, length, tilted_mean(weights, tilt, counts), total)


def _checked(log10_p: float) -> float:
    if not (math.isfinite(log10_p) and log10_p <= 0.0):
        raise SigilError(
            f"The logarithm of a p-value is {log10_p} but must be finite and at most 0; "
            "give log10_p of a Tail or a report."
        )
    return float(log10_p)


def _positive(number: int, name: str) -> None:
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
        raise ShapeError(
            f"The {name} have the shape {array.shape} but must be a list with one number per bit."
        )
    if array.dtype.kind not in "biuf" or not np.all(np.isfinite(array) & (array == np.rint(array))):
        raise SigilError(f"The {name} must be whole numbers; give counts, not shares.")
    if float(np.abs(array.astype(np.float64)).max()) * len(array) > 2.0**61:
        raise SigilError(f"The {name} are too large to add up; use fewer probes.")
    return array.astype(np.int64)
