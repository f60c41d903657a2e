"""Tickets: 32 random bytes that let one certificate's holder play one client in one round, and nothing else.

The book keeps only hashes, so that nothing in the server's memory or log can be used as a ticket.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

from sigil.errors import NetworkError
from sigil.transport.rejections import Reason, Rejection
from sigil.transport.wire import TICKET_BYTES


@dataclass(frozen=True, slots=True)
class Seal:
    """What a ticket is bound to; `fingerprint` is the SHA-256 of the holder's certificate."""

    round: int
    client: int
    fingerprint: str


class TicketBook:
    """The tickets of one round."""

    def __init__(self) -> None:
        self._seals: dict[bytes, Seal] = {}

    def issue(self, seal: Seal) -> str:
        """A new ticket, as text for a configuration message."""
        ticket = secrets.token_bytes(TICKET_BYTES)
        self._seals[_digest(ticket)] = seal
        return ticket.hex()

    def check(self, ticket: bytes, *, claimed: Seal) -> None:
        """Reject a ticket that was not issued for exactly this round, client and certificate."""
        seal = self._seals.get(_digest(ticket))
        if seal is None or (seal.round, seal.client) != (claimed.round, claimed.client):
            raise Rejection(
                Reason.TICKET,
                f"There is no such ticket for client {claimed.client} in round {claimed.round}.",
            )
        if seal.fingerprint != claimed.fingerprint:
            raise Rejection(Reason.CERTIFICATE, "The ticket belongs to the holder of another certificate.")


def parse(ticket: str) -> bytes:
    """The bytes of a ticket that came as text."""
    try:
        value = bytes.fromhex(ticket)
    except ValueError:
        value = b""
    if len(value) != TICKET_BYTES:
        raise NetworkError(
            f"The ticket is not {TICKET_BYTES} bytes in hexadecimal; use the one that the server sent."
        )
    return value


def _digest(ticket: bytes) -> bytes:
    return hashlib.sha256(ticket).digest()
