"""Sigil beside its peers: the same model, batches, data and number format, in turns, ratios of one run.

    make peers DATA=~/data                     an environment of its own, with NVIDIA FLARE beside Sigil
    PYTHONPATH=tests python benchmarks/peers.py --data-dir ~/data --json benchmarks/results/peers.json

- *plain*: the whole network, un-split, channels-last: what training costs at least.
- *SplitFed*: a U-shaped loop that handles halves, copies and optimizers as the reference implementation of
  SplitFed does.
- *FLARE*: NVIDIA FLARE's split learning of two parties, as its own example sets it up
  (`flare_split_learning.py`): labels at the second party, so one exchange per batch instead of two, and no
  encryption between the processes of its simulator.
- *train*: what `sigil train` does, without and with its mark, its checks of logit gradients and its imprints.
- *serve*: `sigil serve` with two `sigil join`, as processes, on the loopback interface, as they come: marked,
  checked, imprinted, with mutual TLS.

SplitFed and FLARE come twice: in the number format of all others, and in contiguous float32, *as published*:
both leave PyTorch's defaults as they are. What else they do is left out in their favour: the reference opens
and transforms images one by one, makes a new Adam for each batch and tests each client in each round;
FLARE's example transforms images one by one, has an optimizer that is not fused, and logs every step.

Every process has one thread; all train with SGD and read batches by the same code. The loops of one
process wait for their turn: a turn is a round, and a claim is the median over the repetitions of the
ratio inside each. FLARE and `serve` follow, each in a network of its own (a namespace of Linux, which
takes root), so that the bytes that cross its loopback interface, both ways and with all headers, are its
own. Their processor time and memory are those of all processes in it. Speed is counted from the end of
the first round, or after 20 steps of FLARE's, so that starting is not in it: seconds until the first step
tell of that.
"""

from __future__ import annotations

import copy
import ctypes
import fcntl
import json
import multiprocessing
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common import command_line, print_claims, write_result
from sigil import data
from sigil.federation import ServerObserver, Settings, Step
from sigil.federation.from_settings import build_halves, fresh_optimizer, load_data, what_a_key_states
from sigil.federation.precision import Precision, choose
from sigil.federation.run import train
from sigil.federation.settings import make
from sigil.keys.key import Key

CLIENTS = 2
LONGEST = 1800.0  # seconds of one process
WARM_STEPS = 20  # of FLARE, which has no rounds
PLAIN, SPLITFED, FLARE = "plain", "SplitFed", "FLARE"
PUBLISHED = ", as published"
BARE, MARKED, SERVED = "train, bare", "train, marked", "serve, two join"
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Job:
    """What all of them train, and where their files go."""

    settings: dict[str, Any]
    data_dir: Path | None
    folder: Path
    rounds: int
    began: float = field(default_factory=time.monotonic)

    def made(self, **sections: dict[str, Any]) -> Settings:
        """The settings with changes."""
        names = {*self.settings, *sections}
        return make({name: self.settings.get(name, {}) | sections.get(name, {}) for name in names})

    @property
    def images(self) -> int:
        """Images of a round."""
        limit: int = self.settings["data"]["train_limit"]
        return limit


class Over(Exception):
    """All rounds that were asked for are trained."""


class Turns:
    """A worker's side of the measurement: wait for the turn, train a round, say what it took."""

    def __init__(self, pipe: Connection, job: Job) -> None:
        self._pipe, self._job, self._first = pipe, job, 0.0
        self._left = job.rounds + 1  # one of them to warm up
        self._round: tuple[float, float] | None = None

    def begin(self) -> None:
        """Tell of the round that ended, if one did, and wait for the next turn, or raise :class:`Over`."""
        if self._round is not None:
            wall, processor = self._round
            self._pipe.send(
                {
                    "seconds": time.monotonic() - wall,
                    "processor": time.process_time() - processor,
                    "first": self._first,
                    "memory": memory_mb([os.getpid()]),
                }
            )
        if not self._left:
            raise Over
        self._left -= 1
        self._pipe.recv()
        self._round = (time.monotonic(), time.process_time())

    def step(self) -> None:
        """A step is done."""
        self._first = self._first or time.monotonic() - self._job.began


