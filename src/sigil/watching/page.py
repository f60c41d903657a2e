"""The live page: one HTML file and one JSON answer, served by this process and read-only.

It listens on the loopback address unless told otherwise. Elsewhere a random token is part of the address, and
without it nothing is answered: the page shows losses and log lines, not the key, but they are the owner's.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import uvicorn

from sigil.errors import NetworkError
from sigil.watching.board import Board

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PAGE = Path(__file__).with_name("page.html")
CONNECTIONS = 64
_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
        b"frame-ancestors 'none'",
    ),
)


class LivePage:
    """Serves the page of a board until it is closed; `port` 0 is any free one."""

    def __init__(self, board: Board, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._board = board
        self._page = PAGE.read_bytes()
        loopback = _is_loopback(host)
        self._token = "" if loopback else secrets.token_urlsafe(16)
        # Names that lead here: another one is a web page that tries to read ours through the browser.
        self._hosts = {"localhost", "127.0.0.1", "[::1]"} if loopback else None
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.create_server((host, port), family=family)
        except OSError as error:
            raise NetworkError(
                f"The page cannot be served on {host}:{port}: {error.strerror}; choose another --page-port."
            ) from None
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{listener.getsockname()[1]}/{self._token}"
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._answer,
                interface="asgi3",
                lifespan="off",
                ws="none",
                log_config=None,
                log_level="critical",
                access_log=False,
                limit_concurrency=CONNECTIONS,
                timeout_keep_alive=5,
            )
        )
        self._thread = threading.Thread(target=self._run, args=(listener,), name="live-page", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, listener: socket.socket) -> None:
        # Not uvicorn's own run(): signals belong to the command.
        asyncio.run(self._server.serve([listener]))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        status, kind, body = self._found(scope)
        headers = [*_HEADERS, (b"content-type", kind), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _found(self, scope: Scope) -> tuple[int, bytes, bytes]:
        plain = b"text/plain; charset=utf-8"
        if scope["method"] not in ("GET", "HEAD"):
            return 405, plain, b"This page is read-only."
        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1").rsplit(":", 1)[0]
        if self._hosts is not None and host not in self._hosts:
            return 403, plain, b"This page is for this machine."
        path = scope["path"].strip("/")
        token, _, name = path.rpartition("/") if path.endswith("state.json") else (path, "", "")
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            return 404, plain, b"There is nothing here."
        if name == "state.json":
            return 200, b"application/json", json.dumps(self._board.state()).encode()
        return 200, b"text/html; charset=utf-8", self._page


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
