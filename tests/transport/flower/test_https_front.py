"""The HTTPS front: Flower's Fleet API passes, nothing else does."""

from __future__ import annotations

import gc
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from harness.waiting import SECONDS, until
from sigil.transport import Limits, Metrics, certificates
from sigil.transport.flower.https_front import LIMIT, HttpsFront
from sigil.transport.flower.processes import free_port
from sigil.transport.listening import listen_on

# Some of Flower's Fleet API.
FLEET = ("push-object", "push-messages", "pull-messages", "activate-node", "send-node-heartbeat")


@dataclass
class Backend:
    """Stands for a SuperLink: remembers what arrived and answers with the body reversed."""

    port: int
    seen: list[tuple[str, bytes, dict[bytes, bytes]]] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.seen.append((scope["path"], body, dict(scope["headers"])))
        headers = [(b"x-answer", b"yes"), (b"content-type", b"application/x-protobuf")]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        await send({"type": "http.response.body", "body": body[::-1]})


@dataclass
class Place:
    backend: Backend
    server: uvicorn.Server
    front: HttpsFront
    client: httpx.Client


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("front")
    certificates.make(folder, clients=3)
    return folder


def known(folder: Path, *clients: int) -> list[str]:
    """The fingerprints of some clients' certificates."""
    return [
        certificates.ClientCredentials.load(certificates.bundle_folder(folder, client)).fingerprint
        for client in clients
    ]


def secure(folder: Path, client: int | None = 0) -> ssl.SSLContext:
    """What a client brings to the handshake; None brings no certificate."""
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    if client is not None:
        bundle = certificates.bundle_folder(folder, client)
        context.load_cert_chain(bundle / "client.pem", bundle / "client.key")
    return context


def connect(front: HttpsFront, folder: Path, client: int | None = 0) -> ssl.SSLSocket:
    """A connection after its handshake."""
    line = socket.create_connection(front._listener.getsockname()[:2], timeout=SECONDS)
    return secure(folder, client).wrap_socket(line, server_hostname="localhost")


def ended(line: ssl.SSLSocket) -> bool:
    """Whether the front ends a connection, instead of going on with it."""
    try:
        return line.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def refusals(metrics: Metrics) -> dict[str, float]:
    text = metrics.text()
    found = re.findall(r'^sigil_front_refused_total\{reason="(\w+)"\} (\S+)$', text, re.MULTILINE)
    return {reason: float(count) for reason, count in found if float(count)}


@pytest.fixture
def guarded(folder: Path) -> Iterator[Any]:
    """Makes fronts with limits of their own, before a SuperLink that is not there."""
    with ExitStack() as closing:

        def make(**limits: float) -> tuple[HttpsFront, Metrics]:
            metrics = Metrics()
            front = HttpsFront(
                listen_on("127.0.0.1", 0),
                folder,
                target="127.0.0.1:1",
                known=known(folder, 0, 1),
                # All come from one address here.
                limits=Limits(
                    **{"front_strangers": 10_000, "front_strangers_per_address": 10_000} | limits  # type: ignore[arg-type]
                ),
                metrics=metrics,
                limit=100_000,
            )
            return closing.enter_context(front), metrics

        yield make


HEAD = b"POST /v1/fleet/x HTTP/1.1\r\nhost: a\r\ncontent-length: 90000\r\n\r\n"


def heard(front: HttpsFront, context: ssl.SSLContext) -> bool:
    """Whether the front answers a request that comes in over such a handshake."""
    line = socket.create_connection(front._listener.getsockname()[:2], timeout=SECONDS)
    try:
        with context.wrap_socket(line, server_hostname="localhost") as secured:
            secured.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            return not ended(secured)
    except OSError:
        return False


def test_nobody_is_heard_without_a_certificate_of_this_run(
    folder: Path, guarded: Any, tmp_path: Path
) -> None:
    front, metrics = guarded()
    assert heard(front, secure(folder, 0))
    assert not heard(front, secure(folder, None))
    assert not heard(front, secure(folder, 2)), "of the authority, but not in this run"
    certificates.make(tmp_path, clients=1)
    stranger = secure(tmp_path)
    stranger.load_verify_locations(folder / "ca.pem")
    assert not heard(front, stranger), "of another authority"
    until(lambda: refusals(metrics) == {"handshake": 2.0, "certificate": 1.0, "request": 1.0})


def test_a_handshake_that_does_not_come_is_ended(guarded: Any) -> None:
    front, metrics = guarded(hello_seconds=0.5)
    with socket.create_connection(front._listener.getsockname()[:2], timeout=SECONDS) as silent:
        assert silent.recv(1) == b""
    until(lambda: refusals(metrics) == {"handshake": 1.0})


