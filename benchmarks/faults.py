"""Ten processes on CIFAR-10: one client killed for good, one killed and restarted, and what comes out.

    PYTHONPATH=tests python benchmarks/faults.py --data-dir ~/data --json benchmarks/results/faults.json

A server and nine clients train on loopback. In round 1 a client is killed in the middle of its round and
started again; in round 2 another one is killed and stays away. The run must end, its weights must be those of
a training in one process with the same participants in each round, bit for bit, and the mark must be found.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from common import command_line, write_result
from harness.processes import TrainingProcesses
from harness.replay import replay
from sigil import models, verify
from sigil.federation.from_settings import load_data, what_a_key_states
from sigil.federation.run import open_run
from sigil.federation.settings import read
from sigil.keys.key import Key

CLIENTS = 9
ROUNDS = 4
RESTARTED, LOST = 3, 7
SETTINGS = [
    "data.name=cifar10", "data.train_limit=3600", "data.test_limit=500", "model.width=8",
    f"federation.clients={CLIENTS}", f"federation.rounds={ROUNDS}", "federation.local_epochs=1",
    "federation.batch_size=20", "optimizer.lr=0.05", "optimizer.warmup_rounds=1", "watermark.strength=1.0",
    "run.device=cpu", "run.precision=float32", "run.threads=1", "run.workers=1",
]  # fmt: skip


def train(folder: Path, data_dir: Path, *, wait: float) -> dict[str, Any]:
    """Run the ten processes with their two faults; returns what happened."""
    options = [word for change in SETTINGS for word in ("--set", change)]
    options += ["--key", str(folder / "owner.key"), "--data-dir", str(data_dir)]
    options += ["--minimum", str(CLIENTS - 1), "--wait", str(wait)]
    began = time.monotonic()
    with TrainingProcesses(folder / "run", clients=CLIENTS, options=options) as processes:
        owner = processes.serve()
        clients = [processes.join(index, "--data-dir", str(data_dir)) for index in range(CLIENTS)]
        print(f"{time.monotonic() - began:5.0f} s: a server and {CLIENTS} clients run")
        restarted = processes.reach(RESTARTED, steps=60)
        clients[RESTARTED].kill()
        clients[RESTARTED].wait()
        clients[RESTARTED] = processes.join(RESTARTED, "--data-dir", str(data_dir))
        print(f"{time.monotonic() - began:5.0f} s: client {RESTARTED} killed in round {restarted}, restarted")
        lost = processes.reach(LOST, steps=60, after=restarted)
        clients[LOST].kill()
        print(f"{time.monotonic() - began:5.0f} s: client {LOST} killed in round {lost}, for good")
        processes.until(lambda: owner.poll() is not None, seconds=7200)
        seconds = time.monotonic() - began
        print(f"{seconds:5.0f} s: the owner ended with status {owner.returncode}")
        if owner.returncode:
            raise SystemExit(processes.log.read_text())
        rest = [client for index, client in enumerate(clients) if index != LOST]
        statuses = [client.wait(120) for client in rest]
        return {
            "seconds": round(seconds, 1),
            "restarted": {"client": RESTARTED, "round": restarted},
            "lost": {"client": LOST, "round": lost},
            "resumed": processes.said(f"client {RESTARTED} came back and is asked again"),
            "client_statuses": statuses,
        }


def judge(folder: Path, data_dir: Path, key: Key) -> dict[str, Any]:
    """Compare the run's weights with a training in one process, and look for the mark."""
    run = open_run(folder / "run")
    missing = [row.get("missing", []) for row in run.metrics]
    participants = [[index for index in range(CLIENTS) if index not in gone] for gone in missing]
    dataset = load_data(run.settings, data_dir)
    alone = replay(run.settings, dataset, key=key, participants=participants)
    same = {}
    for name, state in (("client", alone.client_state), ("server", alone.server_state)):
        ours = models.load(run.folder / f"{name}.safetensors").state_dict()
        same[name] = all(torch.equal(ours[part], value) for part, value in state.items())
    half, _ = run.halves()
    report = verify(half, key, input_shape=dataset.shape)
    return {
        "missing": missing,
        "equal_to_one_process": same,
        "rounds": [row["seconds"] for row in run.metrics],
        "accuracy": run.final["accuracy"],
        "owned": report.owned,
        "wsr": report.wsr,
        "log10_p": report.log10_p,
    }


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, help="where CIFAR-10 is")
    parser.add_argument("--wait", type=float, default=60.0, help="seconds to wait for the lost client")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    settings = read(None, SETTINGS)
    key = Key.generate(
        "ACME", shape=what_a_key_states(settings, arguments.data_dir)["shape"], bits=50, seed=bytes(range(32))
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        key.save(folder / "owner.key")
        outcome = train(folder, arguments.data_dir, wait=arguments.wait)
        outcome |= judge(folder, arguments.data_dir, key)
    for what, value in outcome.items():
        print(f"{what:>22}: {value}")
    good = all(outcome["equal_to_one_process"].values()) and outcome["owned"] and outcome["resumed"]
    write_result(arguments.json, {"settings": SETTINGS, **outcome})
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
