"""Tails of fair coins against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sigil.binomial import log10_tail
from sigil.errors import SigilError


def exact(count: int, coins: int) -> float:
    total = sum(math.comb(coins, heads) for heads in range(count, coins + 1))
    fraction = Fraction(total, 2**coins)
    shift = max(0, fraction.denominator.bit_length() - fraction.numerator.bit_length())
    return math.log10(float(fraction * 2**shift)) - shift * math.log10(2)


@given(st.integers(1, 3000).flatmap(lambda coins: st.tuples(st.integers(0, coins), st.just(coins))))
def test_equals_the_exact_fraction(case: tuple[int, int]) -> None:
    count, coins = case
    assert log10_tail(count, coins) == pytest.approx(exact(count, coins), rel=1e-9, abs=1e-12)


def test_stays_finite_for_millions_of_coins() -> None:
    assert log10_tail(10**7, 10**7) == pytest.approx(-(10**7) * math.log10(2), rel=1e-9)
    # The normal approximation at z = 130 gives -3673.
    coins, z = 10**6, 130.0
    count = round(coins / 2 + z * math.sqrt(coins) / 2)
    assert -3720 < log10_tail(count, coins) < -3650


@pytest.mark.parametrize(("count", "coins"), [(-1, 5), (6, 5)])
def test_an_impossible_count_is_one_sentence(count: int, coins: int) -> None:
    with pytest.raises(SigilError, match="cannot show heads"):
        log10_tail(count, coins)
