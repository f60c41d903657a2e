"""Ten thousand malformed messages against a live server, while an honest client trains on.

    PYTHONPATH=tests python benchmarks/malformed.py --json benchmarks/results/malformed.json

The service runs in a process of its own. Somebody with a certificate and tickets of the federation sends
random bytes, pickles, damaged, truncated, oversized, misplaced and replayed messages; strangers come with the
certificate of another federation, or without TLS. Each must be refused with the right reason, the service's
memory must not grow, and the honest client must end with the weights of a training in one process.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import statistics
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch
from safetensors.torch import load, save

from common import command_line, write_result
from harness.hostile_streams import Attacker, HostileStream, send, turned_away
from harness.replay import replay
from sigil.federation import Settings
from sigil.federation.averaging import State
from sigil.federation.from_settings import (
    Training,
    build_halves,
    load_data,
    scheduled_rate,
)
from sigil.federation.settings import make
from sigil.keys.key import Key
from sigil.transport import (
    ClientCredentials,
    Limits,
    RoundTask,
    ServerCredentials,
    SplitService,
    certificates,
    train_round,
)

SETTINGS = {
    "model": {"name": "resnet18", "width": 8, "cut": "layer3"},
    "data": {"name": "digits"},
    "federation": {"clients": 1, "rounds": 1, "local_epochs": 10, "batch_size": 16},
    "watermark": {"strength": 0.5, "bits": 50},
    "run": {"device": "cpu", "precision": "float32", "workers": 1, "threads": 1},
}
OVERSIZED_SHARE, STRANGER_SHARE = 0.02, 0.04
TURNS = 20


class Bomb:
    """Unpickled, it would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def serve(pipe: Connection, folder: Path, settings: Settings, clients: dict[int, str]) -> None:
    """Body of the service's process: one round; on request it tells its memory and its refusals."""
    torch.set_num_threads(1)
    logging.getLogger("sigil.transport").setLevel(logging.ERROR)  # thousands are expelled
    with SplitService(
        Training.prepare(settings, load_data(settings), key=owners_key(settings)),
        credentials=ServerCredentials.load(folder),
        limits=Limits(
            streams_per_client=64, step_seconds=600.0, return_seconds=None, refusals_per_minute=10**6
        ),
    ) as service:
        tickets = service.open_round(
            1, service.initial_state, lr=scheduled_rate(settings, 1), clients=clients
        )
        pipe.send((service.address, tickets))
        while pipe.recv() == "look":
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            refused = {reason.value: count for reason, count in service.metrics.rejections().items()}
            pipe.send((pages * os.sysconf("SC_PAGE_SIZE") / 2**20, refused))
        outcome = service.wait_round(timeout=5)
        state = {name: value.contiguous() for name, value in outcome.server_state().items()}
        pipe.send((outcome.finished, save(state)))


def owners_key(settings: Settings) -> Key:
    dataset = load_data(settings)
    shape = build_halves(settings, classes=dataset.classes, input_shape=dataset.shape).shape
    return Key.generate("ACME", shape=shape, bits=settings.watermark.bits, seed=bytes(range(32)))


