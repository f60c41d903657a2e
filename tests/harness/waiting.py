"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS = 300.0  # however busy the machine is


def until(
    condition: Callable[[], bool], *, alive: Callable[[], bool] = lambda: True, seconds: float = SECONDS
) -> None:
    """Wait until something is so, or fail: at once if nobody is `alive` who could bring it about."""
    last = time.monotonic() + seconds
    while not condition():
        assert alive(), "what should have brought it about has ended"
        assert time.monotonic() < last, f"waited {seconds:g} seconds in vain"
        time.sleep(0.02)
