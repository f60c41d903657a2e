"""The plain app: what it needs, and how it tells a simulation from a deployment."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from flwr.proto.node_pb2 import NodeInfo

from harness.processes import free_pair
from sigil.errors import ConfigError, NetworkError
from sigil.federation.settings import make
from sigil.transport.flower import server_app
from sigil.transport.flower.deployment import Deployment
from sigil.transport.listening import listen_on

PEM = b"-----BEGIN PUBLIC KEY-----\nMHYwEAYHKoZIzj0CAQYFK4EEACIDYgAE\n-----END PUBLIC KEY-----\n"


class Nodes:
    """A grid that knows nothing but its nodes, each with this public key; they come at the third look."""

    def __init__(self, *keys: bytes) -> None:
        self.keys = keys
        self.looks = 0

    def get_nodes(self) -> list[NodeInfo]:
        self.looks += 1
        if self.looks < 3:
            return []
        return [NodeInfo(node_id=number, public_key=key) for number, key in enumerate(self.keys, 1)]


def test_without_its_file_the_app_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(server_app.OWNER_VARIABLE, raising=False)
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={})
    with pytest.raises(ConfigError, match="sigil serve --prepare"):
        server_app.app(Nodes(), context)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("keys", "simulated"),
    [((bytes(range(32)), bytes(32)), True), ((b"", b""), True), ((PEM, PEM), False)],
    ids=["random bytes", "nodes without keys", "nodes with keys"],
)
def test_nodes_without_keys_are_those_of_a_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: tuple[bytes, ...], simulated: bool
) -> None:
    Deployment(
        make({"federation": {"clients": 2}, "watermark": {"strength": 0}}),
        out=tmp_path / "run",
        network=tmp_path / "network",
    ).prepare()
    monkeypatch.setenv(server_app.OWNER_VARIABLE, str(tmp_path / "network" / "owner.json"))
    port = free_pair()
    deployment = replace(Deployment.load(tmp_path / "network" / "owner.json"), port=port)
    network = server_app.read_network(deployment, Nodes(*keys))  # type: ignore[arg-type]
    assert (network.public is None) == simulated
    assert network.listen == ("127.0.0.1:0" if simulated else f"127.0.0.1:{port + 1}")
    if network.held is not None:
        network.held.close()


def made(folder: Path, **more: Any) -> Deployment:
    settings = make({"federation": {"clients": 1}, "watermark": {"strength": 0}})
    deployment = Deployment(settings, out=folder / "run", network=folder / "network", **more)
    deployment.prepare()
    return deployment


def test_the_port_of_the_split_service_is_waited_for_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was taken at the first round only: by then the system had given it to somebody's connection."""
    port = free_pair()
    deployment = made(tmp_path, port=port)
    taken = listen_on("127.0.0.1", port + 1)
    monkeypatch.setattr(server_app.time, "sleep", lambda seconds: caplog.text and taken.close())
    network = server_app.read_network(deployment, Nodes(PEM))  # type: ignore[arg-type]
    with pytest.raises(NetworkError, match=f"Port {port + 1} of 127.0.0.1 cannot be opened"):
        listen_on("127.0.0.1", port + 1)
    assert f"Port {port + 1} of 127.0.0.1 cannot be opened" in caplog.text
    assert network.held is not None
    monkeypatch.setattr(server_app, "PORT_SECONDS", 0.0)
    with network.held, pytest.raises(NetworkError, match="choose another --port"):
        server_app.read_network(deployment, Nodes(PEM))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NetworkError("Nobody came."), "The training ended early: Nobody came."),
        (ValueError("a\x1b[2Jb"), "The training ended early: ValueError: a?[2Jb."),
        (SystemExit(0), "The training was stopped."),
        (None, "The training is over."),
    ],
)
def test_why_it_ended_is_noted_for_the_owner_and_for_flower(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException | None,
    words: str,
) -> None:
    made(tmp_path)
    monkeypatch.setenv(server_app.OWNER_VARIABLE, str(tmp_path / "network" / "owner.json"))
    monkeypatch.setattr(server_app, "read_network", lambda deployment, grid: None)

    def train(deployment: Deployment, grid: Nodes, network: None) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(Deployment, "train", train)
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={})
    before = list(logging.getLogger("sigil").handlers)
    with nullcontext() if error is None else pytest.raises(type(error)):
        server_app.app(Nodes(PEM), context)  # type: ignore[arg-type]
    noted = (tmp_path / "network" / "server-app.log").read_text()
    assert noted.endswith(f" {words}\n")
    assert capsys.readouterr().out.splitlines() == [words]
    assert logging.getLogger("sigil").handlers == before