# --- loops in one process -----------------------------------------------------------------------------------


def batches_of(
    settings: Settings, dataset: data.Dataset, part: slice, layout: torch.memory_format
) -> data.Batches:
    indices = torch.arange(len(dataset.train.labels))[part].numpy()
    return data.Batches(
        dataset.train.images,
        dataset.train.labels,
        indices,
        batch_size=settings.federation.batch_size,
        mean=dataset.mean,
        std=dataset.std,
        memory_format=layout,
    )


def plain(turns: Turns, job: Job) -> None:
    """The whole network, one graph, nothing in between."""
    settings = job.made()
    dataset = load_data(settings, job.data_dir)
    precision = choose("cpu", settings.run.precision)
    halves = build_halves(settings, classes=dataset.classes, input_shape=dataset.shape, precision=precision)
    model = nn.Sequential(halves.client, halves.server).train()
    optimizer = fresh_optimizer(model, settings.optimizer.lr, settings=settings, precision=precision)
    batches = batches_of(settings, dataset, slice(None), precision.layout)
    order = torch.Generator().manual_seed(0)
    while True:
        turns.begin()
        for images, labels in batches.epoch(order):
            with precision.autocast():
                logits = model(images)
            loss = F.cross_entropy(logits.float(), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            turns.step()


class SplitFedServer:
    """The server of SplitFed V1: one half per client, copied before and after every batch."""

    def __init__(self, half: nn.Module, settings: Settings, precision: Precision) -> None:
        self.halves = [copy.deepcopy(half) for _ in range(CLIENTS)]
        self.settings, self.precision = settings, precision

    def forward(self, client: int, activation: Tensor) -> Tensor:
        self.half = copy.deepcopy(self.halves[client]).train()
        self.optimizer = torch.optim.SGD(
            self.half.parameters(), lr=self.settings.optimizer.lr, momentum=0.9, weight_decay=5e-4
        )
        self.optimizer.zero_grad()
        self.activation = activation.clone().detach().requires_grad_(True)
        with self.precision.autocast():
            self.logits = self.half(self.activation)
        return self.logits.clone().detach()

    def backward(self, client: int, gradient: Tensor) -> Tensor:
        self.logits.backward(gradient)
        assert self.activation.grad is not None
        answer = self.activation.grad.clone().detach()
        self.optimizer.step()
        self.halves[client] = copy.deepcopy(self.half)
        return answer


def splitfed(turns: Turns, job: Job, *, published: bool) -> None:
    """SplitFed as its reference implementation does it, U-shaped: labels and loss stay at the client."""
    settings = job.made()
    dataset = load_data(settings, job.data_dir)
    precision = contiguous(settings, published=published)
    halves = build_halves(settings, classes=dataset.classes, input_shape=dataset.shape, precision=precision)
    server = SplitFedServer(halves.server, settings, precision)
    order = torch.Generator().manual_seed(0)
    while True:
        turns.begin()
        states, losses, accuracies = [], [], []
        for client in range(CLIENTS):
            half = copy.deepcopy(halves.client).train()
            optimizer = torch.optim.SGD(
                half.parameters(), lr=settings.optimizer.lr, momentum=0.9, weight_decay=5e-4
            )
            for images, labels in batches_of(
                settings, dataset, slice(client, None, CLIENTS), precision.layout
            ).epoch(order):
                optimizer.zero_grad()
                with precision.autocast():
                    activation = half(images)
                logits = server.forward(client, activation).requires_grad_(True)
                loss = F.cross_entropy(logits, labels)
                loss.backward()
                assert logits.grad is not None
                activation.backward(server.backward(client, logits.grad.clone().detach()))
                optimizer.step()
                losses.append(loss.item())
                accuracies.append((logits.argmax(1) == labels).float().mean().item())
                turns.step()
            states.append(copy.deepcopy(half.state_dict()))
        halves.client.load_state_dict(averaged(states))
        mean = averaged([half.state_dict() for half in server.halves])
        for half in server.halves:
            half.load_state_dict(mean)


def contiguous(settings: Settings, *, published: bool) -> Precision:
    """PyTorch's own layout, in the number format of all others or, as published, its own: float32."""
    bfloat16 = choose("cpu", settings.run.precision).bfloat16 and not published
    return Precision(torch.device("cpu"), bfloat16=bfloat16, channels_last=False)


def averaged(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    mean = copy.deepcopy(states[0])
    for name in mean:
        for state in states[1:]:
            mean[name] += state[name]
        mean[name] = torch.div(mean[name], len(states))
    return mean


class Taking(ServerObserver):
    """Turns as a training's observer: a turn lasts until the next round would begin."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns

    def on_round_start(self, round_number: int) -> None:
        self.turns.begin()

    def on_gradient_sent(self, at: Step, *, activation: Tensor, main: Tensor, final: Tensor) -> None:
        self.turns.step()


def sigil_train(turns: Turns, job: Job, *, marked: bool) -> None:
    """`sigil train`; bare, it judges no logit gradients and neither marks nor imprints."""
    rounds = (
        job.rounds + 2
    )  # the last one, which is evaluated, gets no turn: the other loops evaluate nothing
    settings = job.made(
        federation={"rounds": rounds, "loss": "cross-entropy" if marked else "any", "imprint": marked},
        watermark={} if marked else {"strength": 0.0},
        run={"workers": 1, "evaluate_every": rounds},
    )
    key = Key.generate("peers", **what_a_key_states(settings, job.data_dir)) if marked else None
    folder = job.folder / ("marked" if marked else "bare")
    train(settings, folder, key=key, data_dir=job.data_dir, server_observers=[Taking(turns)])


LOOPS: dict[str, Callable[[Turns, Job], None]] = {
    PLAIN: plain,
    SPLITFED: lambda turns, job: splitfed(turns, job, published=False),
    SPLITFED + PUBLISHED: lambda turns, job: splitfed(turns, job, published=True),
    BARE: lambda turns, job: sigil_train(turns, job, marked=False),
    MARKED: lambda turns, job: sigil_train(turns, job, marked=True),
}


def work(pipe: Connection, name: str, job: Job) -> None:
    """Body of the process of a loop."""
    torch.set_num_threads(1)
    with suppress(Over):
        LOOPS[name](Turns(pipe, job), job)


def in_turns(job: Job, repeats: int) -> dict[str, list[dict[str, float]]]:
    """What each round of each loop took, after one to warm up."""
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    processes = []
    for name in LOOPS:
        pipes[name], there = context.Pipe()
        process = context.Process(
            target=work, args=(there, name, replace(job, rounds=repeats, began=time.monotonic()))
        )
        process.start()
        there.close()
        processes.append(process)
        turn(pipes[name])
    found: dict[str, list[dict[str, float]]] = {name: [] for name in LOOPS}
    for repetition in range(repeats):
        for name, pipe in pipes.items():
            found[name].append(turn(pipe))
        print(f"repetition {repetition + 1}", file=sys.stderr, flush=True)
    for process in processes:
        process.join(60)
        process.kill()
    return found


def turn(pipe: Connection) -> dict[str, float]:
    pipe.send("go")
    if not pipe.poll(LONGEST):
        raise SystemExit("A loop did not end its round.")
    taken: dict[str, float] = pipe.recv()
    return taken


# --- trainings of several processes -------------------------------------------------------------------------


def own_network() -> int | None:
    """Give this process and its children a loopback interface of their own; says which, or none if denied."""
    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000):  # CLONE_NEWNET
        return None
    with socket.socket() as any_socket:  # up, loopback, running
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x8 | 0x40))
    return os.stat("/proc/self/ns/net").st_ino


def bytes_sent() -> int:
    """Bytes that have crossed the loopback interface, both ways and with all headers."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    return next(int(line.split()[9]) for line in lines if line.strip().startswith("lo:"))


def members(network: int) -> list[int]:
    """The processes of a network but for this one."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and os.stat(entry / "ns" / "net").st_ino == network:
                found.append(int(entry.name))
        except OSError:  # it ended meanwhile
            continue
    return [process for process in found if process != os.getpid()]


def processor_seconds(process: int) -> float:
    """Processor time of a process, or nothing if it has ended."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return 0.0
    return sum(map(int, text.rpartition(")")[2].split()[11:13])) / TICKS


def memory_mb(processes: list[int]) -> float:
    """The largest resident memory that these had so far, summed."""
    total = 0
    for process in processes:
        try:
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return total / 1024


@dataclass
class Gauge:
    """Looks at a network's processes a few times in a second, until it is told that all is done."""

    network: int
    samples: list[tuple[float, float, int]] = field(default_factory=list)
    memory: float = 0.0

    def __post_init__(self) -> None:
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        spent: dict[int, float] = {}  # of those that ended too
        while not self._done.wait(0.25):
            there = members(self.network)
            spent |= {process: max(spent.get(process, 0.0), processor_seconds(process)) for process in there}
            self.samples.append((time.monotonic(), sum(spent.values()), bytes_sent()))
            self.memory = max(self.memory, memory_mb(there))

    def end(self) -> None:
        self._done.set()
        self._thread.join()

    def between(self, begin: float, end: float) -> tuple[float, float]:
        """Processor seconds and bytes between two moments, which lie between two looks."""
        moments, *counters = zip(*self.samples, strict=True)
        processor, moved = (float(np.diff(np.interp((begin, end), moments, one))[0]) for one in counters)
        return processor, moved


def flare(job: Job, warm: int, steps: int, *, published: bool) -> Iterator[tuple[float, int]]:
    """FLARE's split learning in two parties: when each step ended, and its images."""
    progress, description = job.folder / "progress", job.folder / "job.json"
    settings = job.made()
    description.write_text(
        json.dumps(
            {
                "threads": 1,
                "steps": warm + steps,
                "progress": str(progress),
                "bfloat16": contiguous(settings, published=published).bfloat16,
                "data_dir": str(job.data_dir),
                "settings": job.settings,
            }
        )
    )
    program = Path(__file__).with_name("flare_split_learning.py")
    log = job.folder / "flare.log"
    with log.open("wb") as file:
        ended = subprocess.run(
            [sys.executable, str(program), str(description), str(job.folder / "flare")],
            stdout=file,
            stderr=file,
            timeout=LONGEST,
            check=False,
        )
    if ended.returncode or not progress.exists():
        raise SystemExit(f"FLARE ended with {ended.returncode}: {log.read_text(errors='replace')[-2000:]}")
    for line in progress.read_text().splitlines():
        moment, images = line.split()
        yield float(moment), int(images)


def served(job: Job, rounds: int) -> Iterator[tuple[float, int]]:
    """`sigil serve` and its clients: when the first step and each round ended, and the images since."""
    from harness.processes import TrainingProcesses

    changes = [
        f"{section}.{name}={json.dumps(value) if not isinstance(value, str) else value}"
        for section, values in job.settings.items()
        for name, value in values.items()
    ]
    # One more, which nobody waits for: the last round is evaluated, and FLARE evaluates nothing.
    changes += [f"federation.rounds={rounds + 1}", f"run.evaluate_every={rounds + 1}"]
    options = ["--owner", "peers", *(part for change in changes for part in ("--set", change))]
    folder = [] if job.data_dir is None else ["--data-dir", str(job.data_dir)]
    out = job.folder / "served"
    with TrainingProcesses(out, clients=CLIENTS, options=[*options, *folder]) as training:
        training.serve()
        for client in range(CLIENTS):
            training.join(client, *folder)
        training.until(lambda: training.metrics().get("sigil_steps_total", 0.0) > 0)
        yield time.monotonic(), 0
        lines = out / "metrics.jsonl"
        for number in range(1, rounds + 1):
            training.until(lambda count=number: lines.exists() and lines.read_text().count("\n") >= count)  # type: ignore[misc]
            yield time.monotonic(), job.images


def measure_processes(pipe: Connection, name: str, job: Job) -> None:
    """Body of the process in whose network a training of several processes runs."""
    network = own_network()
    if network is None:
        pipe.send("No network of its own: this takes Linux and root.")
        return
    gauge = Gauge(network)
    batches = job.images // job.settings["federation"]["batch_size"]
    if name.startswith(FLARE):
        warm = min(batches, WARM_STEPS)
        ends = list(flare(job, warm, batches * job.rounds, published=name.endswith(PUBLISHED)))
    else:
        ends, warm = list(served(job, job.rounds + 1)), 2  # the first step, and the first round
    gauge.end()
    begin, end = ends[warm - 1][0], ends[-1][0]
    images = sum(count for _, count in ends[warm:])
    processor, moved = gauge.between(begin, end)
    pipe.send(
        {
            "images_per_second": images / (end - begin),
            "images_per_cpu_second": images / processor,
            "bytes_per_image": moved / images,
            "memory_mb": gauge.memory,
            "cpu_seconds_per_1000": 1000 * processor / images,
            "first_step_seconds": ends[0][0] - job.began,
        }
    )


def of_processes(name: str, job: Job) -> dict[str, float]:
    """One training of several processes, in a network of its own."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        process = context.Process(
            target=measure_processes,
            args=(there, name, replace(job, folder=Path(folder), began=time.monotonic())),
        )
        process.start()
        there.close()
        try:
            found = here.recv()
        except EOFError:
            raise SystemExit(f"{name} was not measured; what it said is above.") from None
        process.join()
    if isinstance(found, str):
        raise SystemExit(found)
    figures: dict[str, float] = found
    return figures


# --- the table ----------------------------------------------------------------------------------------------


def figures_of(rounds: list[dict[str, float]], images: int, sent: float) -> dict[str, float]:
    """The columns of the table for a loop in one process."""
    processor = statistics.median(one["processor"] for one in rounds)
    return {
        "images_per_second": images / statistics.median(one["seconds"] for one in rounds),
        "images_per_cpu_second": images / processor,
        "bytes_per_image": sent,
        "memory_mb": max(one["memory"] for one in rounds),
        "cpu_seconds_per_1000": 1000 * processor / images,
        "first_step_seconds": rounds[0]["first"],
    }


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def ratio(above: list[dict[str, float]], below: list[dict[str, float]], what: str) -> list[float]:
    """One figure of a loop by that of another, repetition by repetition."""
    return [a[what] / b[what] for a, b in zip(above, below, strict=True)]


Rounds = dict[str, list[dict[str, float]]]


def report(
    loops: Rounds,
    several: Rounds,
    settings: dict[str, dict[str, Any]],
    *,
    before: tuple[float, float, float],
    file: Path | None,
) -> None:
    """Print what the rounds of the loops and the trainings of several processes come to, and write it."""
    images = settings["data"]["train_limit"]
    table = {name: figures_of(rounds, images, 0.0) for name, rounds in loops.items()} | {
        name: medians(rows) for name, rows in several.items()
    }
    claims: list[tuple[str, list[float], str]] = []
    for loop, other, target in (
        (BARE, PLAIN, "report"),
        (MARKED, PLAIN, ">= 0.95"),
        (MARKED, BARE, "report"),
        (MARKED, SPLITFED, ">= 2"),
        (MARKED, SPLITFED + PUBLISHED, ">= 2"),
        (PLAIN, SPLITFED, "report"),
        (PLAIN, SPLITFED + PUBLISHED, "report"),
    ):
        claims.append((f"{loop} / {other}, images/s", ratio(loops[other], loops[loop], "seconds"), "report"))
        per_cpu = ratio(loops[other], loops[loop], "processor")
        claims.append((f"{loop} / {other}, images per CPU second", per_cpu, target))
    added = {
        name: [row["cpu_seconds_per_1000"] - table[PLAIN]["cpu_seconds_per_1000"] for row in rows]
        for name, rows in several.items()
    }
    for other in (FLARE, FLARE + PUBLISHED):
        for what, name, target in (
            ("images_per_second", "images/s", "report"),
            ("images_per_cpu_second", "images per CPU second", ">= 3"),
            ("bytes_per_image", "bytes per image", "report"),
            ("memory_mb", "memory", "report"),
            ("first_step_seconds", "seconds until the first step", "report"),
        ):
            claims.append(
                (f"{SERVED} / {other}, {name}", ratio(several[SERVED], several[other], what), target)
            )
        per_cpu = [
            table[PLAIN]["images_per_cpu_second"] / row["images_per_cpu_second"] for row in several[other]
        ]
        claims.append((f"{PLAIN} / {other}, images per CPU second", per_cpu, "report"))
    claims.append(
        (
            f"{FLARE} / {SERVED}, CPU seconds beyond those of {PLAIN}",
            [theirs / ours for theirs, ours in zip(added[FLARE], added[SERVED], strict=True)],
            "report",
        )
    )

    number_format = choose("cpu", settings["run"]["precision"]).number_format
    print(f"{settings['model']}, {settings['federation']}, {number_format}\n")
    measured = print_claims(claims)
    columns = (
        "images/s",
        "bytes per image",
        "memory, MB",
        "CPU s per 1,000 images",
        "s until the first step",
    )
    print("\n| | " + " | ".join(columns) + " |\n" + "| --- " * 6 + "|")
    for name, row in table.items():
        sent = f"{row['bytes_per_image']:,.0f}" if row["bytes_per_image"] else "–"
        print(
            f"| {name} | {row['images_per_second']:.0f} | {sent} | {row['memory_mb']:.0f} | "
            f"{row['cpu_seconds_per_1000']:.2f} | {row['first_step_seconds']:.1f} |"
        )
    write_result(
        file,
        {
            "claims": measured,
            "table": table,
            "loops": loops,
            "processes": several,
            "settings": settings,
            "number_format": number_format,
            "load_average_before": before,
        },
    )


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="turns of the loops in one process")
    parser.add_argument("--process-repeats", type=int, default=5, help="trainings of several processes, each")
    parser.add_argument("--rounds", type=int, default=1, help="of each of those, after one to warm up")
    parser.add_argument("--batches", type=int, default=32, help="of each of the two clients in a turn")
    parser.add_argument("--process-batches", type=int, default=40, help="the same in a round of those")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--precision", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "SIGIL_PRECISION": ""}
    before = os.getloadavg()
    settings: dict[str, dict[str, Any]] = {
        "model": {"name": "resnet18", "width": options.width, "cut": "layer3"},
        "data": {
            "name": options.data,
            "train_limit": CLIENTS * options.batches * options.batch,
            "test_limit": 256,
            "augment": False,
        },
        "federation": {"clients": CLIENTS, "local_epochs": 1, "batch_size": options.batch},
        "optimizer": {"lr": 0.01, "warmup_rounds": 0},
        "run": {"device": "cpu", "precision": options.precision, "threads": 1},
    }
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        job = Job(settings, options.data_dir and options.data_dir.resolve(), Path(folder), options.rounds)
        larger = {"train_limit": CLIENTS * options.process_batches * options.batch}
        processes = replace(job, settings=settings | {"data": settings["data"] | larger})
        loops = in_turns(job, options.repeats)
        several: Rounds = {FLARE: [], FLARE + PUBLISHED: [], SERVED: []}
        for _ in range(options.process_repeats):
            for name, rows in several.items():
                rows.append(of_processes(name, processes))
                print(name, rows[-1], file=sys.stderr, flush=True)
            # After each, so that a run which is ended early keeps what it measured.
            report(loops, several, settings, before=before, file=options.json)


if __name__ == "__main__":
    main()
