"""Tickets: good for one round, client and certificate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sigil.errors import NetworkError
from sigil.transport.client import parse_ticket
from sigil.transport.limits import Reason, Rejection
from sigil.transport.rounds import OpenRound


def opened(clients: int = 3) -> tuple[OpenRound, dict[int, str]]:
    """Round 3, in which all clients have the certificate "aa", and its tickets."""
    federation = SimpleNamespace(local_epochs=1)
    served: Any = SimpleNamespace(training=SimpleNamespace(settings=SimpleNamespace(federation=federation)))
    current = OpenRound(3, {}, lr=0.1, clients=dict.fromkeys(range(clients), "aa"), served=served)
    return current, current.issue()


@pytest.mark.parametrize(
    ("round_of_ticket", "client", "fingerprint", "reason"),
    [
        ("another", 1, "aa", Reason.TICKET),
        ("this", 2, "aa", Reason.TICKET),
        ("this", 7, "aa", Reason.TICKET),
        ("this", 1, "bb", Reason.CERTIFICATE),
    ],
)
def test_a_ticket_is_bound_to_round_client_and_certificate(
    round_of_ticket: str, client: int, fingerprint: str, reason: Reason
) -> None:
    current, tickets = opened()
    _, others = opened()
    assert current.admit(parse_ticket(tickets[1]), 1, "aa") is current.sessions[1]
    ticket = parse_ticket((tickets if round_of_ticket == "this" else others)[1])
    with pytest.raises(Rejection) as rejection:
        current.admit(ticket, client, fingerprint)
    assert rejection.value.reason is reason


def test_a_guessed_or_changed_ticket_is_unknown() -> None:
    current, tickets = opened()
    ticket = bytearray(parse_ticket(tickets[1]))
    ticket[5] ^= 1
    for guess in (bytes(ticket), bytes(32)):
        with pytest.raises(Rejection) as rejection:
            current.admit(guess, 1, "aa")
        assert rejection.value.reason is Reason.TICKET


def test_tickets_differ_and_the_round_does_not_hold_them() -> None:
    current, issued = opened(100)
    tickets = set(issued.values())
    assert len(tickets) == 100
    held = repr(vars(current))
    assert not any(ticket in held or repr(bytes.fromhex(ticket)) in held for ticket in tickets)


@pytest.mark.parametrize("text", ["", "zz" * 32, "00" * 31, "00" * 33, "é" * 64])
def test_what_is_no_ticket_is_said_so(text: str) -> None:
    with pytest.raises(NetworkError, match="32 bytes in hexadecimal"):
        parse_ticket(text)
