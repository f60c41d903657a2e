"""How long a key must be, and which success rate proves it: what the price of drawing keys demands.

A claimant may have drawn many keys before showing one, so a verdict multiplies p by an allowance: 2⁸⁰
for a plain key, more than anybody draws, and 2²⁴ for a stamped one, each of which costs a dated request.
It multiplies p by the number of tests that the rules allow as well. Length pays for both: every bit
that a model answers rightly halves p.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Final

from sigil import statistics
from sigil.errors import ConfigError
from sigil.keys.statement import SealKind, check_bits, check_shape

PLAIN_ALLOWANCE_LOG2: Final = 80
STAMPED_ALLOWANCE_LOG2: Final = 24
# Noise, inputs, aligned, origin: counted whether they are made or not.
TESTS: Final = 4
ALPHA: Final = 3e-7

# What an attack leaves of a mark proves the more, the longer the key is. The paper finds 500 bits no burden
# for 16,384 dimensions.
LONGEST_DEFAULT_BITS: Final = 512
SHORTEST_DEFAULT_BITS: Final = 32
LEAST_PLAIN_BITS: Final = 128
LEAST_STAMPED_BITS: Final = 64
# With fewer dimensions per bit the mark pulled whole activations towards zero and training with them.
DIMENSIONS_PER_BIT: Final = 16
# What a cut holds at all. Digits, ResNet-18 of width 8 cut at 128 dimensions, four rounds: 64 bits were read
# back at 99 %, 128 bits at 75 %.
LEAST_DIMENSIONS_PER_BIT: Final = 2


def default_bits(shape: Sequence[int], seal: SealKind = "none") -> int:
    """How long a key is if nobody says: one bit for every 16 dimensions of the activation, 512 at most.

    It has at least 128 bits, or 64 if it will be stamped, where the cut has two dimensions for each of
    them: shorter keys of either kind prove little or nothing once p is multiplied by the allowance. The
    strongest attack tried leaves 128 bits in 2,048 dimensions below the level of proof and 256 in 4,096
    above it (``results/cpu/proof``, ``results/cpu/scaling``). No key is shorter than 32 bits.
    """
    dimension = math.prod(check_shape(shape))
    least = LEAST_PLAIN_BITS if seal == "none" else LEAST_STAMPED_BITS
    held = min(least, dimension // LEAST_DIMENSIONS_PER_BIT)
    return max(SHORTEST_DEFAULT_BITS, held, min(LONGEST_DEFAULT_BITS, dimension // DIMENSIONS_PER_BIT))


def needed_rate(bits: int, allowance_log2: float, *, tests: int = TESTS, alpha: float = ALPHA) -> float:
    """The smallest success rate that proves a key of this length, all probes agreeing at every bit.

    It is the WSR at which p · `tests` · 2^`allowance_log2` ≤ `alpha`; ``math.inf`` if no rate is enough.

    >>> needed_rate(64, 24), needed_rate(64, 80), needed_rate(128, 80)  # 61 of 64 bits, none, 124 of 128
    (0.953125, inf, 0.96875)
    """
    level = math.log2(_level(alpha)) - math.log2(_tests(tests)) - _allowance(allowance_log2)
    if level < -check_bits(bits):
        return math.inf
    if level <= -1000:  # a float holds no smaller level
        raise ConfigError("The level and the allowance are too extreme to compute with; give milder ones.")
    return statistics.threshold([1] * bits, probes=1, alpha=2.0**level)


def shortest_bits(allowance_log2: float, *, tests: int = TESTS, alpha: float = ALPHA) -> int:
    """How many bits, all of them right, are the least that prove anything.

    >>> shortest_bits(80), shortest_bits(24)
    (104, 48)
    """
    return math.ceil(_allowance(allowance_log2) + math.log2(_tests(tests)) - math.log2(_level(alpha)))


def warn_if_too_short(bits: int, shape: Sequence[int], *, stamped: bool) -> None:
    """Warn the caller's caller that a key of this length proves nothing, however well a model answers."""
    allowance = STAMPED_ALLOWANCE_LOG2 if stamped else PLAIN_ALLOWANCE_LOG2
    if needed_rate(bits, allowance) > 1:
        warnings.warn(
            f"This key has {bits} bits for activations of shape {tuple(shape)}, and a "
            f"{'stamped' if stamped else 'plain'} key proves nothing with fewer than "
            f"{shortest_bits(allowance)}: give more bits, or cut where activations have more numbers "
            "(sigil.inspect).",
            stacklevel=3,
        )


def _allowance(allowance_log2: float) -> float:
    if not 0 <= allowance_log2 <= 900:
        raise ConfigError(
            f"The allowance is 2^{allowance_log2!r} but must lie between 2^0 (no key but this) and 2^900."
        )
    return float(allowance_log2)


def _tests(tests: int) -> int:
    if isinstance(tests, bool) or not isinstance(tests, int) or not 1 <= tests <= 2**53:
        raise ConfigError(f"The number of tests is {tests!r} but must be a whole number from 1 on.")
    return tests


def _level(alpha: float) -> float:
    if not 0.0 < alpha < 1.0:
        raise ConfigError(f"The level alpha is {alpha} but must lie between 0 and 1, such as 3e-7.")
    return alpha
