"""The tail of fair coins of several weights, exact, as a logarithm that never underflows.

Of ``n_q`` coins of the whole weight ``q`` each shows ``+q`` or ``-q``, so that with ``a_q`` of them positive
the sum is ``T = sum_q q (2 a_q - n_q)``. What is wanted is the probability of a sum at least as large by
chance. With the *deficit* ``D = sum_q q (n_q - a_q)`` that is ``P(D <= d)``, where ``d`` was observed.

A deficit of ``D`` gets the weight ``exp(-t D)``, with the tilt ``t`` that puts its mean at ``d``. The tilted
coins are independent, so that the generating function of their deficit is a product of a few powers, which is
evaluated at the points of an FFT: with ``M = E exp(-t D)`` and ``Q`` the tilted law,

    P(D <= d) = M exp(t d) sum_{D <= d} Q(D) exp(-t (d - D)).

Rounding in an FFT is relative to its largest value, and tilting puts the largest value where the answer is.
The mass outside the window of the transform is below 1e-20 (Hoeffding). For a million coins the relative
error is below 1e-8 from p = 1 down to p = 10^-300,000.

>>> round(10 ** log10_tail([8], [10], [1]), 6)  # (45 + 10 + 1) / 1024
0.054688
>>> round(10 ** log10_tail([0, 1], [1, 1], [1, 2]), 6)  # -1 + 2, which two of the four patterns reach
0.5
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import scipy  # loads scipy.fft and scipy.optimize, which take a second, only where they are used
from scipy.special import expit

from sigil.errors import SigilError

Floats = npt.NDArray[np.float64]

MAX_COINS: Final = 2**36
MAX_WEIGHT: Final = 64
# Tilted probability that the window of the transform may leave out.
_LEFT_OUT: Final = 1e-20
# Points of the transform that are evaluated at once.
_BLOCK: Final = 1 << 16


def log10_tail(positive: Sequence[int], coins: Sequence[int], weights: Sequence[int]) -> float:
    """The decimal logarithm of the probability that fair coins sum up to at least as much; at most 0.

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
    sizes = np.array([q for q, _ in kinds], dtype=np.float64)
    counts = np.array([n for _, n in kinds], dtype=np.float64)
    tilt = _tilt(sizes, counts, deficit, total)
    start, law = _tilted(sizes, counts, tilt, total)
    below = law[: max(0, deficit - start + 1)]
    decay = np.exp(tilt * np.arange(start - deficit, start - deficit + len(below), dtype=np.float64))
    log_moment = float(np.sum(counts * (np.log1p(np.exp(-tilt * sizes)) - math.log(2.0))))
    log_p = log_moment + tilt * deficit + math.log(float(np.sum(below * decay)))
    return min(0.0, log_p / math.log(10.0))


def _mean(weights: Floats, counts: Floats, tilt: float) -> float:
    """Mean of the tilted deficit."""
    return float(np.sum(weights * counts * expit(-tilt * weights)))


def _tilt(weights: Floats, counts: Floats, deficit: int, total: int) -> float:
    """The tilt whose mean deficit is the one observed; 0 from the middle of the distribution on."""
    wanted = max(float(deficit), 0.5)
    if wanted >= total / 2:
        return 0.0
    # sum q n / (1 + e^(t q)) <= A e^-t, so that the upper end is past the root.
    return float(
        scipy.optimize.brentq(
            lambda tilt: _mean(weights, counts, tilt) - wanted,
            0.0,
            math.log(total / wanted),
            xtol=1e-300,
            rtol=1e-12,
        )
    )


def _tilted(weights: Floats, counts: Floats, tilt: float, total: int) -> tuple[int, Floats]:
    """The law of the tilted deficit from the returned start on."""
    squares = float(np.sum(weights**2 * counts))
    window = 2.0 * math.sqrt(squares * math.log(2.0 / _LEFT_OUT) / 2.0)
    length = int(scipy.fft.next_fast_len(min(int(window) + 3, total + 1), real=True))
    spectrum = np.empty(length // 2 + 1, dtype=np.complex128)
    for first in range(0, len(spectrum), _BLOCK):
        points = np.arange(first, min(first + _BLOCK, len(spectrum)))
        log_size, phase = np.zeros(len(points)), np.zeros(len(points))
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
            phase += count * np.arctan2(2.0 * share * sine * cosine, 1.0 - 2.0 * share * sine**2)
        spectrum[first : first + len(points)] = np.exp(log_size) * (np.cos(phase) + 1j * np.sin(phase))
    law = np.maximum(scipy.fft.irfft(spectrum, length), 0.0)
    # The transform is circular: the window around the mean says which turn each place is on.
    mean = _mean(weights, counts, tilt)
    start = min(max(0, int(mean) - length // 2), max(0, total + 1 - length))
    return start, np.roll(law, -(start % length))
