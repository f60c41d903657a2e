"""`sigil serve` and `sigil join` from the command line: what they make and refuse, and a simulation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.commands import Command
from harness.processes import free_pair
from sigil.cli.main import main
from sigil.cli.serve import _invite
from sigil.federation.run import open_run, train
from sigil.transport.flower.bundle import only_process
from sigil.transport.listening import listen_on

SMALL = [
    "--set", "model.width=4", "--set", "data.train_limit=80", "--set", "data.test_limit=30",
    "--set", "federation.rounds=2", "--set", "federation.local_epochs=1", "--set", "federation.batch_size=8",
    "--set", "watermark.bits=8", "--set", "run.threads=1", "--set", "run.workers=1",
    "--set", "run.device=cpu", "--set", "run.precision=float32", "--owner", "ACME",
]  # fmt: skip
FLOWER = (
    "FLWR_HOME",
    "FLWR_TELEMETRY_ENABLED",
    "FLWR_DISABLE_UPDATE_CHECK",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION",
)


@pytest.fixture(autouse=True)
def _surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in FLOWER:
        monkeypatch.setenv(name, "as before")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_prepare_makes_everything_that_clients_need_and_keeps_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--prepare", "-o", "runs/a", "--clients", "2", *SMALL]) == 0
    network = tmp_path / "runs" / "a.network"
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == f"SIGIL_OWNER={network / 'owner.json'}"
    assert mode(network) == 0o700
    for client in ("0000", "0001"):
        bundle = network / "clients" / client
        assert mode(bundle) == 0o700
        assert mode(bundle / "node.key") == mode(bundle / "client.key") == 0o600
        assert json.loads((bundle / "join.json").read_text())["server"] == "127.0.0.1:9092"
        assert (bundle / "node.pub").read_text().startswith("ecdsa-sha2-nistp256 ")
    owner = json.loads((network / "owner.json").read_text())
    assert owner["key_file"] == str(tmp_path / "runs" / "a.key")
    assert "seed" not in owner
    before = {path: path.read_bytes() for path in network.rglob("*.key")}
    assert main(["serve", "--prepare", "-o", "runs/a", "--clients", "3", *SMALL]) == 0
    assert {path: path.read_bytes() for path in before} == before
    assert (network / "clients" / "0002").is_dir()


def test_certificates_for_another_host_are_refused_with_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve", "--prepare", "-o", "a", "--clients", "1", "--host", "train.example", *SMALL]) == 0
    capsys.readouterr()
    assert main(["serve", "--prepare", "-o", "a", "--clients", "1", "--host", "other.example", *SMALL]) == 2
    error = capsys.readouterr().err
    assert "not for other.example" in error
    assert "delete it" in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--limit", "patience=3"], "no limit 'patience'"),
        (["--limit", "streams"], "write name=number"),
        (["--limit", "streams=0"], "above 0"),
        (["--minimum", "3"], "choose 1 to 2"),
        (["--set", "federation.client=3"], "did you mean 'federation.clients'"),
        (["--key", "missing.key"], "missing.key"),
        (["--host", "0.0.0.0"], "Clients cannot connect to 0.0.0.0"),
        (["--host", "192.0.2.7"], "not an address of this machine"),
        (["--listen", "train.example"], "not an IP address"),
    ],
)
def test_bad_use_is_one_sentence(refused: Command, arguments: list[str], words: str) -> None:
    assert words in refused("serve", "-o", "bad", "--clients", "2", *SMALL, *arguments)
    assert not Path("bad.key").exists()


@pytest.mark.parametrize("arguments", [["--wire", "float16"], ["--port", "70000"]])
def test_a_value_that_an_option_does_not_take_is_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(["serve", "-o", "bad", "--clients", "2", *SMALL, *arguments]) == 2
    error = capsys.readouterr().err
    assert all(word in error for word in arguments)


@pytest.mark.parametrize("offset", [0, 1, None], ids=["--port", "the next one", "--metrics-port"])
def test_a_port_in_use_is_one_sentence_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], offset: int | None
) -> None:
    """It was one after a key was made and its owner was told to publish it."""
    port = free_pair()
    with listen_on("127.0.0.1", 0 if offset is None else port + offset) as taken:
        number = taken.getsockname()[1]
        more = ["--metrics-port", str(number)] if offset is None else []
        assert main(["serve", "-o", "a", "--clients", "2", "--port", str(port), *more, *SMALL]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert f"Port {number} of 127.0.0.1 cannot be opened" in printed.err
    assert list(tmp_path.iterdir()) == []


def test_a_key_is_never_made_for_an_owner_without_a_name(refused: Command) -> None:
    assert "add --owner NAME" in refused("serve", "--prepare", "-o", "a", "--clients", "1", *SMALL[:-2])
    assert not Path("a.key").exists()


def test_the_lines_for_clients_are_whole_and_one_for_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sigil.federation.settings import make
    from sigil.transport.flower.deployment import Deployment

    settings = make({"federation": {"clients": 2}})
    _invite(Deployment(settings, tmp_path / "a", Path("runs/my run.network")))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Listening on 127.0.0.1, ports 9092 and 9093."
    assert lines[2:] == [
        f"  sigil join 'runs/my run.network/clients/000{client}' --part {client}" for client in (0, 1)
    ]
    _invite(Deployment(settings, tmp_path / "a", Path("n"), host="train.example", listen="0.0.0.0"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Listening on 0.0.0.0")
    assert lines[2:] == ["  sigil join n/clients/0000", "  sigil join n/clients/0001"]


def test_a_simulation_gives_the_weights_of_a_training_in_one_process(tmp_path: Path) -> None:
    arguments = ["--simulate", "4", "-o", "sim", *SMALL]
    command = [sys.executable, "-m", "sigil.cli.main", "serve", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert "Verify with: sigil verify sim/client.safetensors --key sim.key" in done.stdout
    from sigil.keys.key import Key

    simulated = open_run(tmp_path / "sim")
    alone = train(simulated.settings, tmp_path / "alone", key=Key.load(tmp_path / "sim.key"))
    for name in ("client.safetensors", "server.safetensors"):
        assert (simulated.folder / name).read_bytes() == (alone.folder / name).read_bytes()


@pytest.mark.parametrize("content", [None, "", "{}", '{"client": 0}', '{"client": "x"}'])
def test_a_folder_that_is_no_bundle_is_one_sentence(
    tmp_path: Path, refused: Command, content: str | None
) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    if content is not None:
        (bundle / "join.json").write_text(content)
    error = refused("join", bundle)
    assert "is not a client's folder" in error


def test_an_address_that_is_none_is_one_sentence(tmp_path: Path, refused: Command) -> None:
    (tmp_path / "join.json").write_text(json.dumps({"client": 0, "clients": 2, "server": "127.0.0.1:9092"}))
    assert "host:port" in refused("join", tmp_path, "--server", "somewhere")


def test_a_part_that_is_none_is_refused_before_anything_is_started(tmp_path: Path, refused: Command) -> None:
    invitation = {"client": 1, "clients": 2, "server": "127.0.0.1:9092"}
    (tmp_path / "join.json").write_text(json.dumps(invitation))
    assert "--part is 0 to 1, and 1 is the one that goes with this folder" in refused(
        "join", tmp_path, "--part", "9"
    )
    assert list(tmp_path.iterdir()) == [tmp_path / "join.json"]


def test_a_second_process_for_the_same_client_is_refused(tmp_path: Path, refused: Command) -> None:
    (tmp_path / "join.json").write_text(json.dumps({"client": 0, "clients": 2, "server": "127.0.0.1:9092"}))
    with only_process(tmp_path, take_over=False):
        assert "add --take-over" in refused("join", tmp_path)


@pytest.mark.parametrize(("folder", "words"), [("missing", "cannot be read"), ("empty", "is empty")])
def test_a_folder_without_pictures_is_refused_before_anything_is_started(
    tmp_path: Path, refused: Command, folder: str, words: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "join.json").write_text(json.dumps({"client": 0, "clients": 2, "server": "127.0.0.1:9092"}))
    assert words in refused("join", tmp_path, "--data", f"folder:{tmp_path / folder}")
