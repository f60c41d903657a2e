"""A server on a thread of this process, with an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class Closing:
    """Closed at the end of a ``with``."""

    def close(self) -> None:
        """Release everything."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ServerThread(Closing):
    """Serves on a thread between :meth:`start` and :meth:`close`; a subclass says what, in ``_serve``.

    The thread does not keep the process alive, and signals stay the process's own.
    """

    _loop: asyncio.AbstractEventLoop

    def __init__(self, name: str) -> None:
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> Self:
        """Begin to serve."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()
        return self

    def close(self) -> None:
        """End, if it has begun, and wait until it has ended."""
        if self._thread.ident is not None:
            with suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        """Serve until ``_stopping`` is set."""
        raise NotImplementedError