def test_connections_are_limited_in_all_by_certificate_and_before_the_handshake(
    folder: Path, guarded: Any
) -> None:
    front, metrics = guarded(front_connections=3, front_connections_per_client=2, front_handshakes=1)
    with connect(front, folder, 0) as first, connect(front, folder, 0) as second:
        with connect(front, folder, 0) as third:
            assert ended(third), "two with this certificate are open"
        with connect(front, folder, 1) as other:
            with socket.create_connection(front._listener.getsockname()[:2], timeout=SECONDS) as fourth:
                assert fourth.recv(1) == b"", "three are open"
            for line in (first, second, other):
                line.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
                assert line.recv(12) == b"HTTP/1.1 403"
    until(lambda: refusals(metrics)["connections"] == 2.0)
    until(lambda: front.open == 0)
    with (
        socket.create_connection(front._listener.getsockname()[:2]),
        socket.create_connection(front._listener.getsockname()[:2], timeout=SECONDS) as late,
    ):
        assert late.recv(1) == b"", "one handshake is under way"


def test_bodies_are_limited_in_all_and_by_client(folder: Path, guarded: Any) -> None:
    front, metrics = guarded(front_bytes=200_000)
    with connect(front, folder, 0) as first, connect(front, folder, 0) as second:
        first.sendall(HEAD)
        until(lambda: front._held.total() == 90_000)
        second.sendall(HEAD)
        assert second.recv(12) == b"HTTP/1.1 503", "a client has half of all"
    assert refusals(metrics) == {"bytes": 1.0}
    until(lambda: not front._held.total())


@pytest.mark.parametrize("said", [b"", b"POST /v1/fl", HEAD, HEAD + bytes(100)])
def test_a_request_that_does_not_come_to_its_end_is_ended(folder: Path, guarded: Any, said: bytes) -> None:
    front, metrics = guarded(front_seconds=0.5)
    with connect(front, folder) as line:
        line.sendall(said)
        answer = b"".join(iter(lambda: line.recv(1000), b""))
        assert answer[:12] == (b"HTTP/1.1 504" if said.startswith(HEAD) else b"")
    until(lambda: refusals(metrics) == {"time": 1.0})
    until(lambda: not front._held.total() and front.open == 0)


@pytest.fixture(scope="module")
def place(folder: Path) -> Iterator[Place]:
    kept = listen_on("127.0.0.1", 0)
    backend = Backend(kept.getsockname()[1])
    server = uvicorn.Server(
        uvicorn.Config(
            backend,
            ssl_certfile=folder / "server.pem",
            ssl_keyfile=folder / "server.key",
            interface="asgi3",
            lifespan="off",
            log_config=None,
        )
    )
    thread = threading.Thread(target=server.run, args=([kept],), daemon=True)
    thread.start()
    until(lambda: server.started, alive=thread.is_alive)
    listener = listen_on("127.0.0.1", 0)
    port = listener.getsockname()[1]
    target = f"127.0.0.1:{backend.port}"
    trust = secure(folder)
    with (
        HttpsFront(listener, folder, target=target, known=known(folder, 0), limit=100_000) as front,
        httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=trust, trust_env=False) as client,
    ):
        yield Place(backend, server, front, client)
    server.should_exit = True
    thread.join()


def test_the_fleet_api_passes_with_body_headers_and_status(place: Place) -> None:
    answer = place.client.post("/v1/fleet/pull-messages", content=b"abc", headers={"flwr-signature": "s"})
    assert (answer.status_code, answer.content, answer.headers["x-answer"]) == (201, b"cba", "yes")
    path, body, headers = place.backend.seen[-1]
    assert (path, body, headers[b"flwr-signature"]) == ("/v1/fleet/pull-messages", b"abc", b"s")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/control/start-run"),
        ("POST", "/v1/control/register-node"),
        ("POST", "/v1/runtime/acquire-task"),
        ("POST", "/v1/runtime/push-messages"),
        ("GET", "/v1/fleet/pull-messages"),
        ("DELETE", "/v1/fleet/pull-messages"),
        ("GET", "/docs"),
        ("GET", "/"),
        ("POST", "/v1/fleet"),
        ("POST", "/V1/FLEET/pull-messages"),
        ("POST", "//v1/fleet/pull-messages"),
        ("POST", "/v1/fleet/..%2fcontrol/start-run"),
        ("POST", "/v1/fleet/%2e%2e/control/start-run"),
        ("POST", "/v1/fleet/pull-messages?next=/v1/control/start-run"),
        ("POST", "/v1/fleet/pull-messages%3Fnext=1"),
        ("POST", "/v1/fleet/pull-messages%23"),
        ("POST", "/v1/fleet/x%0d%0ahost:%20elsewhere"),
        ("POST", "/v1/fleet/%00"),
        ("POST", "/v1/fleet/%ff"),
        ("POST", "/v1/fleet/" + 65 * "x"),
    ],
)
def test_everything_else_is_refused_and_does_not_arrive(place: Place, method: str, path: str) -> None:
    before = len(place.backend.seen)
    request = place.client.build_request(method, "/")
    request.url = request.url.copy_with(raw_path=path.encode())
    assert place.client.send(request).status_code == 403
    assert len(place.backend.seen) == before


