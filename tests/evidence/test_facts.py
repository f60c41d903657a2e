"""What is recorded of a verification, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from sigil import statistics


def test_the_test_follows_from_the_recorded_agreements(make: Callable[..., Any]) -> None:
    facts, _ = make(0.8, tries=7)
    verdict = facts.verdict
    tail = statistics.tail(verdict.weights, verdict.statistic)
    assert verdict.log10_p == pytest.approx(statistics.correct(tail.log10_p, 7))
    assert verdict.wsr == 0.5 + verdict.statistic / (2 * verdict.probes * verdict.bits)
    assert verdict.right_bits == sum(share > verdict.probes / 2 for share in verdict.agreements)


def test_agreements_are_sorted_so_that_the_order_of_the_bits_stays_secret(
    make: Callable[..., Any],
) -> None:
    facts, _ = make(0.7)
    assert list(facts.verdict.agreements) == sorted(facts.verdict.agreements, reverse=True)


def test_the_target_bits_are_not_recorded(make: Callable[..., Any]) -> None:
    facts, key = make(0.9)
    dumped = facts.model_dump_json()
    assert str(key.target.int().tolist())[1:-1].replace(" ", "") not in dumped
    assert "".join(str(int(bit)) for bit in key.target.tolist()) not in dumped


def test_an_unreachable_threshold_is_recorded_as_none(make: Callable[..., Any]) -> None:
    facts, _ = make(0.99, bits=8)
    assert facts.verdict.threshold is None
    assert facts.verdict.owned is False


def test_names_that_are_not_text_or_too_long_are_made_harmless(make: Callable[..., Any]) -> None:
    facts, _ = make(file="caf\udce9.pt", description="x" * 5000, command="sigil " + "y" * 50_000)
    assert facts.suspect.file == "caf?.pt"
    assert len(facts.suspect.description) == 2_000
    assert len(facts.command) == 20_000
    facts.model_dump_json().encode()


def test_the_date_is_utc_to_the_second(make: Callable[..., Any]) -> None:
    assert make()[0].created == "2026-03-01T12:30:59Z"


@pytest.mark.parametrize(
    "change",
    [
        {"extra": 1},
        {"wsr": 1.5},
        {"wsr": "0.9"},
        {"bits": 0},
        {"log10_p": float("-inf")},
        {"owned": 1},
        {"agreements": ()},
    ],
)
def test_a_verdict_of_another_form_is_refused(make: Callable[..., Any], change: dict[str, Any]) -> None:
    values = make()[0].verdict.model_dump() | change
    with pytest.raises(ValidationError):
        type(make()[0].verdict)(**values)
