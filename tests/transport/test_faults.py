"""Faults: real processes on loopback, killed, stopped and cut off in the middle of a round.

The first deployment goes through every fault that can be healed, one after another, and must end with the
weights of a training that nobody disturbed, bit for bit. In the second one a client is lost for good.

The network of client 0 stands still in the middle of every round until a test lets it go on, so that each
fault strikes there however fast or busy the machine is.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from harness.processes import TrainingProcesses, free_pair
from harness.replay import replay
from sigil import models
from sigil.federation import Settings
from sigil.federation.from_settings import load_data
from sigil.federation.settings import read
from sigil.keys.key import Key

COMMON = [
    "model.width=4", "data.train_limit=120", "data.test_limit=40", "federation.clients=2",
    "federation.local_epochs=2", "federation.batch_size=8", "optimizer.lr=0.05", "optimizer.warmup_rounds=1",
    "watermark.bits=64", "watermark.strength=1.0", "run.workers=1", "run.threads=1", "run.device=cpu",
    "run.precision=float32", "federation.imprint=true",
]  # fmt: skip
STEP_SECONDS = 6.0
# A round is 16 steps of more than 4 kB: this is early in it, and so is twice as much.
HOLD = 20_000


@dataclass
class Stage:
    """A deployment under test: the owner, two clients, and the network of client 0 with its two ports."""

    processes: TrainingProcesses
    settings: Settings
    key: Key
    owner: subprocess.Popen[bytes]
    clients: list[subprocess.Popen[bytes]]
    cables: list[Any]
    through: list[str]

    def middle(self) -> int:
        """Wait until client 0 is in the middle of a round; returns the round's number."""
        self.processes.until(lambda: self.cables[1].holding > 0)
        return len(self.metrics()) + 1

    def go_on(self, condition: Callable[[], bool]) -> None:
        """Let the network of client 0 work until something is so."""

        def so() -> bool:
            if condition():
                return True
            self.cables[1].release()
            return False

        self.processes.until(so)

    def finish(self, number: int) -> dict[str, Any]:
        """Let a round come to its end; returns what was measured in it."""
        self.go_on(lambda: len(self.metrics()) >= number)
        return self.metrics()[number - 1]

    def metrics(self) -> list[dict[str, Any]]:
        file = self.processes.out / "metrics.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def equals_one_process(self, participants: list[list[int]]) -> bool:
        """Whether the weights are those of one process, with these clients in the rounds 1, 2, …"""
        alone = replay(self.settings, load_data(self.settings), key=self.key, participants=participants)
        return all(
            torch.equal(models.load(self.processes.out / file).state_dict()[name], value)
            for file, state in (
                ("client.safetensors", alone.client_state),
                ("server.safetensors", alone.server_state),
            )
            for name, value in state.items()
        )

    def counted(self, name: str) -> float:
        """A counter of the owner's."""
        return self.processes.metrics().get(name, 0.0)


@pytest.fixture(scope="module")
def make_stage(
    tmp_path_factory: pytest.TempPathFactory, make_proxy: Callable[..., Any]
) -> Iterator[Callable[..., Stage]]:
    """Starts a deployment; `direct` says whether client 1 has a network of its own that always works."""
    with ExitStack() as closing:

        def make(change: str, *serve: str, direct: bool) -> Stage:
            folder = tmp_path_factory.mktemp("faults")
            settings = read(None, [*COMMON, change])
            key = Key.generate("ACME", shape=(16, 2, 2), bits=64, seed=bytes(range(7, 39)))
            key.save(folder / "owner.key")
            given = [word for setting in (*COMMON, change) for word in ("--set", setting)]
            options = [*given, "--key", str(folder / "owner.key"), *serve]
            processes = closing.enter_context(TrainingProcesses(folder / "run", clients=2, options=options))
            owner = processes.serve()
            near = free_pair()
            cables = [
                make_proxy(f"127.0.0.1:{processes.port + extra}", port=near + extra, hold=hold)
                for extra, hold in ((0, None), (1, HOLD))
            ]
            for cable in cables:
                closing.callback(cable.close)
            through = ["--server", f"127.0.0.1:{near}"]
            clients = [processes.join(0, *through), processes.join(1, *([] if direct else through))]
            return Stage(processes, settings, key, owner, clients, cables, through)

        yield make


@pytest.fixture(scope="module")
def stage(make_stage: Callable[..., Stage]) -> Stage:
    limits = ["--limit", f"step_seconds={STEP_SECONDS}", "--limit", "reconnects=1000"]
    return make_stage("federation.rounds=4", *limits, direct=True)


