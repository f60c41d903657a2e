"""The law of a sum of weights with random signs, exact where that takes a second and bounded elsewhere.

For whole numbers ``a_j`` with fair and independent signs, the *deficit* ``D`` is the sum of the ``a_j`` whose
sign is negative. ``P(D <= d)``, the number of subsets with sum at most ``d`` over ``2^k``, is found in one of
three ways:

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
"""

from __future__ import annotations

import math

import numpy as np
import scipy  # loads scipy.fft and scipy.optimize, which take a second, only where they are used
from numpy.typing import NDArray
from scipy.special import erfcx, expit

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


def reduced(weights: Integers) -> tuple[Integers, int]:
    """The non-zero ``|w_j|`` over their greatest common divisor, ascending, and that divisor."""
    sizes = np.sort(np.abs(weights[weights != 0]))
    unit = int(np.gcd.reduce(sizes)) if len(sizes) else 1
    return sizes // unit, unit


def window_length(sizes: Integers) -> int:
    """Length of the circular convolution: a window that holds the deficit but for ``_LEFT_OUT``.

    By Hoeffding's inequality ``P(|D - E D| > h) <= 2 exp(-2 h^2 / sum a_j^2)`` at any tilt.
    """
    squares = float(np.sum(sizes.astype(np.float64) ** 2))
    window = 2.0 * math.sqrt(squares * math.log(2.0 / _LEFT_OUT) / 2.0)
    return int(scipy.fft.next_fast_len(min(int(window) + 3, int(sizes.sum()) + 1), real=True))


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
    law = np.maximum(scipy.fft.irfft(spectrum, length), 0.0)
    # The convolution is circular: the window around the mean says which turn each place is on.
    mean = tilted_mean(sizes, tilt)
    start = min(max(0, int(mean) - length // 2), max(0, int(sizes.sum()) + 1 - length))
    return start, np.roll(law, -(start % length))


def log_moment(sizes: Integers, tilt: float) -> float:
    """``log E exp(-tilt D)`` under the null."""
    return float(np.sum(np.log1p(np.exp(-tilt * sizes)) - math.log(2.0)))


def tilted_mean(sizes: Integers, tilt: float) -> float:
    """Mean of the tilted deficit."""
    # Not np.dot: its threads make a short product slow on a busy machine.
    return float(np.sum(sizes * expit(-tilt * sizes)))


def tilt_towards(sizes: Integers, deficit: int) -> float:
    """Tilt whose mean deficit is ``deficit``; 0 from the middle of the distribution on."""
    total = int(sizes.sum())
    wanted = max(float(deficit), 0.5)
    if wanted >= total / 2:
        return 0.0
    # sum a / (1 + e^(t a)) <= A e^-t, so that the upper end is past the root.
    return float(
        scipy.optimize.brentq(
            lambda tilt: tilted_mean(sizes, tilt) - wanted,
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
    found = start + int(np.searchsorted(sums, limit, side="right")) - 1
    return min(max(0, found), total)


def largest_subset_sum(sizes: Integers, highest: int) -> int:
    """Largest sum of a subset that is at most ``highest``: bit ``s`` of a number marks sum s."""
    mask = (1 << (highest + 1)) - 1
    sums = 1
    for size in sizes.tolist():
        sums |= (sums << size) & mask
    return sums.bit_length() - 1
