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
the ``a_j`` with sum at most ``d``, divided by ``2^k``: :mod:`sigil.sign_sums` finds it.

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
from numpy.typing import ArrayLike

from sigil import sign_sums
from sigil.errors import ShapeError, SigilError
from sigil.sign_sums import Floats, Integers

PAPER_THRESHOLD = 0.70
"""The paper's fixed rule, ``WSR > 0.70``: reported beside a verdict, never instead of it."""

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
    sizes, unit = sign_sums.reduced(_integers(weights, "weights"))
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
    blocks = sign_sums.best_blocks(sizes)
    if blocks == 0:
        return Tail(sign_sums.log_bound(sizes, deficit) / math.log(10.0), exact=False)
    if blocks == 1:
        subsets = float(sign_sums.subset_table(sizes, np.ones(bits), deficit).sum())
        return Tail(min(0.0, math.log10(math.ldexp(subsets, -bits))), exact=True)
    tilt = sign_sums.tilt_towards(sizes, deficit)
    start, law = sign_sums.tilted_law(sizes, tilt, deficit, blocks)
    below = law[: deficit - start + 1]
    decay = np.exp(tilt * np.arange(1 - len(below), 1, dtype=np.float64))
    log_p = sign_sums.log_moment(sizes, tilt) + tilt * deficit + math.log(float(np.sum(below * decay)))
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
    sizes, unit = sign_sums.reduced(values)
    if math.log2(alpha) < -len(sizes):
        return math.inf
    total = int(sizes.sum())
    blocks = sign_sums.best_blocks(sizes)
    if blocks == 0:
        deficit = sign_sums.largest_bounded(sizes, math.log(alpha))
    elif blocks == 1:
        subsets = np.cumsum(sign_sums.subset_table(sizes, np.ones(len(sizes)), total))
        deficit = int(np.searchsorted(subsets, math.ldexp(alpha, len(sizes)), side="right")) - 1
        deficit = sign_sums.largest_subset_sum(sizes, deficit)
    else:
        deficit = sign_sums.largest_subset_sum(
            sizes, sign_sums.largest_tilted(sizes, math.log(alpha), blocks)
        )
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
    sizes, unit = sign_sums.reduced(values)
    total = int(sizes.sum())
    if sign_sums.best_blocks(sizes) == 0:
        grain = -(-total // (100 * _PLOT_POINTS))
        sizes = (sizes + grain // 2) // grain
        sizes = sizes[sizes > 0]
        unit, total = unit * grain, int(sizes.sum())
    blocks = sign_sums.best_blocks(sizes)
    law = np.zeros(total + 1)
    if blocks <= 1:
        law[:] = np.ldexp(sign_sums.subset_table(sizes, np.ones(len(sizes)), total), -len(sizes))
    else:
        start, window = sign_sums.tilted_law(sizes, 0.0, total, blocks)
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
        raise ShapeError(
            f"The {name} have the shape {array.shape} but must be a list with one number per bit."
        )
    if array.dtype.kind not in "biuf" or not np.all(np.isfinite(array) & (array == np.rint(array))):
        raise SigilError(f"The {name} must be whole numbers; give counts, not shares.")
    if float(np.abs(array.astype(np.float64)).max()) * len(array) > 2.0**61:
        raise SigilError(f"The {name} are too large to add up; use fewer probes.")
    return array.astype(np.int64)
