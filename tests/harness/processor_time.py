"""How long something takes the processor, in a unit that a busy or slow machine stretches alike."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt


def in_units(work: Callable[[], object], *, tries: int = 3) -> float:
    """The processor time of `work`, in units of a fixed computation that is done beside it each time.

    Never the clock, as the machine may be busy, and never seconds, as it may be slow. A unit is three to
    five milliseconds of a processor of 2023.
    """
    values = np.random.default_rng(0).random(50_000)
    ours, units = [], []
    for _ in range(tries):
        units.append(_thread_time(lambda: _unit(values)))
        ours.append(_thread_time(work))
        units.append(_thread_time(lambda: _unit(values)))
    return min(ours) / min(units)


def _thread_time(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def _unit(values: npt.NDArray[np.float64]) -> None:
    """Half in the interpreter, half in compiled loops."""
    np.sort(values)
    total = 0
    for number in range(40_000):
        total += number