def attack_service(folder: Path, settings: Settings, count: int) -> dict[str, Any]:
    """Send everything; returns what was answered, memory over time, and how the honest client fared."""
    dataset = load_data(settings)
    oversized, strangers = int(OVERSIZED_SHARE * count), int(STRANGER_SHARE * count)
    drawn = count - oversized - strangers
    certificates.make(folder / "ours", clients=2)
    certificates.make(folder / "other", clients=1)
    honest, bad = (
        ClientCredentials.load(certificates.bundle_folder(folder / "ours", index)) for index in (0, 1)
    )
    clients = {0: honest.fingerprint} | dict.fromkeys(range(1, drawn + 1), bad.fingerprint)
    context = multiprocessing.get_context("spawn")
    pipe, there = context.Pipe()
    process = context.Process(target=serve, args=(there, folder / "ours", settings, clients))
    process.start()
    there.close()  # or nobody would notice here that the service has ended
    address, tickets = pipe.recv()
    halves = build_halves(settings, classes=dataset.classes, input_shape=dataset.shape)
    start: State = halves.client.state_dict()
    attacker = Attacker(
        np.random.default_rng(0),
        {index: ticket for index, ticket in tickets.items() if index},
        shape=halves.shape,
        classes=dataset.classes,
        stolen=tickets[0],
        bomb=pickle.dumps(Bomb(folder / "exploded")),
    )
    secure = grpc.ssl_channel_credentials(bad.authority, bad.key, bad.certificate)
    options = [("grpc.ssl_target_name_override", certificates.SERVER_NAME), ("grpc.enable_retries", 0)]
    channel = grpc.secure_channel(address, secure, options=options)
    foreign = certificates.bundle_folder(folder / "other", 0)
    answers: Counter[tuple[str, str]] = Counter()
    wrong: list[str] = []
    memory: list[float] = []

    def attack(number: int) -> None:
        if number < strangers:
            kind = "foreign certificate" if number % 2 else "no TLS"
            away = turned_away(address, bundle=foreign if number % 2 else None)
            note(kind, "connection refused" if away else "answered", away)
            return
        stream: HostileStream = attacker.oversized() if number < strangers + oversized else planned.pop()
        answer = send(channel, stream.messages)
        text = answer.value if not isinstance(answer, grpc.StatusCode) else answer.name.lower()
        note(stream.kind, text, answer in stream.expected)

    def note(kind: str, answer: str, right: bool) -> None:
        answers[kind, answer] += 1
        if not right:
            wrong.append(f"{kind}: {answer}")

    planned = [attacker.draw() for _ in range(drawn)]
    order = np.random.default_rng(1).permutation(count)
    began = time.monotonic()
    with ThreadPoolExecutor(1) as own, ThreadPoolExecutor(8) as pool:
        task = RoundTask(1, address, tickets[0], lr=scheduled_rate(settings, 1), client_state=start)
        training = own.submit(
            train_round,
            task,
            Training.of_client(settings, dataset),
            0,
            credentials=honest,
        )
        for part in np.array_split(order, TURNS):
            list(pool.map(attack, map(int, part)))
            pipe.send("look")
            memory.append(pipe.recv()[0])
        seconds = time.monotonic() - began
        update = training.result()
    channel.close()
    pipe.send("look")
    refused = pipe.recv()[1]
    pipe.send("end")
    finished, server_half = pipe.recv()
    process.join()
    alone = replay(settings, dataset, key=owners_key(settings), participants=[[0]])
    return {
        "messages": count,
        "seconds": round(seconds, 1),
        "answers": {f"{kind}: {answer}": n for (kind, answer), n in sorted(answers.items())},
        "answered wrongly": wrong,
        "refusals that the service counted": {name: n for name, n in refused.items() if n},
        "a pickle was opened": (folder / "exploded").exists(),
        "memory of the service, MB": [round(size, 1) for size in memory],
        # Of the later half against the middle: caches fill in the first.
        "growth, MB": round(statistics.mean(memory[-3:]) - statistics.mean(memory[TURNS // 2 :][:3]), 1),
        "service ended with": process.exitcode,
        "honest client finished": finished == [0],
        "honest weights equal one process": same(update.client_state, alone.client_state)
        and same(load(server_half), alone.server_state),
    }


def same(ours: State, theirs: State) -> bool:
    return all(torch.equal(ours[name], value) for name, value in theirs.items())


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        outcome = attack_service(Path(name), make(SETTINGS), arguments.count)
    print("| message | answer | count |\n| --- | --- | --- |")
    for entry, number in outcome["answers"].items():
        print("| {} | {} |".format(entry.replace(": ", " | "), number))
    for what, value in outcome.items():
        if what != "answers":
            print(f"{what}: {value}")
    write_result(arguments.json, outcome)
    good = (
        not outcome["answered wrongly"]
        and not outcome["a pickle was opened"]
        and outcome["growth, MB"] < 32
        and outcome["service ended with"] == 0
        and outcome["honest client finished"]
        and outcome["honest weights equal one process"]
        and outcome["refusals that the service counted"].get("internal", 0) == 0
    )
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
