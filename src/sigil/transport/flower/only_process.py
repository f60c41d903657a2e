"""One process for one client: a second one is refused, or takes over and the first is told.

The lock is the system's and goes with its process, so that a client that was killed can be started again at
once. Processes with copies of the folder on other machines do not see it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from sigil import files
from sigil.errors import NetworkError
from sigil.federation import lock

LOCK_FILE = ".joined"
REQUEST_FILE = ".take-over"
POLL_SECONDS = 0.3
PATIENCE_SECONDS = 60.0


class TakenOver(NetworkError):
    """Another process goes on as this client."""


@contextmanager
def only_process(bundle: Path, *, take_over: bool) -> Iterator[None]:
    """Be the only process that acts for the client of this folder.

    If there is one already, that is an error; with `take_over` that one is asked to end, and this one waits
    until it has. Inside, a request from another process interrupts the main thread, and leaves as
    :class:`TakenOver`.
    """
    request = bundle / REQUEST_FILE
    try:
        # The folder came from the owner, and the name might be a link. Nothing is ever written to the file.
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        file = os.fdopen(os.open(bundle / LOCK_FILE, flags, 0o600), "rb")
    except OSError as error:
        raise NetworkError(f"{bundle} cannot be written to: {error.strerror}; copy it elsewhere.") from None
    with file:
        _take(file, request, bundle, take_over=take_over)
        with suppress(OSError):
            request.unlink()
        asked, ended = threading.Event(), threading.Event()
        threading.Thread(target=_watch, args=(request, asked, ended), daemon=True).start()
        try:
            with _heard(asked):
                yield
        except KeyboardInterrupt:
            if not asked.is_set():
                raise
            raise TakenOver(
                f"Another process took over the client of {bundle} (--take-over), so this one has ended."
            ) from None
        finally:
            ended.set()


@contextmanager
def _heard(asked: threading.Event) -> Iterator[None]:
    """Let a request interrupt also a process that ignores Ctrl-C, as one does that a script put behind it."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        yield
        return

    def interrupt(*_: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _take(file: IO[bytes], request: Path, bundle: Path, *, take_over: bool) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    asked = False
    while True:
        try:
            lock.take(file, wait=False)
            return
        except OSError:
            if not take_over:
                raise NetworkError(
                    f"Another process is running as the client of {bundle}; end it, or add --take-over to "
                    "go on in its place."
                ) from None
        if not asked:
            files.write(request, b"", replace=True, raises=NetworkError)
            asked = True
        if time.monotonic() > deadline:
            raise NetworkError(
                f"The process that runs as the client of {bundle} did not end when it was asked to; end it "
                "and try again."
            )
        time.sleep(POLL_SECONDS)


def _watch(request: Path, asked: threading.Event, ended: threading.Event) -> None:
    while not ended.wait(POLL_SECONDS):
        if request.exists():
            asked.set()
            os.kill(os.getpid(), signal.SIGINT)
            return
