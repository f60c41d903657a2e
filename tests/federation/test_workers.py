"""Worker processes that cannot all be started."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from sigil import data
from sigil.federation import Federation, workers
from sigil.federation.settings import make


def test_workers_that_are_started_half_way_are_ended(
    monkeypatch: pytest.MonkeyPatch, leftovers: Callable[[], list[str]]
) -> None:
    running: list[str] = []
    calls = []
    real = workers._recipe

    def started() -> list[str]:
        found = [line for line in leftovers() if "multiprocessing.forkserver" in line or "spawn_main" in line]
        # On Linux workers are forks of one process, which stays, and have its command line.
        return found[1:] if sys.platform == "linux" else found

    def recipe(training: Any) -> dict[str, Any]:
        calls.append(training)
        # A process that was just forked does not have its own command line yet.
        last = time.monotonic() + 60
        while len(running) < len(calls) and time.monotonic() < last:
            running[:] = started()
        if len(calls) == 2:
            raise OSError(12, "Cannot allocate memory")
        return real(training)

    monkeypatch.setattr(workers, "_recipe", recipe)
    settings = make(
        {
            "model": {"width": 4},
            "federation": {"clients": 2},
            "watermark": {"strength": 0.0},
            "run": {"workers": 2},
        }
    )
    digits = data.load("digits", train_limit=16, test_limit=8)
    with pytest.raises(OSError, match="Cannot allocate"):
        Federation(settings, digits).run_round()
    assert len(running) == 2
    assert started() == []
