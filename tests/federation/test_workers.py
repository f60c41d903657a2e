"""Worker processes that cannot all be started."""

from __future__ import annotations

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
    real = workers._recipe

    def recipe(training: Any) -> dict[str, Any]:
        running[:] = [line for line in leftovers() if "spawn_main" in line]
        if len(running) == 2:
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
    assert [line for line in leftovers() if "spawn_main" in line] == []
