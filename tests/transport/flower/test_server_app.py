"""The plain app: what it needs, and how it tells a simulation from a deployment."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from flwr.proto.node_pb2 import NodeInfo

from sigil.errors import ConfigError
from sigil.federation.settings import make
from sigil.transport.flower import server_app
from sigil.transport.flower.deployment import Deployment

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
    run = server_app.read_owner_run(Nodes(*keys))  # type: ignore[arg-type]
    assert (run.nodes is None) == simulated
    assert run.network.listen == ("127.0.0.1:0" if simulated else "127.0.0.1:9093")
