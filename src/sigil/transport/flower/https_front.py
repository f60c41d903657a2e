"""The HTTPS front: the only way from outside to the owner's SuperLink, and only to its Fleet API.

A SuperLink serves three APIs on one port. Fleet is for clients and checks each call's signature against the
registered public keys. Control (start and stop runs, register and remove nodes) and Runtime (act as the
ServerApp) are the owner's, and anybody who reaches the port may call them. Clients are not trusted here,
so the SuperLink listens on the loopback address, and this process forwards ``POST /v1/fleet/…`` to it and
refuses everything else.

The process holds the key, so nobody may make it grow. A connection passes these limits, in this order, and
what is over one of them is refused and counted:

1. a place among the strangers of this second, unless a client has come from that address before, and among
   the connections and the handshakes under way, before a byte is read;
2. a handshake in time, with a certificate that the owner's authority signed;
3. a certificate that takes part in this run, and no more connections with it than agreed; of what Flower
   would keep, no more bytes in a round than its answer can have, or its holder is out of the run;
4. a request's head in time, its body within its own size, its client's share and the front's whole budget;
5. an answer that is read in time; it is passed on piece by piece.
"""

from __future__ import annotations

import asyncio
import math
import re
import socket
import ssl
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, MutableMapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from sigil.serving import ServerThread
from sigil.transport.flower.processes import OWNER_HEADER
from sigil.transport.limits import Budget, FrontRefusal, Limits
from sigil.transport.metrics import Metrics

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# What Flower calls its methods; a decoded path may hold anything, line ends and question marks included.
FLEET = re.compile(r"/v1/fleet/[a-z0-9-]{1,64}")
# Flower cuts arrays into objects of 5 MB and sends each by itself; all other requests are short.
LIMIT = 16 * 2**20
SHORT = 2**20
# What is still read of a request that is refused.
DROPPED_BYTES, DROPPED_SECONDS = 2**23, 2.0
PUSH, ACTIVATE = "/v1/fleet/push-", "/v1/fleet/activate-node"
# What a client may send before the first round, where nobody has asked it for anything.
FIRST_ALLOWANCE = 2**24
# One client may take this part of the whole budget: the uploads of a SuperNode, two at once, fit many times.
SHARE = 2
# This many addresses are remembered per client: clients move, but not without end.
FAMILIAR = 16
# Headers that belong to one connection, not to the message.
HOP = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"host"})
# What shows the SuperLink that a request comes from here; a client's own word for it is left out.
OWNER = OWNER_HEADER.encode()


