"""A client's way to the front: with its certificate, and with words for a person who waits."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.clientapp import ClientApp

from harness.waiting import until
from sigil.errors import NetworkError
from sigil.transport import certificates
from sigil.transport.flower import node
from sigil.transport.flower.adapter import ask
from sigil.transport.flower.node import Node
from sigil.transport.flower.processes import free_port


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("node")
    certificates.make(folder, clients=1)
    return folder


class Front(ThreadingHTTPServer):
    """A server that demands a certificate, and answers everything with `status` and `head`."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.status, self.head, self.body = 200, {}, b""  # type: int, dict[str, str], bytes
        self.asked: list[tuple[str, str]] = []

        class Answer(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:
                handler.rfile.read(int(handler.headers["content-length"]))
                der = handler.connection.getpeercert(binary_form=True)  # type: ignore[attr-defined]
                self.asked.append(
                    (handler.path, certificates.fingerprint(ssl.DER_cert_to_PEM_cert(der).encode()))
                )
                handler.send_response(self.status)
                for name, value in {**self.head, "content-length": str(len(self.body))}.items():
                    handler.send_header(name, value)
                handler.end_headers()
                handler.wfile.write(self.body)

            def log_message(handler, *values: Any) -> None:
                return

        super().__init__(("127.0.0.1", port), Answer)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(folder / "server.pem", folder / "server.key")
        self.socket = context.wrap_socket(self.socket, server_side=True)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def handle_error(self, *values: Any) -> None:
        return


@pytest.fixture
def front(folder: Path) -> Iterator[Front]:
    with Front(folder) as front:
        yield front
        front.shutdown()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "POLL_SECONDS", 0.02)


def join(folder: Path, address: str) -> Node:
    return Node(certificates.bundle_folder(folder, 0), address, config={})


def test_a_request_comes_to_the_front_with_the_certificate(folder: Path, front: Front) -> None:
    with join(folder, front.address) as client:
        assert not ask(client._fleet.PullMessages, node={"node_id": 7}).messages_list
    mine = certificates.ClientCredentials.load(certificates.bundle_folder(folder, 0)).fingerprint
    assert front.asked == [("/v1/fleet/pull-messages", mine)]


def test_a_server_that_is_away_is_mentioned_once_and_so_is_its_return(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    tries: list[float] = []
    with join(folder, f"127.0.0.1:{port}") as client:
        tell = client._tell_away
        monkeypatch.setattr(client, "_tell_away", lambda error: (tries.append(1), tell(error)))
        over = threading.Event()
        working = threading.Thread(
            target=client.work, args=(ClientApp(),), kwargs={"finished": over.is_set}, daemon=True
        )
        working.start()
        until(lambda: len(tries) >= 3)
        assert caplog.text.count(f"Waiting for the owner at 127.0.0.1:{port} (Connection refused)") == 1
        with Front(folder, port) as front:
            until(lambda: "The owner is there, after" in caplog.text)
            over.set()
            working.join()
            front.shutdown()


def test_somebody_else_at_the_owners_address_is_told_apart(
    front: Front, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificates.make(tmp_path, clients=1)
    with join(tmp_path, front.address) as client:
        threading.Timer(0.2, client._closing.set).start()
        with pytest.raises(httpx.TransportError):
            ask(client._fleet.PullMessages, node={"node_id": 7})
    assert "not as the owner of this folder" in caplog.text
    assert front.asked == []


@pytest.mark.parametrize("status", [401, 403, 302, 500])
def test_an_owner_that_refuses_is_asked_again(
    folder: Path, front: Front, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    """A SuperNode of Flower's ends after some of these, follows others, and prints what it is sent."""
    front.status, front.body = status, b"\x1b[2J\x07no"
    front.head = {"location": f"https://{front.address}/elsewhere", "x-said": "\x1b[2J"}
    with join(folder, front.address) as client:
        client.work(ClientApp(), finished=lambda: len(front.asked) >= 3)
    assert f"The owner refuses this client: {status} '\\x1b[2J\\x07no'. Trying again." in caplog.text
    assert caplog.text.count("refuses this client") == 1
    assert {path for path, _ in front.asked} == {"/v1/fleet/activate-node"}


def test_a_client_that_was_killed_waits_until_it_is_missed(
    folder: Path, front: Front, caplog: pytest.LogCaptureFixture
) -> None:
    front.status = 412
    with join(folder, front.address) as client:
        client.work(ClientApp(), finished=lambda: len(front.asked) >= 3)
    assert caplog.text.count("Waiting until the owner misses the process that ran as this client before") == 1


def test_an_answer_that_is_none_of_flowers_does_not_end_the_client(
    folder: Path, front: Front, caplog: pytest.LogCaptureFixture
) -> None:
    front.body = b"\xff" * 100
    with join(folder, front.address) as client:
        client.work(ClientApp(), finished=lambda: len(front.asked) >= 3)
    assert "A task could not be delivered: ValueError" in caplog.text


def test_flower_prints_nothing_that_an_owner_sends(
    folder: Path, front: Front, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    from flwr.supercore.constant import VERSION_INCOMPATIBILITY_MESSAGE_METADATA_KEY

    front.head = {VERSION_INCOMPATIBILITY_MESSAGE_METADATA_KEY: "update\x1b[2J now"}
    with join(folder, front.address) as client:
        client.work(ClientApp(), finished=lambda: len(front.asked) >= 2)
    assert "update" not in caplog.text + "".join(capfd.readouterr())


def test_a_bundle_that_is_not_whole_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match="give the folder"):
        Node(tmp_path, "127.0.0.1:1", config={})
