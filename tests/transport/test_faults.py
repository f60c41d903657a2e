"""Faults: real processes on loopback, killed, stopped and cut off in the middle of a round.

The first deployment goes through every fault that can be healed, one after another, and must end with the
weights of a training that nobody disturbed, bit for bit. In the second one a client is lost for good.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from sigil import models
from sigil.federation import run as runs
from sigil.federation.holdings import load_data
from sigil.federation.settings import read
from sigil.key import Key
from sigil.transport.flower.rehearsal import Rehearsal, replay

SEED = bytes(range(7, 39))
COMMON = [
    "model.width=4", "data.train_limit=240", "data.test_limit=40", "federation.local_epochs=2",
    "federation.batch_size=8", "optimizer.lr=0.05", "optimizer.warmup_rounds=1", "watermark.bits=16",
    "watermark.strength=1.0", "run.workers=1", "run.threads=1", "run.device=cpu", "run.precision=float32",
]  # fmt: skip
STEP_SECONDS = 6.0


def options(*changes: str) -> list[str]:
    return [word for change in (*COMMON, *changes) for word in ("--set", change)]


@dataclass
class Stage:
    """A deployment under test: the owner, the clients, and the network of client 0."""

    rehearsal: Rehearsal
    settings: Any
    key: Key
    owner: subprocess.Popen[bytes]
    clients: list[subprocess.Popen[bytes]]
    cables: list[Any] = field(default_factory=list)


def start(folder: Path, changes: list[str], serve: list[str], clients: int) -> tuple[Rehearsal, Any, Key]:
    settings = read(None, [*COMMON, *changes, f"federation.clients={clients}"])
    key = Key.generate("ACME", shape=(16, 2, 2), bits=16, seed=SEED)
    key.save(folder / "owner.key")
    rehearsal = Rehearsal(
        folder / "run",
        clients=clients,
        options=[*options(*changes), "--key", str(folder / "owner.key"), *serve],
    )
    return rehearsal, settings, key


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, make_proxy: Callable[..., Any]) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("faults")
    limits = ["--limit", f"step_seconds={STEP_SECONDS}", "--limit", "reconnects=1000"]
    rehearsal, settings, key = start(folder, ["federation.rounds=6"], limits, 2)
    with rehearsal, ExitStack() as closing:
        owner = rehearsal.serve()
        port = rehearsal.port
        spare = Rehearsal(folder / "spare", clients=0).port
        cables = [make_proxy(f"127.0.0.1:{port + extra}", port=spare + extra) for extra in (0, 1)]
        for cable in cables:
            closing.callback(cable.close)
        clients = [rehearsal.join(0, "--server", f"127.0.0.1:{spare}"), rehearsal.join(1)]
        yield Stage(rehearsal, settings, key, owner, clients, cables)


def test_a_network_cut_in_a_round_is_survived(stage: Stage) -> None:
    stage.rehearsal.reach(0)
    before = stage.rehearsal.metrics()["sigil_reconnects_total"]
    for cable in stage.cables:
        cable.down = True
        cable.cut()
    time.sleep(1.0)
    for cable in stage.cables:
        cable.down = False
    stage.rehearsal.until(lambda: stage.rehearsal.metrics().get("sigil_reconnects_total", 0) > before)


def test_a_client_killed_in_a_round_comes_back_and_resumes(stage: Stage) -> None:
    number = stage.rehearsal.reach(1)
    stage.clients[1].send_signal(signal.SIGKILL)
    stage.clients[1].wait()
    stage.clients[1] = stage.rehearsal.join(1)
    stage.rehearsal.until(lambda: stage.rehearsal.said("client 1 came back and is asked again") > 0)
    stage.rehearsal.until(lambda: finished_rounds(stage) >= number)
    assert "missing" not in metrics(stage)[number - 1]


def test_a_server_killed_in_a_round_goes_on_after_the_last_finished_one(stage: Stage) -> None:
    number = stage.rehearsal.reach(0)
    before = metrics(stage)
    stage.owner.send_signal(signal.SIGKILL)
    stage.owner.wait()
    stage.owner = stage.rehearsal.serve()
    stage.rehearsal.until(lambda: stage.rehearsal.said("going on after round") > 0)
    assert stage.rehearsal.reach(1) >= number
    assert metrics(stage)[: len(before)] == before, "nothing of a finished round is lost"
    assert all(client.poll() is None for client in stage.clients), "the same clients joined again"


def test_a_client_slower_than_a_step_may_be_keeps_its_place(stage: Stage) -> None:
    number = stage.rehearsal.reach(0)
    stage.clients[0].send_signal(signal.SIGSTOP)
    stage.rehearsal.until(lambda: rejected(stage) > 0)
    stage.clients[0].send_signal(signal.SIGCONT)
    stage.rehearsal.until(lambda: finished_rounds(stage) >= number)
    assert "missing" not in metrics(stage)[number - 1]


def test_after_all_that_the_weights_are_those_of_an_undisturbed_training(
    stage: Stage, tmp_path: Path
) -> None:
    stage.rehearsal.until(lambda: stage.owner.poll() is not None)
    assert stage.owner.returncode == 0, stage.rehearsal.log.read_text()
    for client in stage.clients:
        assert client.wait(60) == 0
    undisturbed = runs.train(stage.settings, tmp_path / "alone", key=stage.key)
    for name in ("client.safetensors", "server.safetensors"):
        assert (stage.rehearsal.out / name).read_bytes() == (undisturbed.folder / name).read_bytes()
    assert undisturbed.final["wsr"] == runs.open_run(stage.rehearsal.out).final["wsr"]


def test_nothing_that_left_the_owners_process_holds_the_key(stage: Stage) -> None:
    """Flower's database with all messages, every log, every bundle, the run's directory."""
    secrets = [SEED, SEED.hex().encode(), stage.key.matrix.numpy()[0].tobytes()]
    searched = set()
    for path in stage.rehearsal.out.parent.rglob("*"):
        if path.is_file() and path.name != "owner.key":
            searched.add(path.name)
            content = path.read_bytes()
            assert not any(secret in content for secret in secrets), path
    assert {"superlink.db", "superlink.log", "supernode.log", "join.log", "run.log", "owner.json"} <= searched


def test_a_round_goes_on_without_a_client_that_is_killed_for_good(
    tmp_path: Path,
) -> None:
    rehearsal, settings, key = start(tmp_path, ["federation.rounds=2"], ["--minimum", "1", "--wait", "8"], 2)
    with rehearsal:
        owner = rehearsal.serve()
        clients = [rehearsal.join(index) for index in range(2)]
        rehearsal.reach(1)
        clients[1].kill()
        assert owner.wait(600) == 0, rehearsal.log.read_text()
        assert clients[0].wait(60) == 0
    run = runs.open_run(rehearsal.out)
    assert [row["missing"] for row in run.metrics] == [[1], [1]]
    alone = replay(settings, load_data(settings), key=key, participants=[[0], [0]])
    ours = models.load(rehearsal.out / "client.safetensors").state_dict()
    assert all(torch.equal(ours[name], value) for name, value in alone.client_state.items())


def metrics(stage: Stage) -> list[dict[str, Any]]:
    file = stage.rehearsal.out / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def finished_rounds(stage: Stage) -> int:
    return len(metrics(stage))


def rejected(stage: Stage) -> float:
    return stage.rehearsal.metrics().get("sigil_rejected_total/deadline", 0)
