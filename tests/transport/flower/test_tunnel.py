"""A client's way to the front: with its certificate, and with words for a person who waits."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.waiting import until
from sigil.errors import NetworkError
from sigil.transport import certificates
from sigil.transport.flower.processes import free_port
from sigil.transport.flower.tunnel import AWAY, Tunnel


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tunnel")
    certificates.make(folder, clients=1)
    return folder


@pytest.fixture
def front(folder: Path) -> Iterator[Any]:
    """A server that demands a certificate and sends back what it is sent."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    listener = context.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True)

    def serve() -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            with line:
                while data := line.recv(65_536):
                    line.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.close()


def through(tunnel: Tunnel, content: bytes) -> bytes:
    host, port = tunnel.address.split(":")
    trust = ssl.create_default_context(cafile=tunnel.ca)
    line = socket.create_connection((host, int(port)), timeout=30)
    with trust.wrap_socket(line, server_hostname="127.0.0.1") as secured:
        for start in range(0, len(content), 16_384):
            try:
                secured.sendall(content[start : start + 16_384])
            except OSError:
                return b""
        found = b""
        try:
            while len(found) < len(content) and (part := secured.recv(65_536)):
                found += part
        except ssl.SSLEOFError:
            pass  # the other end has gone without a word
        return found


def test_what_goes_in_comes_to_the_front_with_the_certificate(folder: Path, front: str) -> None:
    content = bytes(range(256)) * 200
    with Tunnel(certificates.bundle_folder(folder, 0), front) as tunnel:
        assert through(tunnel, content) == content


def test_a_server_that_is_away_is_mentioned_once_and_so_is_its_return(
    folder: Path, front: str, caplog: pytest.LogCaptureFixture
) -> None:
    away = f"127.0.0.1:{free_port()}"
    with Tunnel(certificates.bundle_folder(folder, 0), away) as tunnel:
        for _ in range(3):
            # A SuperNode tries again after this; after a broken TLS connection it would end.
            assert through(tunnel, b"x" * len(AWAY)) == AWAY
        assert caplog.text.count(f"Waiting for the owner at {away}") == 1
        tunnel._port = int(front.split(":")[1])
        assert through(tunnel, b"x") == b"x"
        until(lambda: "The owner is there, after" in caplog.text)


def test_somebody_else_at_the_owners_address_is_told_apart(
    folder: Path, front: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificates.make(tmp_path, clients=1)
    with Tunnel(certificates.bundle_folder(tmp_path, 0), front) as tunnel:
        assert through(tunnel, b"x" * len(AWAY)) == AWAY
    assert "not as the owner of this folder" in caplog.text


def test_a_bundle_that_is_not_whole_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match="give the folder"):
        Tunnel(tmp_path, "127.0.0.1:1")
