"""How much a client may ask of the server, and why it is refused: a small, closed list, to be counted."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum

from sigil.errors import ConfigError, NetworkError


@dataclass(frozen=True)
class Limits:
    """Limits of the split service and the HTTPS front; who goes beyond one loses that stream or request."""

    samples_per_batch: int | None = None
    """Samples in one message; none: one more than the batch size of the settings."""
    steps_per_round: int = 20_000
    """Steps of one client in one round."""
    samples_per_round: int = 2_000_000
    """Samples of one client in one round: the largest weight that it can get in the average."""
    bytes_per_round: int = 1 << 40
    """Bytes of tensors from one client in one round, replays included."""
    hello_seconds: float = 10.0
    """Longest wait for the first message of a stream."""
    step_seconds: float = 60.0
    """Longest time that a step may wait for its client, and the longest pause between two steps."""
    return_seconds: float | None = 120.0
    """How long the round waits for a client whose connection ended; none: until the round's deadline."""
    round_seconds: float | None = None
    """Longest time for a client's round, from its first connection; none: no limit but those of its steps."""
    reconnects: int = 10
    """How often a client may come back in one round."""
    streams: int = 1024
    """Streams at once, of all clients."""
    streams_per_client: int = 4
    """Streams at once with the same certificate: the one in use and the remains of broken ones."""
    refusals_per_minute: int = 60
    """Refused streams of one certificate in a minute that are answered at once; more wait a second each."""
    bytes_in_flight: int = 1 << 30
    """Bytes of activations and cut gradients of all open steps; more have to wait."""

    front_connections: int = 1024
    """Connections to the HTTPS front at once, of all clients."""
    front_connections_per_client: int = 32
    """Connections to the HTTPS front at once with the same certificate."""
    front_handshakes: int = 64
    """Connections to the HTTPS front that have not shown a certificate yet."""
    front_strangers: int = 40
    """Handshakes that begin in one second with addresses from which no client has come yet."""
    front_strangers_per_address: int = 8
    """The same with one such address."""
    front_bytes: int = 1 << 27
    """Bytes of requests that the HTTPS front holds at once; half of them of one client."""
    front_bytes_per_round: int | None = None
    """Bytes of one client's answers in one round; none: eight times its half, and 16 MiB."""
    front_seconds: float = 60.0
    """Longest time for one request to the HTTPS front, from its head to the last byte of its answer."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if value is not None and not value > 0:
                raise ConfigError(f"The limit {entry.name} is {value}, but it must be above 0.")


class Reason(Enum):
    """The reasons, as the label `reason` of the metrics and in the status that a client receives."""

    MALFORMED = "malformed"
    """Not a frame of this protocol, or a field that has no meaning."""
    VERSION = "version"
    """A frame of another version of the protocol."""
    TICKET = "ticket"
    """No such ticket, for this round and client."""
    CERTIFICATE = "certificate"
    """The ticket belongs to the holder of another certificate."""
    IDENTITY = "identity"
    """A frame for another round or client than the stream's ticket."""
    ORDER = "order"
    """Another message than the next one: a step skipped, repeated or taken backwards."""
    DTYPE = "dtype"
    """A number format that was not agreed."""
    SHAPE = "shape"
    """A tensor that does not fit the agreed cut, the number of classes or the batch limit."""
    SIZE = "size"
    """More or fewer bytes than the header promised, or a chunk that is too long."""
    TRUNCATED = "truncated"
    """The stream ended before the round did: hung up, or cut off by gRPC for a message that is too long."""
    VALUES = "values"
    """NaN or infinity."""
    LOSS = "loss"
    """A logit gradient that the agreed loss cannot produce."""
    REPEATED = "repeated"
    """The same samples again, where that is refused."""
    STEPS = "steps"
    """More steps, samples or bytes in the round than allowed."""
    DEADLINE = "deadline"
    """The client let the server wait too long."""
    STREAMS = "streams"
    """Too many streams at once."""
    RECONNECTS = "reconnects"
    """The client came back too often."""
    SUPERSEDED = "superseded"
    """The same client opened another stream."""
    CLOSED = "closed"
    """The round is over, or the client was expelled from it."""
    INTERNAL = "internal"
    """The server failed; its log says more than it may tell a client."""


class FrontRefusal(Enum):
    """Why the HTTPS front lets a connection or a request go, as the label `reason` of its counter."""

    HANDSHAKE = "handshake"
    """No certificate of the owner's authority, or not in time."""
    STRANGERS = "strangers"
    """Too many new connections in one second from addresses without a client."""
    CERTIFICATE = "certificate"
    """A certificate of the authority that does not take part in this run."""
    CONNECTIONS = "connections"
    """Too many at once, in all or with the same certificate."""
    REQUEST = "request"
    """Something else than Flower's Fleet API was asked for."""
    BYTES = "bytes"
    """A body that is too large, or more open ones than a client's share."""
    ALLOWANCE = "allowance"
    """More bytes in one round than a client's answer can have; the client is out."""
    TIME = "time"
    """A request that was not sent, or an answer that was not read, in time."""


class Rejection(Exception):
    """Ends one stream, with the reason and one sentence that is safe to show to a stranger."""

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason
        self.sentence = sentence


# What a reason means to a client that did as it was told; the others are about what it sent.
_IN_OTHER_WORDS = {
    Reason.TICKET: "The owner has started this round again since it asked this client",
    Reason.CLOSED: "The owner has gone on from this round, or was started again, while this client was away",
    Reason.SUPERSEDED: "Another process goes on with this client's round",
    Reason.RECONNECTS: "The connection broke too often in this round",
    Reason.DEADLINE: "The owner waited for this client longer than agreed",
    Reason.STREAMS: "The owner has too many connections at the moment",
    Reason.VERSION: "Owner and client must run the same release of Sigil",
}


class Refused(NetworkError):
    """The server ended this client's stream; trying again with the same ticket is pointless."""

    def __init__(self, reason: Reason, sentence: str) -> None:
        words = _IN_OTHER_WORDS.get(reason)
        if words is None:
            said = f"The server did not accept what came from this client ({reason.value}): {sentence}"
        else:
            said = f"{words} ({reason.value})."
        super().__init__(said)
        self.reason = reason


class Budget:
    """A number of bytes that open steps share; who does not fit waits in order of arrival.

    A step is admitted (its activation read from the network) only when its bytes fit. Until then the stream
    is not read, and the flow control of HTTP/2 holds the sender back. `changed` is told the bytes
    in flight whenever they change.
    """

    def __init__(self, size: int, *, changed: Callable[[int], object] = lambda used: None) -> None:
        self._size = size
        self._used = 0
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._changed = changed

    async def acquire(self, amount: int) -> None:
        """Wait until `amount` bytes are free, and take them."""
        if not self._queue and self._used + amount <= self._size:
            self._take(amount)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((amount, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(amount)
            else:
                self._queue.remove((amount, turn))
                self._serve()
            raise

    def release(self, amount: int) -> None:
        """Give bytes back."""
        self._take(-amount)
        self._serve()

    def _serve(self) -> None:
        while self._queue and self._used + self._queue[0][0] <= self._size:
            amount, turn = self._queue.popleft()
            if not turn.done():
                self._take(amount)
                turn.set_result(None)

    def _take(self, amount: int) -> None:
        self._used += amount
        self._changed(self._used)
