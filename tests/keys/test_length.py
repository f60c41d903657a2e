"""How long keys must be: the numbers that the allowances demand."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest

from sigil.errors import ConfigError
from sigil.keys.length import needed_rate, shortest_bits

PLAIN, STAMPED = 80, 24


@pytest.mark.parametrize(
    ("bits", "stamped", "plain"),
    [(64, 95.3, None), (128, 83.6, 96.9), (256, 74.2, 85.2), (512, 67.2, 75.4)],
)
def test_the_least_success_rate(bits: int, stamped: float, plain: float | None) -> None:
    assert round(100 * needed_rate(bits, STAMPED), 1) == stamped
    rate = needed_rate(bits, PLAIN)
    assert (rate == math.inf) if plain is None else (round(100 * rate, 1) == plain)


def test_the_shortest_keys() -> None:
    assert (shortest_bits(PLAIN), shortest_bits(STAMPED), shortest_bits(0, tests=1)) == (104, 48, 22)
    for allowance in (PLAIN, STAMPED, 0):
        least = shortest_bits(allowance)
        assert needed_rate(least, allowance) == 1.0
        assert needed_rate(least - 1, allowance) == math.inf


@pytest.mark.parametrize("bits", [50, 64, 104, 128, 200])
@pytest.mark.parametrize("allowance", [0, 24, 80])
def test_the_rate_is_the_first_that_proves(bits: int, allowance: int) -> None:
    """Against binomial tails in whole numbers."""
    level = Fraction(3, 10**7) / 4 / 2**allowance
    rate = needed_rate(bits, allowance)
    tails = [Fraction(sum(math.comb(bits, j) for j in range(wrong + 1)), 2**bits) for wrong in range(bits)]
    proving = [wrong for wrong, tail in enumerate(tails) if tail <= level]
    assert rate == (1 - max(proving) / bits if proving else math.inf)


def test_more_tests_and_a_smaller_level_need_more() -> None:
    assert needed_rate(128, 24, tests=1) < needed_rate(128, 24) < needed_rate(128, 24, alpha=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {"allowance_log2": -1},
        {"allowance_log2": 901},
        {"tests": 0},
        {"tests": 1.5},
        {"alpha": 0.0},
        {"bits": 0},
    ],
    ids=str,
)
def test_impossible_numbers_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        needed_rate(**{"bits": 128, "allowance_log2": 24} | options)
