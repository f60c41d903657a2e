"""Settings for every test: one thread per worker, what Hypothesis tries, and no process left behind."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker

import psutil
import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

# The machine may be shared: a slow example is not a failing one. By default every run tries the same
# examples, so that a change is green or red by itself; `make fuzz` tries others, and more of them.
settings.register_profile("sigil", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("fuzz", deadline=None, print_blob=True, max_examples=2000)
settings.load_profile("sigil")

SESSION = "SIGIL_TEST_SESSION"  # inherited by everything that a test starts, also by children's children
GRACE = 30.0  # seconds for what is ending to be gone, however busy the machine is


@pytest.fixture(autouse=True)
def _no_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests must not depend on the user's own data or passphrase."""
    for name in ("SIGIL_DATA", "SIGIL_CACHE", "SIGIL_PASSPHRASE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def leftovers() -> Callable[[], list[str]]:
    """The command lines of the processes that run because of this session, itself not counted."""
    os.environ[SESSION] = uuid.uuid4().hex
    return lambda: [line for _, line in _offspring(os.environ[SESSION])]


def _offspring(session: str) -> list[tuple[psutil.Process, str]]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(SESSION) == session:
                found.append((process, " ".join(process.cmdline())))
    return found


@pytest.fixture(scope="module", autouse=True)
def _every_process_is_ended(leftovers: Callable[[], list[str]]) -> Iterator[None]:
    """Whatever a file of tests starts has ended when the file is done, also what lost its parent."""
    yield
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]  # lives as long as Python
    last = time.monotonic() + GRACE
    while (found := _offspring(os.environ[SESSION])) and time.monotonic() < last:
        time.sleep(0.1)
    for process, _ in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    assert not found, [line for _, line in found]
