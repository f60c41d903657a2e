"""Servers on threads of this process, each with an event loop of its own; one kind of them answers pages."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from types import TracebackType
from typing import NamedTuple, Self

# Of a page server: connections at once, the longest head of a request, and the seconds for it and its answer.
CONNECTIONS, HEAD_BYTES, HEAD_SECONDS, ANSWER_SECONDS = 32, 8192, 5.0, 30.0


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


class Page(NamedTuple):
    """What is answered to a request."""

    status: int
    kind: str
    body: bytes


class PageServer(ServerThread):
    """Answers one short HTTP request per connection, in time or not at all; a subclass says what.

    Prometheus' own server takes a thread for each connection, as long as a stranger likes, and prints what it
    does not understand; uvicorn would wait for a request's head without end. It takes over the `listener`.
    """

    headers = ""

    def __init__(self, name: str, listener: socket.socket) -> None:
        super().__init__(name)
        self._listener = listener
        self._open = 0

    def page(self, method: str, path: str, headers: Mapping[str, str]) -> Page:
        """The answer; names of headers are in lower case."""
        raise NotImplementedError

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._listener, limit=HEAD_BYTES)
        await self._stopping.wait()
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            try:
                if self._open <= CONNECTIONS:
                    async with asyncio.timeout(HEAD_SECONDS):
                        head = await reader.readuntil(b"\r\n\r\n")
                    async with asyncio.timeout(ANSWER_SECONDS):
                        writer.write(self._answer(head.decode("latin-1")))
                        await writer.drain()
            finally:
                self._open -= 1
                writer.close()

    def _answer(self, head: str) -> bytes:
        request, *lines = head.split("\r\n")
        method, path, *_ = [*request.split(" "), ""]
        named = (line.partition(":") for line in lines)
        status, kind, body = self.page(
            method, path.partition("?")[0], {name.lower(): value.strip() for name, _, value in named}
        )
        start = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{self.headers}content-type: {kind}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        return start.encode() + (b"" if method == "HEAD" else body)
