"""The lines that a training prints: what a round is, and how long the rest will take."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from sigil.federation import progress


def test_a_round_is_said_to_count_every_local_epoch() -> None:
    printed = io.StringIO()
    progress.Lines(Console(file=printed)).on_start("runs/a", first_round=0, rounds=12, images_per_round=2876)
    assert printed.getvalue() == "runs/a: 12 rounds of 2,876 images each, counting every local epoch\n"


def test_a_round_that_waited_says_nothing_of_those_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 10.0, 20.0, 500.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    printed = io.StringIO()
    lines = progress.Lines(Console(file=printed))
    lines.on_start("runs/a", first_round=0, rounds=5, images_per_round=10)
    lines.on_step(10)
    for number in (1, 2, 3):
        lines.on_round({"round": number, "seconds": 1.0, "loss": 1.0, "images_per_second": 1.0})
    assert printed.getvalue().splitlines()[-1].endswith("20 s left")


def test_waiting_for_clients_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([1000.0, 1010.0])  # the first batch comes after a long wait; its round takes ten seconds
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    printed = io.StringIO()
    lines = progress.Lines(Console(file=printed))
    lines.on_start("runs/a", first_round=0, rounds=3, images_per_round=10)
    lines.on_step(10)
    lines.on_round({"round": 1, "seconds": 500.0, "loss": 1.0, "images_per_second": 1.0})
    assert "20 s left" in printed.getvalue()
