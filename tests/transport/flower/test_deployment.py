"""Flower's own commands, as the deployment guide gives them, and the file that connects them with Sigil."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import psutil
import pytest
import ray
import torch

from harness.processes import free_pair
from harness.replay import replay
from sigil import local_ray, models
from sigil.errors import ConfigError
from sigil.federation.from_settings import load_data
from sigil.federation.run import open_run, train
from sigil.federation.settings import make
from sigil.keys.key import Key
from sigil.transport import Limits
from sigil.transport.flower.deployment import Deployment
from sigil.transport.flower.superlink import APP

SEED = bytes(range(50, 82))
GUIDE = Path(__file__).parents[3] / "docs" / "deployment.md"
SMALL = [
    "model.width=4", "data.train_limit=40", "data.test_limit=20", "federation.rounds=1",
    "federation.local_epochs=1", "federation.batch_size=8", "watermark.bits=8", "run.device=cpu",
    "run.precision=float32", "run.threads=1",
]  # fmt: skip


def commands(*, simulation: bool) -> Iterator[list[str]]:
    """The commands of the guide's section on Flower's own, without the word that says who runs them."""
    deployment, simulated = re.findall(
        r"^```text\n(owner .*?)^```$", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    for line in (simulated if simulation else deployment).splitlines():
        who, *command = shlex.split(line)
        assert who in ("owner", "client")
        yield command


def flower_environment(home: Path, connection: str) -> dict[str, str]:
    """Variables for Flower's commands, whose settings name one SuperLink."""
    home.mkdir()
    (home / "config.toml").write_text(connection)
    return os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }


def prepare_run(command: list[str], folder: Path, environment: dict[str, str]) -> dict[str, str]:
    """Prepare a small run; returns the variable that is printed for the ServerApp."""
    small = [word for change in SMALL for word in ("--set", change)]
    printed = subprocess.run(
        command + small, cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    name, _, value = printed.stdout.splitlines()[-1].partition("=")
    return {name: value}


class Flower:
    """Flower's own commands in one environment; what they say goes to one log, and all end with it.

    Whatever is waited for, it is not waited for longer than `seconds` in all, however busy the machine is.
    """

    def __init__(self, folder: Path, environment: dict[str, str], *, seconds: float = 1800) -> None:
        self._folder, self._environment = folder, environment
        self._last = time.monotonic() + seconds
        self.log = folder / "log"
        self.log.touch()
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, command: list[str]) -> None:
        with self.log.open("ab") as file:
            process = subprocess.Popen(
                command, cwd=self._folder, env=self._environment, stdout=file, stderr=file
            )
        self._processes.append(process)

    def ask(self, *command: str) -> str:
        """Give a command until the SuperLink is there; returns what it prints."""
        while True:
            done = subprocess.run(
                command, cwd=self._folder, env=self._environment, capture_output=True, text=True
            )
            if done.returncode == 0:
                return done.stdout
            self.check(done.stdout + done.stderr)
            time.sleep(0.5)

    def listening(self, port: int) -> None:
        """Wait until somebody listens: Flower's commands take seconds to find out that nobody does."""
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=60):
                return
            self.check(f"nobody listens on port {port}")
            time.sleep(0.1)

    def run(self, *command: str) -> dict[str, Any]:
        """Start a run and wait until Flower says that it has ended; returns what it says of it.

        Asking takes a core for seconds, so that it waits for the app's last words before it asks again.
        """
        before = self._last_words()
        begun = json.loads(self.ask(*command, "--format", "json"))
        while True:
            asked = time.monotonic()
            while self._last_words() == before and time.monotonic() < asked + 30:
                self.check("the app is not through")
                time.sleep(0.1)
            found = json.loads(self.ask("flwr", "list", "--run-id", begun["run-id"], "--format", "json"))
            (run,) = found["runs"]
            if run["status"].startswith("finished"):
                return dict(run)
            self.check(f"the run is {run['status']}")
            time.sleep(1.0)

    def _last_words(self) -> int:
        """How often a ServerApp has said that it ended."""
        log = self._folder / "runs" / "a.network" / "server-app.log"
        text = log.read_text() if log.exists() else ""
        return text.count("The training is over") + text.count("The training ended early")

    def completed(self, *command: str) -> None:
        """Start a run and wait for its end; fail with what Flower says of it if it did not complete."""
        done = self.run(*command)
        if done["status"] != "finished:completed":
            said = self.ask("flwr", "log", done["run-id"], "--show")
            pytest.fail(f"{done['status-details']}\nflwr log: {said[-5000:]}\n{self.tail}")

    @property
    def tail(self) -> str:
        """The last lines of what the processes said."""
        return f"{self.log}: {self.log.read_text(errors='replace')[-5000:]}"

    def check(self, waiting: str) -> None:
        """Fail if a process has ended that others wait for, or if it takes too long."""
        for process in self._processes:
            assert process.poll() is None, f"{waiting}; {process.args} ended; {self.tail}"
        assert time.monotonic() < self._last, f"{waiting}; it was waited for in vain; {self.tail}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            end_all(process)


