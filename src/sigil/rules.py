"""The rules of proof: the level, and everything that p is multiplied by before it is compared with it.

Each reading has an exact p-value, before correction. It proves something if it still reaches the level after
it was multiplied by everything that could have been chosen, whether it was or not:

======================  ====================================================================================
factor                  for
======================  ====================================================================================
4                       the tests that the rules allow: noise, inputs, aligned, origin
``tries``               keys and suspects that were tried
``cuts``                places where, and shapes of input with which, the suspect could be read, if the key
                        does not state them (:mod:`sigil.verdict.choices`); at most 64
2^``allowance_log2``    keys that could have been drawn before this one: 80 for a plain key, more than anybody
                        draws, and 24 for a stamped one, each of which costs a dated request
======================  ====================================================================================

All that prints a level, or compares with one, asks here. Names say which p is meant: ``log10_p`` is
corrected, ``log10_p_before`` is not.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

from sigil import statistics
from sigil.errors import ConfigError

ALPHA: Final = 3e-7
"""The paper's five-sigma level: "proven" exists at this p-value or below it, and nowhere else."""

TESTS: Final = 4
"""Noise, inputs, aligned, origin: counted whether they are made or not."""

PLAIN_ALLOWANCE_LOG2: Final = 80
STAMPED_ALLOWANCE_LOG2: Final = 24
MOST_CUTS: Final = 64
MOST_TRIES: Final = 10**15
MOST_STATEMENTS: Final = 2**256


@dataclass(frozen=True)
class Price:
    """What the p-value of a reading is multiplied by, once for everything that could have been chosen."""

    allowance_log2: float
    cuts: int = 1
    tries: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.allowance_log2 <= 256:
            raise ConfigError(
                f"The allowance is 2^{self.allowance_log2!r} but must lie between 2^0 (no key but this) and "
                "2^256."
            )
        for name, count in (("cuts", self.cuts), ("tries", self.tries)):
            if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 2**60:
                raise ConfigError(f"The number of {name} is {count!r} but must be a whole number from 1 on.")

    @property
    def log10(self) -> float:
        """The decimal logarithm of the factor."""
        counted = math.log10(TESTS) + math.log10(self.tries) + math.log10(self.cuts)
        return counted + self.allowance_log2 * math.log10(2)

    def corrected(self, log10_p_before: float) -> float:
        """``log10_p`` of a reading: the logarithm of its p-value times the price, which is at most 1."""
        return min(0.0, log10_p_before + self.log10)

    def proves(self, log10_p_before: float, alpha: float = ALPHA) -> bool:
        """Whether a reading reaches a level after correction."""
        return self.corrected(log10_p_before) <= math.log10(alpha)

    def level(self, alpha: float = ALPHA) -> float:
        """The p-value before correction at which proof begins; 0.0 if no float is so small."""
        return float(10.0 ** self.log10_level(alpha))

    def log10_level(self, alpha: float = ALPHA) -> float:
        """The same as its decimal logarithm."""
        return math.log10(_level(alpha)) - self.log10

    def needed_rate(self, bits: int, alpha: float = ALPHA) -> float:
        """The success rate that proves a key of this length if all inputs agree at every bit.

        ``math.inf`` if no rate is enough. Where inputs disagree, chance varies less and a lower rate proves
        (:meth:`sigil.verdict.readings.Reading.threshold`).

        >>> stamped, plain = Price(STAMPED_ALLOWANCE_LOG2), Price(PLAIN_ALLOWANCE_LOG2)
        >>> stamped.needed_rate(64), plain.needed_rate(64), plain.needed_rate(128)  # 61 bits, none, 124
        (0.953125, inf, 0.96875)
        """
        if bits < 1:
            raise ConfigError(f"The number of bits is {bits!r} but must be a whole number from 1 on.")
        level = self._log2_level(alpha)
        if level < -bits:
            return math.inf
        if level <= -1000:  # no float is so small
            ones, wanted = [1] * bits, self.log10_level(alpha)
            right = bisect_left(
                range(bits), True, key=lambda count: statistics.tail(ones, 2 * count - bits).log10_p <= wanted
            )
            return right / bits
        return statistics.threshold([1] * bits, probes=1, alpha=2.0**level)

    def shortest_bits(self, alpha: float = ALPHA) -> int:
        """How many bits, all of them right, are the least that prove anything.

        >>> Price(PLAIN_ALLOWANCE_LOG2).shortest_bits(), Price(STAMPED_ALLOWANCE_LOG2).shortest_bits()
        (104, 48)
        """
        return math.ceil(-self._log2_level(alpha))

    def _log2_level(self, alpha: float) -> float:
        counted = math.log2(TESTS) + math.log2(self.tries) + math.log2(self.cuts)
        return math.log2(_level(alpha)) - counted - self.allowance_log2


def _level(alpha: float) -> float:
    if not 0.0 < alpha < 1.0:
        raise ConfigError(f"The level alpha is {alpha} but must lie between 0 and 1, such as {ALPHA:g}.")
    return alpha