class HttpsFront(ServerThread):
    """An HTTPS server in a thread of this process that forwards Flower's Fleet API.

    It takes over the socket `listener`, and tells the SuperLink its `secret`. Its certificates are in
    `folder`, `known` are the fingerprints of those that take part, `limit` is the largest body of a request.
    """

    def __init__(
        self,
        listener: socket.socket,
        folder: Path,
        *,
        target: str,
        secret: str = "",
        known: Collection[str],
        limits: Limits | None = None,
        metrics: Metrics | None = None,
        limit: int = LIMIT,
    ) -> None:
        super().__init__("https-front")
        self.target = f"https://{target}"
        self._secret = secret.encode()
        self.limit = limit
        self.limits = limits or Limits()
        self.known = frozenset(known)
        self.connections: Counter[str] = Counter()
        self.refused = (metrics or Metrics()).refused
        self.open = 0
        self._handshakes = 0
        self._held: Counter[str] = Counter()
        self._allowance = FIRST_ALLOWANCE
        self._sent: Counter[str] = Counter()
        self._over: set[str] = set()
        self._heard: dict[str, float] = {}
        self._strangers: Counter[str] = Counter()
        self._second = 0
        self._familiar: set[str] = set()
        self._budget = Budget(self.limits.front_bytes)
        authority = folder / "ca.pem"
        self._trust = ssl.create_default_context(cafile=authority)
        self._secure = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority)
        self._secure.verify_mode = ssl.CERT_REQUIRED
        self._secure.load_cert_chain(folder / "server.pem", folder / "server.key")
        self._config = uvicorn.Config(
            self._answer,
            interface="asgi3",
            lifespan="off",
            http="h11",
            ws="none",
            log_config=None,
            # What strangers send does not concern the owner's terminal; refusals are counted.
            log_level="critical",
        )
        self._config.load()
        self._state = ServerState()
        self._listener = listener
        self._client: httpx.AsyncClient
        self.start()

    def begin_round(self, allowance: int) -> None:
        """Let every client push this many bytes more, except those that have pushed too many before."""

        def begin() -> None:
            self._allowance = allowance
            self._sent.clear()

        self._loop.call_soon_threadsafe(begin)

    def over_allowance(self) -> frozenset[str]:
        """The fingerprints of clients that have pushed too many bytes."""
        return frozenset(self._over)

    def silent(self, seconds: float) -> frozenset[str]:
        """The fingerprints of clients that have neither sent nor read anything for so long."""
        now = self._loop.time()
        return frozenset(
            holder for holder in self.known if now - self._heard.get(holder, -math.inf) > seconds
        )

    def heard(self, holder: str) -> None:
        """Something has come from this holder of a certificate."""
        self._heard[holder] = self._loop.time()

    async def _serve(self) -> None:
        self._listener.setblocking(False)
        pool = httpx.Limits(max_connections=self.limits.front_connections, max_keepalive_connections=16)
        async with httpx.AsyncClient(
            verify=self._trust, timeout=self.limits.front_seconds, trust_env=False, limits=pool
        ) as self._client:
            accepting = asyncio.create_task(self._accept())
            await self._stopping.wait()
            accepting.cancel()
            self._listener.close()
            for protocol in list(self._state.connections):
                protocol.transport.abort()

    async def _accept(self) -> None:
        tasks: set[asyncio.Task[None]] = set()
        while True:
            try:
                line, (address, *_) = await self._loop.sock_accept(self._listener)
            except OSError:
                # No file descriptor is left, say: those who are here may finish meanwhile.
                self.refused(FrontRefusal.CONNECTIONS)
                await asyncio.sleep(0.1)
                continue
            if why := self._full(address):
                self.refused(why)
                line.close()
                continue
            self.open += 1
            self._handshakes += 1
            task = self._loop.create_task(self._shake_hands(line, address))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    def _full(self, address: str) -> FrontRefusal | None:
        """Why there is no room for a connection from there, if so: each handshake costs milliseconds."""
        limits = self.limits
        if address not in self._familiar:
            if (second := int(self._loop.time())) != self._second:
                self._second = second
                self._strangers.clear()
            if (
                self._strangers[address] >= limits.front_strangers_per_address
                or self._strangers.total() >= limits.front_strangers
            ):
                return FrontRefusal.STRANGERS
            self._strangers[address] += 1
        full = self.open >= limits.front_connections or self._handshakes >= limits.front_handshakes
        return FrontRefusal.CONNECTIONS if full else None

    def welcome(self, address: str) -> None:
        """A client has shown its certificate: from its address it may come as often as it needs."""
        if len(self._familiar) < FAMILIAR * len(self.known):
            self._familiar.add(address)

    async def _shake_hands(self, line: socket.socket, address: str) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: _Connection(self, self._config, self._state, address),
                line,
                ssl=self._secure,
                ssl_handshake_timeout=self.limits.hello_seconds,
                ssl_shutdown_timeout=1.0,
            )
        except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
            # The frames of a failed handshake refer to each other and to 0.3 MB of buffers, which would stay
            # until the collector looks at everything: rarely, in a process with as many objects as this one.
            traceback.clear_frames(error.__traceback__)
            self.refused(FrontRefusal.HANDSHAKE)
            self.open -= 1
            line.close()
        finally:
            self._handshakes -= 1

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        status = 0

        async def begin(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)
            if status < 400:
                self.heard(scope["state"]["holder"])  # one that reads an answer is there, however slowly

        try:
            async with asyncio.timeout(self.limits.front_seconds):
                try:
                    await self._forward(scope, receive, begin)
                except _Refusal as refusal:
                    self.refused(refusal.why)
                    await _refuse(begin, refusal.status, refusal.body, unread=receive)
                except httpx.TransportError:
                    await _refuse(begin, 503, b"The SuperLink is not there.")
        except TimeoutError:
            self.refused(FrontRefusal.TIME)
            if not status:
                await _refuse(send, 504, b"The request took too long.")

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, holder = scope["path"], scope["state"]["holder"]
        if scope["method"] != "POST" or not FLEET.fullmatch(path) or scope["query_string"]:
            raise _Refusal(FrontRefusal.REQUEST, 403, b"Only Flower's Fleet API is served here.")
        largest = self.limit if path == PUSH + "object" else min(self.limit, SHORT)
        size = _size(scope, largest)
        if size > largest:
            raise _Refusal(FrontRefusal.BYTES, 413, b"The request is too large.")
        if path.startswith(PUSH):
            # What is pushed is kept by the SuperLink: it counts as soon as it is announced.
            self._sent[holder] += size
            if self._sent[holder] > self._allowance:
                self._over.add(holder)
            if holder in self._over:
                raise _Refusal(FrontRefusal.ALLOWANCE, 413, b"This client has sent more than it may.")
        if self._held[holder] + size > max(self.limit, self.limits.front_bytes // SHARE):
            # 503, like the 504 above, is what a client tries again after.
            raise _Refusal(FrontRefusal.BYTES, 503, b"This client has too many requests open.")
        async with self._reserved(holder, size):
            with suppress(ConnectionError):
                body = await _read(receive, size)
                if body is None:
                    raise _Refusal(FrontRefusal.BYTES, 413, b"The request is too large.")
                await self._pass_on(path, body, scope["headers"], send)

    @asynccontextmanager
    async def _reserved(self, holder: str, size: int) -> AsyncIterator[None]:
        """Room for a body: of its client's share at once, of the whole as soon as there is some."""
        self._held[holder] += size
        try:
            await self._budget.acquire(size)
            try:
                yield
            finally:
                self._budget.release(size)
        finally:
            self._held[holder] -= size
            self._held += Counter()  # forgets those that hold nothing

    async def _pass_on(self, path: str, body: bytes, headers: list[tuple[bytes, bytes]], send: Send) -> None:
        passed = [(name, value) for name, value in headers if name not in HOP and name != OWNER]
        passed.append((OWNER, self._secret))
        async with self._client.stream("POST", self.target + path, content=body, headers=passed) as answer:
            kept = [(name, value) for name, value in answer.headers.raw if name.lower() not in HOP]
            await send({"type": "http.response.start", "status": answer.status_code, "headers": kept})
            async for part in answer.aiter_raw():
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


@dataclass(eq=False)
class _Refusal(Exception):
    """Ends a request, with the reason and our own answer."""

    why: FrontRefusal
    status: int
    body: bytes


class _Connection(H11Protocol):
    """One connection after its handshake: counted by certificate, and not for ever without a request."""

    def __init__(self, front: HttpsFront, config: uvicorn.Config, state: ServerState, address: str) -> None:
        super().__init__(config, state, {})
        self._address = address
        self._front = front
        self._holder: str | None = None
        self._waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        certificate = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        holder, front = sha256(certificate).hexdigest(), self._front
        if holder not in front.known:
            front.refused(FrontRefusal.CERTIFICATE)
            transport.abort()
        elif front.connections[holder] >= front.limits.front_connections_per_client:
            front.refused(FrontRefusal.CONNECTIONS)
            transport.abort()
        else:
            front.connections[holder] += 1
            self._holder = holder
            self.app_state = {"holder": holder}
            front.welcome(self._address)
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        if self._holder is not None:
            self._front.connections[self._holder] -= 1
        self._front.open -= 1
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # One that is not let in has not come, though Flower may still take it for the process before it.
        if self._holder is not None and self.scope is not None and self.scope["path"] != ACTIVATE:
            self._front.heard(self._holder)
        if self.cycle is not None and not self.cycle.response_complete:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None
        elif self._waiting is None:
            self._wait_for_head()

    def _wait_for_head(self) -> None:
        self._waiting = self.loop.call_later(self._front.limits.front_seconds, self._give_up)

    def _give_up(self) -> None:
        self._front.refused(FrontRefusal.TIME)
        self.transport.abort()


def _size(scope: Scope, largest: int) -> int:
    """The size that a request announces; the largest one if it announces none."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value)  # h11 lets nothing but digits through
    return largest


async def _read(receive: Receive, size: int, *, keep: bool = True) -> bytes | None:
    """The body of a request, or None if it is larger than reserved; nothing of it if it is not kept."""
    parts: list[bytes] = []
    left = size
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError("The client has gone.")
        part = message.get("body", b"")
        left -= len(part)
        if left < 0:
            return None
        if keep:
            parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts)


async def _refuse(send: Send, status: int, body: bytes, unread: Receive | None = None) -> None:
    """Answer a request here, and end its connection.

    A connection that is closed while a request is still coming in loses the answer, so what is on its way is
    read and dropped first, within limits.
    """
    await send({"type": "http.response.start", "status": status, "headers": [(b"connection", b"close")]})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    if unread is not None:
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(DROPPED_SECONDS):
                await _read(unread, DROPPED_BYTES, keep=False)
    await send({"type": "http.response.body", "body": b""})
