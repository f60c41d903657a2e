"""The lock of a run, on systems with either kind of lock and with none."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sigil.errors import TrainingError
from sigil.federation import lock


def windows() -> Any:
    """Windows' module, with the locks of this system: of another open file, and given up at its closing."""

    def locking(descriptor: int, mode: int, count: int) -> None:
        assert (mode, count) == (2, 1)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    return SimpleNamespace(LK_NBLCK=2, locking=locking)


@pytest.fixture(params=["posix", "windows"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "windows":
        monkeypatch.setattr(lock, "fcntl", None)
        monkeypatch.setattr(lock, "msvcrt", windows())
        monkeypatch.setattr(lock, "PAUSE", 0.01)
    return str(request.param)


def test_the_second_is_refused_in_one_sentence_until_the_first_ends(system: str, tmp_path: Path) -> None:
    for _ in range(2):
        with (
            lock.locked(tmp_path, wait=False),
            pytest.raises(TrainingError, match="Another process is training the run"),
            lock.locked(tmp_path, wait=False),
        ):
            pass


def test_the_second_waits_if_it_is_asked_to(system: str, tmp_path: Path) -> None:
    order: list[str] = []
    begun = threading.Event()

    def second() -> None:
        begun.set()
        with lock.locked(tmp_path, wait=True):
            order.append("second")

    thread = threading.Thread(target=second)
    with lock.locked(tmp_path, wait=False):
        thread.start()
        begun.wait()
        thread.join(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_without_any_locks_nothing_is_locked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lock, "fcntl", None)
    monkeypatch.setattr(lock, "msvcrt", None)
    with lock.locked(tmp_path, wait=False), lock.locked(tmp_path, wait=False):
        pass
