"""A lock on a folder: two processes never train the same run.

The system releases it when the process ends, however that ends, so that nothing has to be cleaned up after a
crash.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from sigil.errors import TrainingError

# Each exists on some systems only: the first on Linux and macOS, the second on Windows.
fcntl: Any
msvcrt: Any
try:
    import fcntl
except ImportError:
    fcntl = None
try:
    import msvcrt
except ImportError:
    msvcrt = None

PAUSE = 0.5  # seconds between two tries, where the system cannot wait by itself


@contextmanager
def locked(folder: Path, *, wait: bool) -> Iterator[None]:
    """Hold the lock of `folder`; if another process has it, wait for that one or raise an error.

    Where the system has no locks at all, nothing is locked.
    """
    # Appended to, because a file of which a part is locked must not be truncated on Windows.
    with (folder / ".lock").open("ab") as file:
        try:
            take(file, wait=wait)
        except OSError:
            raise TrainingError(
                f"Another process is training the run in {folder}; wait for it or choose another --out."
            ) from None
        yield


def take(file: IO[bytes], *, wait: bool) -> None:
    """Take the lock of an open file; OSError if another process has it and this one does not wait."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    elif msvcrt is not None:
        _take_byte(msvcrt, file, wait)


def _take_byte(windows: ModuleType, file: IO[bytes], wait: bool) -> None:
    """Lock the file's first byte, which need not exist; Windows' own waiting gives up after ten seconds."""
    while True:
        file.seek(0)
        try:
            windows.locking(file.fileno(), windows.LK_NBLCK, 1)
            return
        except OSError:
            if not wait:
                raise
        time.sleep(PAUSE)