def test_a_request_that_is_too_large_is_refused(place: Place) -> None:
    before = len(place.backend.seen)
    for content in (bytes(100_001), iter([bytes(60_000), bytes(60_000)])):
        assert place.client.post("/v1/fleet/push-object", content=content).status_code == 413
    assert len(place.backend.seen) == before
    assert place.client.post("/v1/fleet/push-object", content=bytes(100_000)).status_code == 201


def test_a_client_that_pushes_more_than_its_answer_can_have_is_refused_and_named(
    guarded: Any, folder: Path
) -> None:
    """Flower kept whatever came, and the owner's process read all of it into memory."""
    front, metrics = guarded()
    address = f"https://127.0.0.1:{front._listener.getsockname()[1]}"
    greedy, honest = known(folder, 0, 1)

    def push(client: int, size: int, what: str = "push-object") -> int:
        # The SuperLink is away (503); what does not even come to it is refused (413).
        with httpx.Client(base_url=address, verify=secure(folder, client), trust_env=False) as line:
            return line.post(f"/v1/fleet/{what}", content=bytes(size)).status_code

    front.begin_round(300_000)
    assert [push(0, 100_000) for _ in range(3)] == [503] * 3
    assert [push(1, 100_000) for _ in range(2)] == [503] * 2
    assert front.over_allowance() == set()
    assert push(0, 1) == 413
    assert front.over_allowance() == {greedy}
    assert refusals(metrics) == {"allowance": 1}
    front.begin_round(300_000)
    assert [push(0, 1), push(0, 1, "push-messages")] == [413, 413], "who was over stays so"
    assert [push(1, 100_000) for _ in range(3)] == [503] * 3
    assert push(0, 1000, "pull-messages") == 503, "it may still ask, and hear that the training is over"
    assert honest not in front.over_allowance()


def test_only_objects_are_large(guarded: Any, folder: Path) -> None:
    front, _ = guarded()
    front.limit = LIMIT
    address = f"https://127.0.0.1:{front._listener.getsockname()[1]}"
    with httpx.Client(base_url=address, verify=secure(folder), trust_env=False) as line:
        large = {name: line.post(f"/v1/fleet/{name}", content=bytes(2_000_000)).status_code for name in FLEET}
    assert large == {name: 503 if name == "push-object" else 413 for name in FLEET}


def test_a_superlink_that_is_away_is_said_to_be_away(folder: Path) -> None:
    listener = listen_on("127.0.0.1", 0)
    port = listener.getsockname()[1]
    trust = secure(folder)
    with HttpsFront(listener, folder, target=f"127.0.0.1:{free_port()}", known=known(folder, 0)):
        answer = httpx.post(f"https://127.0.0.1:{port}/v1/fleet/x", verify=trust, trust_env=False)
    assert answer.status_code == 503


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x00\x05hello"], ids=["nothing", "no handshake"])
def test_failed_handshakes_leave_nothing_for_the_collector(guarded: Any, said: bytes) -> None:
    """Each held 0.3 MB until every object of the process was looked at, which thousands did not wait for."""
    front, metrics = guarded()
    gc.collect()
    before = handshakes_held()
    gc.disable()
    try:
        for _ in range(20):
            with socket.create_connection(front._listener.getsockname()[:2], timeout=SECONDS) as line:
                line.sendall(said)
        until(lambda: refusals(metrics).get("handshake") == 20)
        until(lambda: handshakes_held() <= before)
    finally:
        gc.enable()


def handshakes_held() -> int:
    return sum(type(thing).__name__ == "SSLProtocol" for thing in gc.get_objects())


def test_a_client_that_says_nothing_is_silent(guarded: Any, folder: Path) -> None:
    front, _ = guarded()
    both = set(known(folder, 0, 1))
    assert front.silent(3600) == both, "nobody has come yet"
    with connect(front, folder, client=0) as line:
        line.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n")
        assert b" 503 " in line.recv(100), "there is no SuperLink"
        assert front.silent(3600) == both - set(known(folder, 0))
        assert front.silent(0) == both


def test_strangers_get_few_handshakes_in_a_second_and_clients_as_many_as_they_need(
    guarded: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    front, metrics = guarded(front_strangers_per_address=3, front_strangers=4)
    monkeypatch.setattr(front._loop, "time", lambda: 7.0)  # it stays the same second

    def comes(address: str, client: int | None) -> bool:
        where = front._listener.getsockname()[:2]
        line = socket.create_connection(where, timeout=SECONDS, source_address=(address, 0))
        try:
            with secure(folder, client).wrap_socket(line, server_hostname="localhost"):
                return True
        except OSError:
            return False

    assert [comes("127.0.0.2", None) for _ in range(5)] == [True] * 3 + [False] * 2
    assert comes("127.0.0.3", 0), "another address has its own share"
    assert [comes("127.0.0.3", 0) for _ in range(6)] == [True] * 6, "now it is known"
    assert not comes("127.0.0.4", None), "all strangers together have had theirs"
    assert refusals(metrics)["strangers"] == 3
