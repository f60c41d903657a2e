"""The HTTPS front: the only way from outside to the owner's SuperLink, and only to its Fleet API.

A SuperLink serves three APIs on one port. Fleet is for clients and checks each call's signature against the
registered public keys. Control (start and stop runs, register and remove nodes) and Runtime (act as the
ServerApp) are the owner's, and anybody who reaches the port may call them. Clients are not trusted here,
so the SuperLink listens on the loopback address, and this process forwards ``POST /v1/fleet/…`` to it, a
limited number of bytes at a time, and refuses everything else.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import uvicorn

from sigil.errors import NetworkError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PREFIX = "/v1/fleet/"
# Flower cuts arrays into objects of 5 MB and sends each by itself.
LIMIT = 16 * 2**20
TIMEOUT = 60.0
# Headers that belong to one connection, not to the message.
HOP = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"host"})


class HttpsFront:
    """An HTTPS server in a thread of this process that forwards Flower's Fleet API."""

    def __init__(
        self, host: str, port: int, *, target: str, ca: Path, certificate: Path, key: Path, limit: int = LIMIT
    ) -> None:
        self.target = f"https://{target}"
        self.limit = limit
        self._trust = ssl.create_default_context(cafile=ca)
        self._client: httpx.AsyncClient | None = None
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.create_server((host, port), family=family)
        except OSError as error:
            raise NetworkError(
                f"Port {port} of {host} cannot be opened for clients ({error.strerror}); free it or choose "
                "another --port."
            ) from None
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._answer,
                ssl_certfile=certificate,
                ssl_keyfile=key,
                interface="asgi3",
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, args=([listener],), name="https-front", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop letting anybody in."""
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        if scope["method"] != "POST" or not path.startswith(PREFIX) or ".." in path or scope["query_string"]:
            await _reply(send, 403, b"Only Flower's Fleet API is served here.")
            return
        body = await self._read(receive)
        if body is None:
            await _reply(send, 413, b"The request is too large.")
            return
        if self._client is None:
            self._client = httpx.AsyncClient(verify=self._trust, timeout=TIMEOUT, trust_env=False)
        headers = [(name, value) for name, value in scope["headers"] if name not in HOP]
        try:
            answer = await self._client.post(self.target + path, content=body, headers=headers)
        except httpx.TransportError:
            await _reply(send, 503, b"The SuperLink is not there.")
            return
        await _reply(send, answer.status_code, answer.content, answer.headers.raw)

    async def _read(self, receive: Receive) -> bytes | None:
        """The body of a request, or None as soon as it is larger than allowed."""
        parts: list[bytes] = []
        size = 0
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            size += len(part)
            if size > self.limit:
                return None
            parts.append(part)
            more = message.get("more_body", False)
        return b"".join(parts)


async def _reply(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    """Answer with what the SuperLink answered; without its headers it is our own no, and ends the line."""
    kept = [(b"connection", b"close")]
    if headers is not None:
        kept = [(name, value) for name, value in headers if name.lower() not in HOP]
    await send({"type": "http.response.start", "status": status, "headers": kept})
    await send({"type": "http.response.body", "body": body})
