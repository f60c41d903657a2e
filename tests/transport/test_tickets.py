"""Tickets: good for one round, client and certificate."""

from __future__ import annotations

import pytest

from sigil.errors import NetworkError
from sigil.transport.client import parse_ticket
from sigil.transport.limits import Reason, Rejection
from sigil.transport.rounds import Bearer, TicketBook

MINE = Bearer(round=3, client=1, fingerprint="aa")


@pytest.mark.parametrize(
    ("claimed", "reason"),
    [
        (Bearer(4, 1, "aa"), Reason.TICKET),
        (Bearer(3, 2, "aa"), Reason.TICKET),
        (Bearer(3, 1, "bb"), Reason.CERTIFICATE),
    ],
)
def test_a_ticket_is_bound_to_round_client_and_certificate(claimed: Bearer, reason: Reason) -> None:
    book = TicketBook()
    ticket = parse_ticket(book.issue(MINE))
    book.check(ticket, claimed=MINE)
    with pytest.raises(Rejection) as rejection:
        book.check(ticket, claimed=claimed)
    assert rejection.value.reason is reason


def test_a_guessed_or_changed_ticket_is_unknown() -> None:
    book = TicketBook()
    ticket = bytearray(parse_ticket(book.issue(MINE)))
    ticket[5] ^= 1
    for guess in (bytes(ticket), bytes(32)):
        with pytest.raises(Rejection) as rejection:
            book.check(guess, claimed=MINE)
        assert rejection.value.reason is Reason.TICKET


def test_tickets_differ_and_the_book_does_not_hold_them() -> None:
    book = TicketBook()
    tickets = {book.issue(Bearer(1, client, "aa")) for client in range(100)}
    assert len(tickets) == 100
    held = repr(vars(book))
    assert not any(ticket in held or repr(bytes.fromhex(ticket)) in held for ticket in tickets)


@pytest.mark.parametrize("text", ["", "zz" * 32, "00" * 31, "00" * 33, "é" * 64])
def test_what_is_no_ticket_is_said_so(text: str) -> None:
    with pytest.raises(NetworkError, match="32 bytes in hexadecimal"):
        parse_ticket(text)