def test_a_network_cut_in_a_round_is_survived(stage: Stage) -> None:
    number = stage.middle()
    before = stage.counted("sigil_reconnects_total")
    for cable in stage.cables:
        cable.down = True
        cable.cut()
    time.sleep(1.0)
    for cable in stage.cables:
        cable.down = False
    stage.processes.until(lambda: stage.counted("sigil_reconnects_total") > before)
    assert "missing" not in stage.finish(number)


def test_a_round_waits_for_a_client_that_was_killed_and_is_resumed_when_it_is_back(stage: Stage) -> None:
    number = stage.middle()
    stage.clients[0].send_signal(signal.SIGKILL)
    stage.clients[0].wait()
    stage.cables[1].release()
    time.sleep(2.0)
    assert len(stage.metrics()) < number
    stage.clients[0] = stage.processes.join(0, *stage.through)
    stage.go_on(lambda: stage.processes.said("client 0 came back and is asked again") > 0)
    assert "missing" not in stage.finish(number)


def test_a_server_killed_in_a_round_goes_on_after_the_last_finished_one(stage: Stage) -> None:
    number = stage.middle()
    before = stage.metrics()
    assert len(before) >= 2
    stage.owner.send_signal(signal.SIGKILL)
    stage.owner.wait()
    stage.cables[1].release()
    stage.owner = stage.processes.serve()
    stage.processes.until(lambda: stage.processes.said(f"going on after round {number - 1}") > 0)
    assert stage.middle() == number
    assert stage.metrics() == before, "nothing of a finished round is lost"
    assert all(client.poll() is None for client in stage.clients), "the same clients joined again"


def test_a_client_slower_than_a_step_may_be_keeps_its_place(stage: Stage) -> None:
    number = stage.middle()
    before = stage.counted("sigil_rejected_total/deadline")
    stage.clients[0].send_signal(signal.SIGSTOP)
    try:
        stage.cables[1].release()
        stage.processes.until(lambda: stage.counted("sigil_rejected_total/deadline") > before)
    finally:
        stage.clients[0].send_signal(signal.SIGCONT)
    assert "missing" not in stage.finish(number)


def test_after_all_that_the_weights_are_those_of_an_undisturbed_training(stage: Stage) -> None:
    stage.go_on(lambda: stage.owner.poll() is not None)
    assert stage.owner.returncode == 0, stage.processes.log.read_text()
    assert [client.wait(300) for client in stage.clients] == [0, 0]
    assert stage.equals_one_process([[0, 1]] * 4)


def test_nothing_that_left_the_owners_process_holds_the_key(
    stage: Stage, leaks: Callable[[Key, bytes], list[str]]
) -> None:
    """Flower's database with the run's configuration and all messages, every log, bundle and run file."""
    searched = set()
    for path in stage.processes.out.parent.rglob("*"):
        if path.is_file() and path.name != "owner.key":
            searched.add(path.name)
            assert leaks(stage.key, path.read_bytes()) == [], path
    assert {"superlink.db", "superlink.log", "join.log", "run.log", "owner.json"} <= searched
    assert leaks(stage.key, (stage.processes.out.parent / "owner.key").read_bytes()) != []


def test_rounds_go_on_without_a_client_that_is_killed_for_good(make_stage: Callable[..., Stage]) -> None:
    stage = make_stage("federation.rounds=3", "--minimum", "1", "--wait", "5", direct=False)
    begun, cable = stage.processes, stage.cables[1]
    begun.until(lambda: cable.holding == 2 or begun.said("round 1 begins without") > 0)
    if cable.holding < 2:  # one client was there first and began alone
        nodes = begun.network / "superlink.log"
        begun.until(lambda: nodes.read_text().count("[Fleet.ActivateNode] Activated") == 2)
        stage.finish(1)
        begun.until(lambda: cable.holding == 2)
    number = len(stage.metrics()) + 1
    stage.clients[0].send_signal(signal.SIGKILL)
    stage.clients[0].wait()
    stage.go_on(lambda: stage.owner.poll() is not None)
    assert stage.owner.returncode == 0, stage.processes.log.read_text()
    assert stage.clients[1].wait(300) == 0
    missing = [row.get("missing", []) for row in stage.metrics()]
    assert missing[number - 1 :] == [[0]] * (4 - number)
    assert stage.equals_one_process([sorted({0, 1} - set(gone)) for gone in missing])
