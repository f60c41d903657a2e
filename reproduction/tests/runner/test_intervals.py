"""Intervals over seeds, and what they decide about a claim."""

from __future__ import annotations

import math

import pytest
import scipy  # loads scipy.stats, which takes a second, only where it is used

from sigil_reproduction.runner.intervals import (
    MARGIN,
    NOT_RUN,
    UNTESTABLE,
    Interval,
    equivalence,
    interval,
    judge,
    judge_equivalence,
    paired,
)


def test_the_paired_interval_is_that_of_the_paired_t_test() -> None:
    marked, clean = {0: 80.1, 1: 79.2, 2: 81.0, 7: 1.0}, {0: 80.9, 1: 79.4, 2: 81.7, 9: 2.0}
    found = paired(marked, clean)
    assert found is not None
    assert found.count == 3
    test = scipy.stats.ttest_rel([80.1, 79.2, 81.0], [80.9, 79.4, 81.7]).confidence_interval(0.95)
    assert found.ends == (pytest.approx(test.low), pytest.approx(test.high))


def test_pairing_takes_out_what_seeds_have_in_common() -> None:
    """Seeds lie ten points apart, and marking costs half a point in each: the interval shows that."""
    clean = {0: 60.0, 1: 70.0, 2: 80.0}
    found = paired({seed: value - 0.5 for seed, value in clean.items()}, clean)
    assert found is not None
    assert found.mean == pytest.approx(-0.5)
    assert found.half == pytest.approx(0.0, abs=1e-9)


def test_one_seed_has_no_interval_and_none_no_mean() -> None:
    assert interval([3.0]) == Interval(3.0, None, 1)
    assert interval([]) is None
    assert paired({0: 1.0}, {1: 1.0}) is None


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (Interval(-0.5, 1.0, 3), "agrees"),
        (Interval(-4.0, 1.0, 3), "differs"),
        (Interval(-1.0, 3.0, 2), "cannot be tested here"),
        (Interval(-3.0, 3.0, 2), "cannot be tested here"),
        (None, "not run"),
    ],
)
def test_a_claim_is_judged_by_the_whole_interval(found: Interval | None, word: str) -> None:
    assert judge(found, lambda cost: cost >= -2) == word


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (interval([-0.2, 0.1, 0.0]), "agrees"),
        (interval([0.0, 0.0, 0.0]), "agrees"),
        (interval([2.0, 2.0]), "differs"),
        # No difference is seen, and none is ruled out.
        (interval([-1.5, 1.4, 0.1]), "cannot be tested here"),
        # The 95 % interval reaches past the margin; the two tests at 5 % each do not.
        (Interval(0.0, 1.2, 3), "agrees"),
        (Interval(-4.0, 1.0, 3), "differs"),
        (Interval(-0.1, None, 1), "cannot be tested here"),
        (None, "not run"),
    ],
)
def test_that_two_are_the_same_takes_two_one_sided_tests(found: Interval | None, word: str) -> None:
    assert judge_equivalence(found) == word


def test_the_two_tests_are_those_of_scipy() -> None:
    values = [-0.4, 0.2, 0.3, -0.1]
    sides = [
        scipy.stats.ttest_1samp(values, limit, alternative=side).pvalue
        for limit, side in ((-MARGIN, "greater"), (MARGIN, "less"))
    ]
    assert equivalence(interval(values)) == pytest.approx(max(sides))


def test_one_seed_decides_where_no_difference_is_claimed() -> None:
    assert judge(Interval(99.0, None, 1), lambda wsr: wsr >= 95) == "agrees"
    assert judge(Interval(math.nan, None, 1), lambda wsr: wsr >= 95) == "differs"


def test_a_difference_agrees_only_where_the_seeds_decide() -> None:
    assert judge_equivalence(Interval(0.0, 1.0, 3)) == "agrees"
    assert judge_equivalence(Interval(0.0, 9.0, 2)) == UNTESTABLE
    assert judge_equivalence(Interval(-9.0, 1.0, 3)) == "differs"
    assert judge_equivalence(None) == NOT_RUN
