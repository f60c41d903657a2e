"""An open round: whose tickets are good, how far every client is, and what came of it."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sigil.federation.averaging import State, WeightedAverage
from sigil.injector import InjectionStatistics
from sigil.transport.limits import Reason, Rejection
from sigil.transport.session import ServedHalf, Session, Status
from sigil.transport.wire import TICKET_BYTES


@dataclass(frozen=True)
class ClientOutcome:
    """What became of one client: all numbers are the server's own count.

    `weight` is the number of different samples, as the average uses it: images of the round / local epochs.
    `reason` says why it was expelled; `repeated` counts near-repeated activations.
    """

    client: int
    status: Status
    reason: Reason | None
    steps: int
    images: int
    weight: float
    injections: list[InjectionStatistics]
    state: State | None
    repeated: int = 0


@dataclass(frozen=True)
class RoundOutcome:
    """A closed round."""

    round: int
    clients: dict[int, ClientOutcome]

    @property
    def finished(self) -> list[int]:
        """The clients that went all the way, in order."""
        return [index for index, client in self.clients.items() if client.status is Status.FINISHED]

    def server_state(self, clients: Iterable[int] | None = None) -> State:
        """The average of the finished clients' server halves, or of those of them whose index is given.

        Clients are added in the order of their index, which makes it equal bit for bit to the average of a
        training in one process.
        """
        chosen = set(self.finished) if clients is None else set(clients) & set(self.finished)
        average = WeightedAverage()
        for index in sorted(chosen):
            client = self.clients[index]
            assert client.state is not None
            average.add(client.state, weight=client.weight)
        return average.result()


class OpenRound:
    """A round that is under way; lives on the service's event loop.

    Each client gets a ticket: 32 random bytes let the holder of one certificate play one client. Only their
    hashes are kept, so that nothing in the server's memory or log can be used as a ticket.
    """

    def __init__(
        self, number: int, server_state: State, *, lr: float, clients: Mapping[int, str], served: ServedHalf
    ) -> None:
        self.number = number
        self._changed = asyncio.Event()
        self._epochs = served.training.settings.federation.local_epochs
        self._clients = {index: clients[index] for index in sorted(clients)}
        self._tickets: dict[bytes, int] = {}
        self.sessions = {
            index: Session(
                index,
                round_number=number,
                state=server_state,
                lr=lr,
                served=served,
                changed=self._changed.set,
            )
            for index in self._clients
        }

    def issue(self) -> dict[int, str]:
        """A new ticket for each client, as text for a configuration message."""
        tickets = {client: secrets.token_bytes(TICKET_BYTES) for client in self._clients}
        self._tickets = {_digest(ticket): client for client, ticket in tickets.items()}
        return {client: ticket.hex() for client, ticket in tickets.items()}

    def admit(self, ticket: bytes, client: int, fingerprint: str) -> Session:
        """The session of a client, for the holder of the certificate that its ticket was issued for."""
        if self._tickets.get(_digest(ticket)) != client:
            raise Rejection(
                Reason.TICKET, f"There is no such ticket for client {client} in round {self.number}."
            )
        if self._clients[client] != fingerprint:
            raise Rejection(Reason.CERTIFICATE, "The ticket belongs to the holder of another certificate.")
        return self.sessions[client]

    @property
    def settled(self) -> bool:
        """Whether every client is done, one way or another."""
        return all(session.over for session in self.sessions.values())

    async def wait(self, timeout: float | None) -> None:
        """Wait until all clients are settled, at most `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while not self.settled:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return

    def outcome(self) -> RoundOutcome:
        """What came of it."""
        return RoundOutcome(self.number, {index: self._one(s) for index, s in self.sessions.items()})

    def _one(self, session: Session) -> ClientOutcome:
        finished = session.status is Status.FINISHED
        return ClientOutcome(
            client=session.client,
            status=session.status,
            reason=session.reason,
            steps=session.steps,
            images=session.images,
            weight=session.images / self._epochs,
            injections=session.injections,
            state=session.server_state if finished else None,
            repeated=session.repeated,
        )


def _digest(ticket: bytes) -> bytes:
    return hashlib.sha256(ticket).digest()
