"""Worker processes: what they see, and what becomes of them when not all can be started."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import psutil
import pytest
import torch

from sigil import data
from sigil.federation import Federation, workers
from sigil.federation.from_settings import Training
from sigil.federation.settings import make


def test_each_sees_the_variables_and_threads_of_now_and_nothing_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On Linux all are forks of a process that was started with the variables of before."""
    pids = set()
    for value, threads in (("first", 1), ("second", 2)):
        monkeypatch.setenv("SIGIL_DATA", value)
        monkeypatch.delenv("SIGIL_CACHE", raising=False)
        begun = (dict(os.environ), threads)
        with ProcessPoolExecutor(
            1, mp_context=workers.clean_processes(), initializer=workers.begin, initargs=begun
        ) as pool:
            assert pool.submit(os.getenv, "SIGIL_DATA").result() == value
            assert pool.submit(os.getenv, "SIGIL_CACHE").result() is None
            assert pool.submit(torch.get_num_threads).result() == threads
            pids.add(pool.submit(os.getpid).result())
        monkeypatch.setenv("SIGIL_CACHE", "not for the next")
    assert len(pids) == 2


KILLED = """
import os, sys, time
from concurrent.futures import ProcessPoolExecutor
from sigil.federation import workers

if __name__ == "__main__":
    begun = (dict(os.environ), 1)
    pool = ProcessPoolExecutor(
        1, mp_context=workers.clean_processes(), initializer=workers.begin, initargs=begun
    )
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 600).result()
"""


def test_workers_of_a_process_that_was_killed_end_too(tmp_path: Path) -> None:
    """In the middle of their work: a killed process cannot tell them."""
    program = tmp_path / "program.py"
    program.write_text(KILLED)
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            worker = psutil.Process(int(process.stdout.readline()))
            assert worker.is_running()
        finally:
            process.kill()
    with contextlib.suppress(psutil.NoSuchProcess):
        worker.wait(timeout=300)
    assert not worker.is_running()


def test_workers_that_are_started_half_way_are_ended(
    monkeypatch: pytest.MonkeyPatch, leftovers: Callable[[], list[str]]
) -> None:
    running: list[str] = []
    calls = []
    real = workers._for_a_worker

    def started() -> list[str]:
        found = [line for line in leftovers() if "multiprocessing.forkserver" in line or "spawn_main" in line]
        # On Linux workers are forks of one process, which stays, and have its command line.
        return found[1:] if sys.platform == "linux" else found

    def recipe(training: Training) -> Training:
        calls.append(training)
        # A process that was just forked does not have its own command line yet.
        last = time.monotonic() + 300
        while len(running) < len(calls) and time.monotonic() < last:
            running[:] = started()
        if len(calls) == 2:
            raise OSError(12, "Cannot allocate memory")
        return real(training)

    monkeypatch.setattr(workers, "_for_a_worker", recipe)
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
