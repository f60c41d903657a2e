"""Tails of fair coins of several weights against exact fractions, the binomial and brute force."""

from __future__ import annotations

import itertools
import math

import pytest
import scipy  # loads scipy.stats, which takes a second, only where it is used
from hypothesis import given
from hypothesis import strategies as st

from sigil.errors import SigilError
from sigil.statistics import log10_tail

CASES = st.lists(
    st.integers(0, 30).flatmap(lambda coins: st.tuples(st.integers(0, coins), st.just(coins))),
    min_size=1,
    max_size=8,
)


WEIGHTS = range(1, 9)


def log10_of(patterns: int, coins: int) -> float:
    """log10 of a whole number of patterns over 2^coins."""
    shift = max(0, patterns.bit_length() - 60)
    return math.log10(patterns >> shift) + (shift - coins) * math.log10(2)


def exact(positive: list[int], coins: list[int]) -> float:
    """By counting, in whole numbers, the patterns of every deficit."""
    deficit = sum(q * (n - a) for q, (a, n) in enumerate(zip(positive, coins, strict=True), 1))
    patterns = 1  # a polynomial: the coefficient of x^s in the digits of base 2^bits
    bits = sum(coins) + 1
    for q, n in enumerate(coins, 1):
        for _ in range(n):
            patterns += patterns << (q * bits)
    digit = (1 << bits) - 1
    return log10_of(sum(patterns >> (s * bits) & digit for s in range(deficit + 1)), sum(coins))


@given(CASES)
def test_equals_the_exact_fraction(case: list[tuple[int, int]]) -> None:
    positive, coins = [a for a, _ in case], [n for _, n in case]
    assert log10_tail(positive, coins, range(1, len(coins) + 1)) == pytest.approx(
        exact(positive, coins), rel=1e-12, abs=1e-12
    )


@given(st.lists(st.tuples(st.integers(1, 8), st.booleans()), min_size=1, max_size=10))
def test_equals_brute_force_over_all_patterns(coins: list[tuple[int, bool]]) -> None:
    counts = [sum(q == weight for q, _ in coins) for weight in range(1, 9)]
    positive = [sum(q == weight and up for q, up in coins) for weight in range(1, 9)]
    observed = sum(q if up else -q for q, up in coins)
    weights = [q for q, _ in coins]
    patterns = itertools.product((-1, 1), repeat=len(weights))
    as_good = sum(sum(s * q for s, q in zip(p, weights, strict=True)) >= observed for p in patterns)
    assert 10 ** log10_tail(positive, counts, range(1, 9)) == pytest.approx(
        as_good / 2 ** len(weights), rel=1e-10
    )


@given(st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_one_weight_is_the_binomial(case: tuple[int, int]) -> None:
    count, coins = case
    expected = scipy.stats.binom.sf(count - 1, coins, 0.5)
    if expected > 1e-290:
        assert 10 ** log10_tail([count], [coins], [1]) == pytest.approx(expected, rel=1e-6)


def test_is_exact_far_below_the_smallest_float() -> None:
    """Against whole numbers: 20,000 coins at log10 p = -5,000 and at -6,020.6, where all agree."""
    coins, count = 20_000, 19_500
    patterns, term = 0, 1
    for heads in range(coins, count - 1, -1):
        patterns += term
        term = term * heads // (coins - heads + 1)
    expected = log10_of(patterns, coins)
    assert expected < -4_900
    assert log10_tail([count], [coins], [1]) == pytest.approx(expected, abs=1e-9)
    # The same coins with the weight 8 for all of them.
    assert log10_tail([7, count], [9, coins], [0, 8]) == pytest.approx(expected, abs=1e-9)
    assert log10_tail([coins], [coins], [1]) == pytest.approx(-coins * math.log10(2), abs=1e-9)


def test_stays_finite_for_millions_of_coins() -> None:
    every = [10**6] * 8
    assert log10_tail(every, every, WEIGHTS) == pytest.approx(-8e6 * math.log10(2), rel=1e-12)
    # The normal approximation at z = 130 gives -3673.
    z, squares = 130.0, sum(q * q for q in range(1, 9)) * 10**6
    shift = z * math.sqrt(squares) / (2 * sum(range(1, 9)))
    assert -3_720 < log10_tail([round(5 * 10**5 + shift)] * 8, every, WEIGHTS) < -3_640


def test_nothing_tossed_is_no_surprise() -> None:
    assert log10_tail([], [], []) == log10_tail([0, 0], [0, 0], [1, 2]) == log10_tail([3], [3], [0]) == 0.0


@pytest.mark.parametrize(("count", "coins"), [([-1], [5]), ([6], [5]), ([1, 2], [3])])
def test_an_impossible_count_is_one_sentence(count: list[int], coins: list[int]) -> None:
    with pytest.raises(SigilError, match="cannot be positive"):
        log10_tail(count, coins, [1] * len(coins))


def test_too_many_coins_are_one_sentence() -> None:
    with pytest.raises(SigilError, match="at most 2\\^36"):
        log10_tail([0], [2**37], [1])


@pytest.mark.parametrize("weights", [[1, 2], [-1], [65], []])
def test_weights_that_fit_no_coins_are_one_sentence(weights: list[int]) -> None:
    with pytest.raises(SigilError, match="weights of 1 kinds"):
        log10_tail([1], [2], weights)
