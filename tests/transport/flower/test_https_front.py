"""The HTTPS front: Flower's Fleet API passes, nothing else does."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from sigil.errors import NetworkError
from sigil.transport import certificates
from sigil.transport.flower.https_front import HttpsFront
from sigil.transport.flower.processes import free_port


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
    certificates.make(folder, clients=1)
    return folder


@pytest.fixture(scope="module")
def place(folder: Path) -> Iterator[Place]:
    files = {"certificate": folder / "server.pem", "key": folder / "server.key"}
    backend = Backend(free_port())
    server = uvicorn.Server(
        uvicorn.Config(
            backend,
            port=backend.port,
            ssl_certfile=files["certificate"],
            ssl_keyfile=files["key"],
            interface="asgi3",
            lifespan="off",
            log_config=None,
        )
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = free_port()
    target = f"127.0.0.1:{backend.port}"
    trust = ssl.create_default_context(cafile=folder / "ca.pem")
    with (
        HttpsFront("127.0.0.1", port, target=target, ca=folder / "ca.pem", limit=100_000, **files) as front,
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


def test_a_superlink_that_is_away_is_said_to_be_away(folder: Path) -> None:
    port = free_port()
    files = {"certificate": folder / "server.pem", "key": folder / "server.key"}
    trust = ssl.create_default_context(cafile=folder / "ca.pem")
    with HttpsFront("127.0.0.1", port, target=f"127.0.0.1:{free_port()}", ca=folder / "ca.pem", **files):
        answer = httpx.post(f"https://127.0.0.1:{port}/v1/fleet/x", verify=trust, trust_env=False)
    assert answer.status_code == 503


def test_a_port_that_is_taken_is_one_sentence(place: Place, folder: Path) -> None:
    files = {"certificate": folder / "server.pem", "key": folder / "server.key"}
    with pytest.raises(NetworkError, match="choose another --port"):
        HttpsFront("127.0.0.1", place.backend.port, target="127.0.0.1:1", ca=folder / "ca.pem", **files)
