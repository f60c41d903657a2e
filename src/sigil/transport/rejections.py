"""Why a message or a stream is refused: a small, closed list, so that it can be counted."""

from __future__ import annotations

from enum import Enum

from sigil.errors import NetworkError


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
