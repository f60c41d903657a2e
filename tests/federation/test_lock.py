"""The lock of a run, on systems with either kind of lock and with none."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sigil import files
from sigil.errors import TrainingError


def windows() -> Any:
    """Windows' module, with the locks of this system: of another open file, and given up at its closing."""

    def locking(descriptor: int, mode: int, count: int) -> None:
        assert (mode, count) == (2, 1)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    return SimpleNamespace(LK_NBLCK=2, locking=locking)


@pytest.fixture(params=["posix", "windows"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "windows":
        monkeypatch.setattr(files, "fcntl", None)
        monkeypatch.setattr(files, "msvcrt", windows())
        monkeypatch.setattr(files, "LOCK_PAUSE", 0.01)
    return str(request.param)


def test_the_second_is_refused_in_one_sentence_until_the_first_ends(system: str, tmp_path: Path) -> None:
    for _ in range(2):
        with (
            files.locked(tmp_path, wait=False),
            pytest.raises(TrainingError, match="Another process is training the run"),
            files.locked(tmp_path, wait=False),
        ):
            pass


def test_the_second_waits_if_it_is_asked_to(system: str, tmp_path: Path) -> None:
    order: list[str] = []
    begun = threading.Event()

    def second() -> None:
        begun.set()
        with files.locked(tmp_path, wait=True):
            order.append("second")

    thread = threading.Thread(target=second)
    with files.locked(tmp_path, wait=False):
        thread.start()
        begun.wait()
        thread.join(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_without_any_locks_nothing_is_locked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(files, "fcntl", None)
    monkeypatch.setattr(files, "msvcrt", None)
    with files.locked(tmp_path, wait=False), files.locked(tmp_path, wait=False):
        pass