def end_all(parent: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started: Flower's SuperLink leaves its own, and those leave Ray's."""
    with suppress(psutil.NoSuchProcess):
        everybody = [psutil.Process(parent.pid), *psutil.Process(parent.pid).children(recursive=True)]
        for process in everybody:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(everybody, timeout=60)
    parent.wait()


def test_what_never_comes_is_said_and_not_waited_for(tmp_path: Path) -> None:
    """A command that is refused again and again was given for ever, without a word of why."""
    refused = [sys.executable, "-c", "raise SystemExit('no such federation')"]
    with (
        Flower(tmp_path, dict(os.environ), seconds=0) as flower,
        pytest.raises(AssertionError, match=r"no such federation\s+; it was waited for in vain"),
    ):
        flower.ask(*refused)


def test_flowers_own_commands_train_a_run(tmp_path: Path) -> None:
    port = free_pair()
    key = Key.generate("ACME", shape=(16, 2, 2), bits=8, seed=SEED)
    key.save(tmp_path / "owner.key")
    home = tmp_path / "flower"
    environment = flower_environment(
        home,
        f'[superlink]\ndefault = "sigil"\n\n[superlink.sigil]\naddress = "127.0.0.1:{port}"\n'
        f'root-certificates = "{tmp_path / "runs" / "a.network" / "ca.pem"}"\n',
    )
    prepare, superlink, register, supernode, run = (
        [word.replace("9092", str(port)).replace("APP", str(APP)) for word in line]
        for line in commands(simulation=False)
    )
    supernode[-1] = f"bundle={str(tmp_path / 'runs/a.network/clients/0000')!r}".replace("'", '"')
    supernode += ["--port", str(free_pair())]
    environment |= prepare_run(prepare, tmp_path, environment)
    with Flower(tmp_path, environment) as flower:
        flower.start(superlink)
        flower.listening(port)
        flower.ask(*register)
        flower.start(supernode)
        # Who runs the app like this hears why it ended: there is no key for the first run.
        hidden = (tmp_path / "owner.key").rename(tmp_path / "hidden.key")
        failed = flower.run(*run)
        said = flower.ask("flwr", "log", failed["run-id"], "--show")
        noted = (tmp_path / "runs" / "a.network" / "server-app.log").read_text()
        for place in (failed["status-details"], said, noted):
            assert "owner.key cannot be read: there is no such file" in " ".join(place.split())
        assert failed["status"] == "finished:failed"
        hidden.rename(tmp_path / "owner.key")
        flower.completed(*run)
    trained = open_run(tmp_path / "runs" / "a")
    alone = replay(trained.settings, load_data(trained.settings), key=key, participants=[[0]])
    ours = models.load(trained.folder / "client.safetensors").state_dict()
    assert all(torch.equal(ours[name], value) for name, value in alone.client_state.items())
    for path in (*home.rglob("*"), flower.log, tmp_path / "runs" / "a.network" / "server-app.log"):
        assert not path.is_file() or SEED.hex() not in path.read_text(errors="replace")


@pytest.fixture
def patient_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A Ray that runs before Flower asks for one, as the guide says for busy machines: its address."""
    monkeypatch.setenv("SIGIL_CLIENTS", str(tmp_path / "runs" / "a.network"))  # for its workers
    local_ray.start(2)
    yield ray.get_runtime_context().gcs_address
    local_ray.stop()


def test_the_same_app_trains_in_flowers_simulation(tmp_path: Path, patient_ray: str) -> None:
    port = free_pair()
    environment = flower_environment(
        tmp_path / "flower",
        f'[superlink]\ndefault = "simulation"\n\n[superlink.simulation]\n'
        f'address = "127.0.0.1:{port}"\ninsecure = true\n',
    )
    environment |= {"RAY_ADDRESS": patient_ray}
    prepare, superlink, run = (
        [word.replace("9092", str(port)).replace("APP", str(APP)) for word in line]
        for line in commands(simulation=True)
    )
    key = Key.generate("ACME", shape=(16, 2, 2), bits=8, seed=SEED)
    key.save(tmp_path / "owner.key")
    environment |= prepare_run(prepare, tmp_path, environment)
    with Flower(tmp_path, environment) as flower:
        flower.start(superlink)
        flower.listening(port)
        flower.completed(*run)
    simulated = open_run(tmp_path / "runs" / "a")
    alone = train(simulated.settings, tmp_path / "alone", key=key)
    for name in ("client.safetensors", "server.safetensors"):
        assert (simulated.folder / name).read_bytes() == (alone.folder / name).read_bytes()


def test_a_deployment_is_the_same_after_writing_and_reading(tmp_path: Path) -> None:
    written = Deployment(
        settings=make({"federation": {"clients": 2}}),
        out=tmp_path / "run",
        network=tmp_path / "run.network",
        wait=3.5,
        limits=Limits(step_seconds=7.0, return_seconds=None),
        key_file=tmp_path / "owner.key",
    )
    written.prepare()
    assert Deployment.load(tmp_path / "run.network" / "owner.json") == written
    (tmp_path / "run.network" / "owner.json").write_text("{}")
    with pytest.raises(ConfigError, match="--prepare"):
        Deployment.load(tmp_path / "run.network" / "owner.json")


def test_it_listens_where_the_host_is_unless_told_otherwise(tmp_path: Path) -> None:
    deployment = Deployment(make({"federation": {"clients": 1}}), tmp_path / "a", tmp_path / "n")
    assert deployment.listens == "127.0.0.1"
    assert replace(deployment, host="train.example.org", listen="127.0.0.1").listens == "127.0.0.1"
