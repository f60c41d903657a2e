"""What is recorded of a verification, and what is not."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from sigil import statistics


def test_the_test_follows_from_the_recorded_agreements(make: Callable[..., Any]) -> None:
    facts, _ = make(0.9, tries=7, cuts=3, on_inputs=0.8, origin=0.6)
    verdict = facts
    best = verdict.best
    assert best.kind == "noise"
    tail = statistics.tail(best.weights, best.statistic)
    price = math.log10(4 * 7 * 3) + 80 * math.log10(2)
    assert best.log10_p_before == pytest.approx(tail.log10_p)
    assert verdict.log10_p == pytest.approx(min(0.0, tail.log10_p + price))
    assert verdict.wsr == pytest.approx(0.5 + best.statistic / (2 * best.count * verdict.bits))
    assert best.right_bits == sum(agreed > best.count / 2 for agreed in best.agreements)
    assert [one.kind for one in verdict.readings] == ["noise", "inputs", "origin"]


def test_an_origin_is_recorded_by_the_counts_of_its_octiles(make: Callable[..., Any]) -> None:
    origin = make(0.5, origin=0.71)[0].origin
    assert origin.count == 10_000
    assert origin.agreements == (888,) * 8 + (1_250,) * 8
    assert origin.octiles == ((888,) * 8, (1_250,) * 8)


def test_a_stamped_key_is_recorded_with_its_stamp(make: Callable[..., Any]) -> None:
    facts, key = make(stamped=True)
    assert facts.key.kind == "stamped"
    assert base64.b64decode(facts.key.token) == key.stamp.response
    assert facts.key.stamped_at == "2026-01-02T03:04:05Z"
    assert facts.key.authority == "CN=Trusted time stamps"
    assert make()[0].key.token is None


def test_agreements_are_sorted_so_that_the_order_of_the_bits_stays_secret(
    make: Callable[..., Any],
) -> None:
    facts, _ = make(0.7)
    agreements = facts.best.agreements
    assert list(agreements) == sorted(agreements, reverse=True)


def test_the_target_bits_are_not_recorded(make: Callable[..., Any]) -> None:
    facts, key = make(0.9)
    dumped = facts.model_dump_json()
    assert str(key.target.int().tolist())[1:-1].replace(" ", "") not in dumped
    assert "".join(str(int(bit)) for bit in key.target.tolist()) not in dumped


def test_an_unreachable_threshold_is_recorded_as_none(make: Callable[..., Any]) -> None:
    facts, _ = make(0.99, bits=8)
    assert facts.threshold is None
    assert facts.owned is False


def test_names_that_are_not_text_or_too_long_are_made_harmless(make: Callable[..., Any]) -> None:
    facts, _ = make(file="caf\udce9.pt", description="x" * 5000, command="sigil " + "y" * 50_000)
    assert facts.suspect.file == "caf?.pt"
    folder = "d\udce9" + "x" * 3000
    assert len(make(file=f"{folder}/model.pt")[0].suspect.file) == 2_000
    assert len(facts.suspect.description) == 2_000
    assert len(facts.command) == 20_000
    facts.model_dump_json().encode()


def test_copies_of_one_name_are_told_apart_by_their_folders(make: Callable[..., Any]) -> None:
    names = [f"/home/ada/runs/{attack}/client.safetensors" for attack in ("pruned", "rounded")]
    assert [make(file=name)[0].suspect.file for name in names] == [
        "pruned/client.safetensors",
        "rounded/client.safetensors",
    ]
    assert make(file="client.safetensors")[0].suspect.file == "client.safetensors"


def test_the_date_is_utc_to_the_second(make: Callable[..., Any]) -> None:
    assert make()[0].created == "2026-03-01T12:30:59Z"


@pytest.mark.parametrize(
    "change",
    [
        {"extra": 1},
        {"alpha": 1.5},
        {"alpha": "3e-7"},
        {"tests": 3},
        {"cuts": 65},
        {"bits": 0},
        {"log10_p": float("-inf")},
        {"owned": 1},
        {"readings": ()},
    ],
)
def test_a_verdict_of_another_form_is_refused(make: Callable[..., Any], change: dict[str, Any]) -> None:
    report = make()[0]
    fields = {name: getattr(report, name) for name in type(report).model_fields}
    type(report)(**fields)
    with pytest.raises(ValidationError):
        type(report)(**fields | change)
