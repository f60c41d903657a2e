"""Timing of several variants in one run, so that a busy machine disturbs all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def interleaved(variants: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each variant, run in turns; the first turn warms up and is not counted."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(repeats + 1):
        for name, run in variants.items():
            began = time.perf_counter()
            run()
            if turn:
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(seconds) for name, seconds in times.items()}
