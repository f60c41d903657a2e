"""Numbers in words never claim more than the numbers do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sigil.evidence.wording import chance, decimal, percent, scientific, success_rate


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.5, "50.0 %"), (1.0, "100 %"), (0.9994, "99.9 %"), (0.99999, "more than 99.9 %")],
)
def test_percent(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("p", "plain", "raised"),
    [
        (2**-50, "8.9e-16", "8.9 × 10⁻¹⁶"),
        (3e-7, "3e-7", "3 × 10⁻⁷"),
        (9.99e-8, "1e-7", "1 × 10⁻⁷"),
        (0.2069, "0.21", "0.21"),
        (1.0, "1", "1"),
    ],
)
def test_probabilities_are_rounded_up(p: float, plain: str, raised: str) -> None:
    assert decimal(math.log10(p)) == plain
    assert scientific(math.log10(p)) == raised


@given(st.floats(min_value=-300, max_value=0))
def test_a_written_probability_is_never_smaller_than_the_true_one(log10: float) -> None:
    assert math.log10(float(decimal(log10))) >= log10 - 1e-9


def test_far_below_the_smallest_float() -> None:
    assert decimal(-903.09) == "8.2e-904"


def test_rate_and_threshold_can_be_told_apart(make: Callable[..., Any]) -> None:
    verdict = make()[0].verdict
    close = verdict.model_copy(update={"wsr": 0.82984, "threshold": 0.83016})
    assert success_rate(close) == ("82.98 %", "83.02 %")
    nearly = verdict.model_copy(update={"wsr": 0.99996, "threshold": 0.83})
    assert success_rate(nearly)[0] == "99.996 %"
    assert success_rate(verdict.model_copy(update={"threshold": None}))[1] is None


def test_a_bound_is_called_one(make: Callable[..., Any]) -> None:
    verdict = make(1.0)[0].verdict
    assert chance(verdict) == "one in 1.1 quadrillion"
    assert chance(verdict.model_copy(update={"exact": False})).startswith("at most one in")
