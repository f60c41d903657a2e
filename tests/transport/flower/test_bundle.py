"""A bundle comes from the owner, who may have put anything into it."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from harness.commands import Command
from sigil.cli.main import main
from sigil.errors import NetworkError
from sigil.transport import ClientCredentials, certificates
from sigil.transport.flower import client_app, node
from sigil.transport.flower.bundle import Invitation, unpacked, write_node_key


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    certificates.make(tmp_path / "network", clients=1)
    folder = certificates.bundle_folder(tmp_path / "network", 0)
    write_node_key(folder)
    Invitation(0, 1, "127.0.0.1:9").write(folder)
    return folder


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Joins until it is connected; returns the status and with which files of its own."""
    files: list[set[str]] = []

    class Connected(node.Node):
        def work(self, app: Any, *, finished: Any) -> None:
            files.append({path.name for path in Path(str(self._config["bundle"])).iterdir()})

    for name in ("HOME", "TELEMETRY_ENABLED", "DISABLE_UPDATE_CHECK"):
        monkeypatch.setenv(f"FLWR_{name}", "as before")
    monkeypatch.setenv("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "as before")
    monkeypatch.setattr(node, "Node", Connected)
    monkeypatch.setattr(client_app, "finished", threading.Event())
    return lambda folder: (main(["join", str(folder)]), files)


@pytest.mark.parametrize("name", ["flower", "node.key", "node.pub"])
def test_no_name_in_a_bundle_is_written_through(bundle: Path, tmp_path: Path, joined: Any, name: str) -> None:
    """The owner's words were appended to whatever file of the client's a name in the bundle was a link to."""
    victim = tmp_path / "authorized_keys"
    if name == "flower":
        victim.mkdir()
    else:
        victim.write_text("ssh-ed25519 BBBB me\n")
    (bundle / name).unlink(missing_ok=True)
    (bundle / name).symlink_to(victim)
    before = set(bundle.iterdir())
    status, files = joined(bundle)
    assert status == 0
    assert files == [{"ca.pem", "client.pem", "client.key", "flower"}]
    if name == "flower":
        assert list(victim.iterdir()) == []
    else:
        assert victim.read_text() == "ssh-ed25519 BBBB me\n"
        assert victim.stat().st_nlink == 1
    assert set(bundle.iterdir()) == before | {bundle / ".joined"}
    assert (bundle / ".joined").read_bytes() == b""


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "endless"])
@pytest.mark.parametrize("name", ["join.json", "ca.pem", "client.pem", "client.key"])
def test_what_is_read_of_a_bundle_is_a_short_regular_file(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, kind: str
) -> None:
    kept = (bundle / name).rename(tmp_path / "kept")
    if kind == "link":
        (bundle / name).symlink_to(kept)
    elif kind == "pipe":
        os.mkfifo(bundle / name)
    elif kind == "folder":
        (bundle / name).mkdir()
    else:
        (bundle / name).write_bytes(kept.read_bytes() + b" " * 65_536)
    assert main(["join", str(bundle)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "made." in said


@pytest.mark.parametrize("kind", ["link", "link to nothing", "folder"])
def test_the_lock_in_a_bundle_is_no_way_out_of_it(
    bundle: Path, tmp_path: Path, refused: Command, kind: str
) -> None:
    if kind == "folder":
        (bundle / ".joined").mkdir()
    else:
        (bundle / ".joined").symlink_to(tmp_path / "elsewhere")
    if kind == "link":
        (tmp_path / "elsewhere").write_text("mine")
    assert "cannot be written to" in refused("join", bundle)
    assert (tmp_path / "elsewhere").exists() == (kind == "link")


@pytest.mark.parametrize(
    "server",
    ["127.0.0.1", "host:port", "\x1b[2J:1", "host:1\n", "-x:1\x07", "a b:1", "host:999999", "", "[::1]", 7],
)
def test_an_invitation_to_no_address_is_none(bundle: Path, server: Any) -> None:
    (bundle / "join.json").write_text(json.dumps({"client": 0, "server": server}))
    with pytest.raises(NetworkError, match="is not a client's folder"):
        Invitation.read(bundle)


@pytest.mark.parametrize("text", ["[" * 60_000, "[]", "7", '{"client": 1e999, "server": "a:1"}', "{", "\xff"])
def test_an_invitation_that_is_none_is_one_sentence(bundle: Path, text: str) -> None:
    (bundle / "join.json").write_text(text, encoding="latin-1")
    with pytest.raises(NetworkError, match="is not a client's folder"):
        Invitation.read(bundle)


def test_the_copies_are_for_this_process_alone_and_gone_in_the_end(bundle: Path) -> None:
    with unpacked(bundle) as own:
        assert own.stat().st_mode & 0o777 == 0o700
        assert (own / "client.key").stat().st_mode & 0o777 == 0o600
        assert ClientCredentials.load(own) == ClientCredentials.load(bundle)
    assert not own.exists()
