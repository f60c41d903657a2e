"""Listening happens where it was asked for."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from harness.processes import free_pair
from sigil.errors import NetworkError
from sigil.transport.listening import Ports, listen_on, listening_address


def resolving_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    def found(host: str, port: None, **rest: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", found)


def test_addresses_of_this_machine_are_taken_as_they_are() -> None:
    assert listening_address("127.0.0.1") == "127.0.0.1"
    assert listening_address("localhost") == "127.0.0.1"
    assert listening_address("train.example", "0.0.0.0") == "0.0.0.0"


def test_a_name_is_not_all_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was: any name but localhost bound 0.0.0.0."""
    resolving_to(monkeypatch, "192.0.2.7")
    with pytest.raises(NetworkError, match=r"train\.example means 192\.0\.2\.7 here.*--listen"):
        listening_address("train.example")
    resolving_to(monkeypatch, "127.0.1.1")
    with pytest.raises(NetworkError, match=r"127\.0\.1\.1 here, which other machines cannot reach"):
        listening_address("this-machine")


def test_a_name_of_this_machine_is_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving_to(monkeypatch, "192.0.2.7", "198.51.100.1")
    monkeypatch.setattr("sigil.transport.listening._can_bind", lambda address: address == "198.51.100.1")
    assert listening_address("train.example") == "198.51.100.1"


@pytest.mark.parametrize(
    ("host", "listen", "words"),
    [
        ("0.0.0.0", None, "Clients cannot connect to"),
        ("::", None, "Clients cannot connect to"),
        ("192.0.2.7", None, "not an address of this machine"),
        ("127.0.0.1", "192.0.2.7", "--listen 192.0.2.7 is not an address"),
        ("127.0.0.1", "name", "not an IP address"),
    ],
)
def test_what_cannot_be_is_one_sentence(host: str, listen: str | None, words: str) -> None:
    with pytest.raises(NetworkError, match=words):
        listening_address(host, listen)


def test_both_ports_are_taken_or_none() -> None:
    port = free_pair()
    with Ports.take("127.0.0.1", port) as ports:
        assert [place.getsockname()[1] for place in (ports.front, ports.split)] == [port, port + 1]
        for taken in (port, port + 1):
            with pytest.raises(NetworkError, match=f"Port {taken} of 127.0.0.1 cannot be opened .* --page"):
                listen_on("127.0.0.1", taken, option="--page")
    with listen_on("127.0.0.1", port + 1):
        with pytest.raises(NetworkError, match=f"Port {port + 1} .* choose another --port"):
            Ports.take("127.0.0.1", port)
        listen_on("127.0.0.1", port).close()
