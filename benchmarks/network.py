"""What the network costs a training, each claim as a ratio measured in one run.

    python benchmarks/network.py --json benchmarks/results/network.json

The service runs in a process of its own and everything goes over the loopback interface with mutual TLS.
Where the transport itself is measured, the server's arithmetic is replaced by nothing, on both sides of the
comparison. Variants take turns, and a claim is the median over ten runs of a run's ratio: of seconds, which
other work on the machine disturbs, and of processor time at both ends, which it disturbs less.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import socket
import ssl
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common import command_line, print_claims, write_result
from sigil.data import Dataset, Split
from sigil.federation import (
    Activation,
    CutGradient,
    Federation,
    LogitGradient,
    Logits,
    Settings,
)
from sigil.federation.averaging import WeightedAverage
from sigil.federation.from_settings import (
    Training,
    build_halves,
    load_data,
    scheduled_rate,
)
from sigil.federation.precision import Precision
from sigil.federation.settings import make
from sigil.keys.key import Key
from sigil.transport import (
    ClientCredentials,
    Limits,
    Metrics,
    RemoteServer,
    RoundTask,
    ServerCredentials,
    SplitService,
    certificates,
    train_round,
)
from sigil.transport.wire import Wire
from sigil_reproduction.runner.intervals import interval

CLASSES, IMAGE = 10, (3, 32, 32)
CPU = Precision(torch.device("cpu"), bfloat16=False)
CLIENTS = 8
WIRES: tuple[Wire, ...] = ("float32", "bfloat16", "int8")
STREAMS = 64
MOVED = ("sigil_received_bytes_total", "sigil_sent_bytes_total")
BARE = "bare TLS socket, float32"
# The variants wait for each other's turns, so nobody's deadline may run out.
PATIENT = Limits(step_seconds=3600.0, return_seconds=None)


class Nothing:
    """A server that computes nothing: it moves bytes."""

    def __init__(self, half: torch.nn.Module, optimizer: object, **_: object) -> None:
        self.half = half
        self.injections: list[object] = []
        self.repetitions = None
        self._activation = torch.empty(0)

    def forward(self, message: Activation) -> Logits:
        self._activation = message.values
        return Logits(torch.zeros(len(message.values), CLASSES))

    def backward(self, message: LogitGradient) -> CutGradient:
        return CutGradient(self._activation)


def settings_of(options: argparse.Namespace) -> Settings:
    return make(
        {
            "model": {"name": "resnet18", "width": options.width, "cut": "layer3"},
            "federation": {"batch_size": options.batch, "clients": STREAMS},
            "watermark": {"strength": 0.1, "statistics_every": 0},
            "run": {"device": "cpu", "precision": "float32"},
        }
    )


# --- processes -------------------------------------------------------------------------------------------


def serve(
    pipe: Connection,
    folder: Path,
    settings: Settings,
    wire: Wire,
    computes: bool,
    clients: int,
    in_flight: int | None,
) -> None:
    """Body of a service's process: one long round; on request it tells its processor time, at last its peaks
    of memory and of bytes in flight."""
    shape = build_halves(settings, classes=CLASSES, input_shape=IMAGE).shape
    key = Key.generate("benchmark", shape=shape, bits=50)
    metrics, seen = Metrics(), [0.0]
    tell = metrics.in_flight.set

    def note(value: float) -> None:
        seen.append(max(value, seen.pop()))
        tell(value)

    metrics.in_flight.set = note  # type: ignore[method-assign]
    with SplitService(
        Training.prepare(
            settings,
            blank(settings),
            key=key,
            server_factory=None if computes else Nothing,  # type: ignore[arg-type]
        ),
        credentials=ServerCredentials.load(folder),
        limits=PATIENT if in_flight is None else replace(PATIENT, bytes_in_flight=in_flight),
        metrics=metrics,
        wire=wire,
    ) as service:
        fingerprints = certificates.make(folder, clients=clients)
        tickets = service.open_round(1, service.initial_state, lr=1e-4, clients=fingerprints)
        pipe.send((service.address, tickets, shape, _memory("VmRSS")))
        while pipe.recv() == "seconds":
            pipe.send(time.process_time())
        pipe.send((_memory("VmHWM"), seen[0] / 2**20))


def blank(settings: Settings) -> Dataset:
    """Black images, two per client: here activations are drawn, and no half sees an image."""
    count = 2 * settings.federation.clients
    images = Split(np.zeros((count, *IMAGE), np.uint8), np.arange(count) % CLASSES)
    moments = (0.0,) * IMAGE[0]
    return Dataset("blank", images, images, CLASSES, IMAGE, moments, moments, augment="none")


def _memory(name: str) -> float:
    """Megabytes of this process: VmRSS now, VmHWM at most so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    raise SystemExit("This benchmark reads memory from /proc, which only Linux has.")


class Service:
    """A service in a process of its own."""

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        *,
        wire: Wire = "float32",
        computes: bool,
        clients: int = CLIENTS,
        in_flight: int | None = None,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(
            target=serve, args=(there, folder, settings, wire, computes, clients, in_flight)
        )
        self._process.start()
        self._folder, self._wire = folder, wire
        self.address, self._tickets, self.shape, self.idle_mb = self._pipe.recv()

    def client(self, index: int, address: str | None = None) -> RemoteServer:
        """Its client of this number, by another way if an address is given."""
        return RemoteServer(
            address or self.address,
            ticket=self._tickets[index],
            round_number=1,
            client=index,
            classes=CLASSES,
            credentials=ClientCredentials.load(certificates.bundle_folder(self._folder, index)),
            precision=CPU,
            wire=self._wire,
        )

    def seconds(self) -> float:
        """Processor time of its process so far."""
        self._pipe.send("seconds")
        taken: float = self._pipe.recv()
        return taken

    def close(self) -> tuple[float, float]:
        """End it; returns its peaks of memory and of bytes in flight, both in megabytes."""
        self._pipe.send("end")
        peaks: tuple[float, float] = self._pipe.recv()
        self._process.join()
        return peaks


def bare(pipe: Connection, folder: Path, out: int, back: int) -> None:
    """Body of the comparison's process: the same bytes through a TLS socket, in the same order."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    context.load_verify_locations(folder / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    listener = socket.create_server(("127.0.0.1", 0))
    pipe.send(listener.getsockname()[1])
    plain, _ = listener.accept()
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with context.wrap_socket(plain, server_side=True) as line:
        large, small = bytearray(out), bytearray(back)
        while receive(line, large):
            line.sendall(small)
            receive(line, small)
            line.sendall(large)
            pipe.send(time.process_time())


def receive(line: ssl.SSLSocket, buffer: bytearray) -> bool:
    view, filled = memoryview(buffer), 0
    while filled < len(view):
        count = line.recv_into(view[filled:])
        if count == 0:
            return False
        filled += count
    return True


class BareSocket:
    """The client's end of the comparison."""

    def __init__(self, folder: Path, out: int, back: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=bare, args=(there, folder, out, back))
        self._process.start()
        secure = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        bundle = certificates.bundle_folder(folder, 0)
        secure.load_cert_chain(bundle / "client.pem", bundle / "client.key")
        plain = socket.create_connection(("127.0.0.1", self._pipe.recv()))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._line = secure.wrap_socket(plain, server_hostname="localhost")
        self._payload, self._answer, self._large = bytearray(out), bytearray(back), bytearray(out)

    def step(self) -> None:
        """The bytes of one step, out and back."""
        self._line.sendall(self._payload)
        receive(self._line, self._answer)
        self._line.sendall(self._answer)
        receive(self._line, self._large)

    def seconds(self) -> float:
        """Processor time of the other end after the last step."""
        taken: float = self._pipe.recv()
        return taken

    def close(self) -> None:
        """Hang up."""
        self._line.close()
        self._process.join()


# --- measurements ----------------------------------------------------------------------------------------


def stepping(remote: RemoteServer, activation: Tensor, labels: Tensor) -> Callable[[], None]:
    """One step's four messages, without a client's arithmetic but for the gradient of the loss."""

    def run() -> None:
        logits = remote.forward(Activation(activation)).values
        remote.backward(LogitGradient((logits.softmax(1) - labels) / len(labels)))

    return run


def transports(
    folder: Path, settings: Settings, batch: int, runs: int, repeats: int
) -> list[dict[str, dict[str, float]]]:
    """Each run's median seconds of a step in each way to move it, and its processor time at both ends."""
    services = {wire: Service(folder, settings, wire=wire, computes=False) for wire in WIRES}
    activation, labels = batch_of(services["float32"].shape, batch)
    line = BareSocket(folder, 4 * activation.numel(), 4 * labels.numel())
    remotes = {wire: service.client(0) for wire, service in services.items()}
    ways: dict[str, tuple[Callable[[], None], Callable[[], float]]] = {BARE: (line.step, line.seconds)}
    for wire, remote in remotes.items():
        ways[f"service, {wire}"] = (stepping(remote, activation, labels), services[wire].seconds)
    there = {}
    for name, (step, seconds) in ways.items():
        step()
        there[name] = seconds()
    found = []
    for _ in range(runs):
        walls: dict[str, list[float]] = {name: [] for name in ways}
        processor = dict.fromkeys(ways, 0.0)
        for _ in range(repeats):
            for name, (step, seconds) in ways.items():
                began, own = time.perf_counter(), time.process_time()
                step()
                walls[name].append(time.perf_counter() - began)
                processor[name] += time.process_time() - own
                now = seconds()
                processor[name] += now - there[name]
                there[name] = now
        found.append(
            {
                name: {"median": statistics.median(walls[name]), "processor": processor[name] / repeats}
                for name in ways
            }
        )
    for remote in remotes.values():
        remote.close()
    for service in services.values():
        service.close()
    line.close()
    return found


def ratio(found: list[dict[str, dict[str, float]]], above: str, below: str, what: str) -> float:
    """The median over the runs of one way's figure divided by another's."""
    return statistics.median(run[above][what] / run[below][what] for run in found)


def batch_of(shape: tuple[int, ...], batch: int) -> tuple[Tensor, Tensor]:
    """An activation and the labels of its samples as a table."""
    generator = torch.Generator().manual_seed(0)
    activation = torch.rand(batch, *shape, generator=generator)
    if activation.ndim == 4:
        activation = activation.to(memory_format=torch.channels_last)
    return activation, torch.eye(CLASSES)[torch.randint(CLASSES, (batch,), generator=generator)]


def crowd(folder: Path, settings: Settings, batch: int, repeats: int, seconds: float) -> dict[str, Any]:
    """Steps a second of one client and of eight at once, in turns, and how even the eight are served."""
    service = Service(folder, settings, computes=True)
    activation, labels = batch_of(service.shape, batch)
    remotes = [service.client(index) for index in range(CLIENTS)]
    runs = [stepping(remote, activation, labels) for remote in remotes]
    for run in runs:
        run()
    one: list[float] = []
    all_of_them: list[float] = []
    counts = [0.0] * CLIENTS
    for _ in range(repeats):
        one += rates(runs[:1], seconds)
        together = rates(runs, seconds)
        all_of_them.append(sum(together))
        counts = [before + now for before, now in zip(counts, together, strict=True)]
    for remote in remotes:
        remote.close()
    service.close()
    return {
        "one client, steps/s": statistics.median(one),
        "eight clients, steps/s": statistics.median(all_of_them),
        "slowest / mean": min(counts) / statistics.mean(counts),
    }


def rates(runs: list[Callable[[], None]], seconds: float) -> list[float]:
    """Steps a second of each client, all at once; a step that began in time is finished and counted."""
    results = [0.0] * len(runs)

    def work(index: int) -> None:
        began = time.perf_counter()
        count = 0
        while time.perf_counter() - began < seconds:
            runs[index]()
            count += 1
        results[index] = count / (time.perf_counter() - began)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(runs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def memory(folder: Path, settings: Settings, batch: int, clients: int) -> dict[str, float]:
    """Megabytes of a fresh service's process: idle, and at most with all clients at work."""
    service = Service(folder, settings, computes=True)
    activation, labels = batch_of(service.shape, batch)
    remotes = [service.client(index) for index in range(clients)]
    rates([stepping(remote, activation, labels) for remote in remotes], 3.0)
    for remote in remotes:
        remote.close()
    return {"idle_mb": service.idle_mb, "peak_mb": service.close()[0]}


def streams(folder: Path, settings: Settings, batch: int, count: int, seconds: float) -> dict[str, float]:
    """How evenly this many clients at once are served, with room for an eighth of their steps at a time."""
    certificates.make(folder, clients=count)
    shape = build_halves(settings, classes=CLASSES, input_shape=IMAGE).shape
    room = count // 8 * 2 * 4 * (batch + 1) * math.prod(shape)
    service = Service(folder, settings, computes=True, clients=count, in_flight=room)
    activation, labels = batch_of(service.shape, batch)
    remotes = [service.client(index) for index in range(count)]
    runs = [stepping(remote, activation, labels) for remote in remotes]
    for run in runs:  # everybody connects and has its server half
        run()
    found = rates(runs, seconds)
    for remote in remotes:
        remote.close()
    peak, in_flight = service.close()
    return {
        "streams": count,
        "steps/s": sum(found),
        "slowest / mean": min(found) / statistics.mean(found),
        "fastest / mean": max(found) / statistics.mean(found),
        "room_mb": room / 2**20,
        "in_flight_mb": in_flight,
        "idle_mb": service.idle_mb,
        "peak_mb": peak,
    }


def quality(folder: Path, rounds: int, seeds: int) -> dict[str, list[dict[str, float]]]:
    """Accuracy, mark and bytes of the same small trainings over each wire, one entry per seed."""
    found: dict[str, list[dict[str, float]]] = {wire: [] for wire in WIRES}
    for seed in range(seeds):
        for wire in WIRES:
            found[wire].append(training(folder, wire, rounds, seed))
            print(f"seed {seed}, {wire}: {found[wire][-1]}", file=sys.stderr, flush=True)
    return found


def small_training(rounds: int, seed: int) -> Settings:
    """Digits, three clients."""
    return make(
        {
            "model": {"name": "resnet18", "width": 8, "cut": "layer2"},
            "data": {"name": "digits"},
            "federation": {"clients": 3, "rounds": rounds, "local_epochs": 1, "batch_size": 64},
            "optimizer": {"lr": 0.05, "warmup_rounds": 2},
            "watermark": {"strength": 0.1, "bits": 50},
            "run": {"device": "cpu", "precision": "float32", "workers": 1, "seed": seed},
        }
    )


def training(folder: Path, wire: Wire, rounds: int, seed: int) -> dict[str, float]:
    """One training over the live service: digits, three clients, a key of its own for each seed."""
    settings = small_training(rounds, seed)
    dataset = load_data(settings)
    training = Training.of_client(settings, dataset)
    parts = training.parts
    shape = build_halves(settings, classes=dataset.classes, input_shape=dataset.shape).shape
    key = Key.generate("benchmark", shape=shape, bits=50, seed=bytes([seed]) * 32)
    clients = certificates.make(folder, clients=len(parts))
    federation = Federation(settings, dataset, key=key)
    with SplitService(
        federation.training,
        credentials=ServerCredentials.load(folder),
        limits=PATIENT,
        wire=wire,
    ) as service:
        for number in range(1, rounds + 1):
            lr = scheduled_rate(settings, number)
            tickets = service.open_round(number, federation.server_state, lr=lr, clients=clients)
            average = WeightedAverage()
            for index, ticket in tickets.items():
                update = train_round(
                    RoundTask(number, service.address, ticket, lr, federation.client_state, wire),
                    training,
                    index,
                    credentials=ClientCredentials.load(certificates.bundle_folder(folder, index)),
                )
                average.add(update.client_state, weight=len(parts[index]))
            outcome = service.wait_round(minimum=len(parts))
            federation.load(number, average.result(), outcome.server_state())
        moved = [service.metrics.registry.get_sample_value(name) for name in MOVED]
    report, *_ = federation.read_mark(key)
    return {
        "accuracy": federation.accuracy(),
        "wsr": report.wsr,
        "log10_p_before": report.log10_p_before,
        "megabytes": sum(value or 0.0 for value in moved) / 2**20,
    }


def spread(values: list[float]) -> str:
    """The mean of percentages, with Student's 95 % interval over the seeds where there are several."""
    found = interval([100 * value for value in values])
    assert found is not None
    return f"{found.mean:.1f}" + ("" if found.half is None else f" ± {found.half:.1f}")


def print_wires(wires: dict[str, list[dict[str, float]]]) -> None:
    """A row per wire: its figures, and their differences from float32's in the same seed."""
    print("\n| wire | accuracy, % | less float32 | WSR, % | less float32 | log10 p before correction | MB |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for wire, trained in wires.items():
        cells = []
        for name in ("accuracy", "wsr"):
            pairs = zip(trained, wires["float32"], strict=True)
            cells += [spread([one[name] for one in trained]), spread([a[name] - b[name] for a, b in pairs])]
        logs = ", ".join(f"{one['log10_p_before']:.1f}" for one in trained)
        print(f"| {wire} | {' | '.join(cells)} | {logs} | {trained[0]['megabytes']:.1f} |")


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3, help="turns of each way in one run")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=64, help="256 × 256 × 8 × 8 floats are 16.8 MB each way")
    parser.add_argument("--crowd-batch", type=int, default=64)
    parser.add_argument("--crowd-width", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=10.0, help="of one turn of the clients at once")
    parser.add_argument("--turns", type=int, default=3, help="of one client and of eight")
    parser.add_argument("--rounds", type=int, default=15, help="of the trainings over each wire")
    parser.add_argument("--seeds", type=int, default=3, help="trainings over each wire")
    parser.add_argument("--only-wires", action="store_true", help="print the table of the trainings and end")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        certificates.make(folder, clients=CLIENTS)
        if options.only_wires:
            print_wires(quality(folder, options.rounds, options.seeds))
            return
        steps = transports(folder, settings_of(options), options.batch, options.runs, options.repeats)
        options.width, options.batch = options.crowd_width, options.crowd_batch
        small = settings_of(options)
        many = crowd(folder, small, options.batch, options.turns, options.seconds)
        sizes = {count: memory(folder, small, options.batch, count) for count in (1, CLIENTS)}
        options.width, options.batch = 4, 32
        even = streams(folder, settings_of(options), options.batch, STREAMS, options.seconds)
        wires = quality(folder, options.rounds, options.seeds)

    used = {count: entry["peak_mb"] - entry["idle_mb"] for count, entry in sizes.items()}
    rows: list[tuple[str, float, str]] = [
        *(
            (f"{claim}, {name}", ratio(steps, above, below, what), target)
            for claim, above, below, targets in (
                (
                    "step over gRPC with mTLS / bare TLS socket",
                    "service, float32",
                    BARE,
                    ("<= 1.2", "report"),
                ),
                ("bfloat16 wire / float32", "service, bfloat16", "service, float32", ("<= 0.6", "report")),
                ("int8 wire / float32", "service, int8", "service, float32", ("report", "report")),
            )
            for what, name, target in zip(
                ("median", "processor"), ("seconds", "processor time"), targets, strict=True
            )
        ),
        (
            "int8 wire / float32, bytes",
            wires["int8"][0]["megabytes"] / wires["float32"][0]["megabytes"],
            "<= 0.35",
        ),
        (
            "8 clients at once: total throughput / one client",
            many["eight clients, steps/s"] / many["one client, steps/s"],
            ">= 1.0",
        ),
        ("the same: slowest client / mean", many["slowest / mean"], ">= 0.5"),
        ("server memory, 8 clients / 1 client", sizes[CLIENTS]["peak_mb"] / sizes[1]["peak_mb"], "report"),
        ("the same, beyond the idle process", used[CLIENTS] / used[1], "report"),
        ("64 streams at once: slowest client / mean", even["slowest / mean"], ">= 0.5"),
        ("the same: bytes in flight / room for them", even["in_flight_mb"] / even["room_mb"], "<= 1.0"),
    ]
    claims = print_claims(rows)
    print("\n| way to move one step | ms | ms of processor time, both ends |\n| --- | --- | --- |")
    for way in steps[0]:
        figures = [
            1000 * statistics.median(run[way][what] for run in steps) for what in ("median", "processor")
        ]
        print(f"| {way} | {figures[0]:.1f} | {figures[1]:.1f} |")
    print_wires(wires)
    print("\n" + ", ".join(f"{name} {value:.2f}" for name, value in even.items()))
    write_result(
        options.json,
        {
            "claims": claims,
            "step_seconds": steps,
            "clients": many,
            "streams": even,
            "memory_mb": sizes,
            "wires": wires,
            "setting": vars(options),
        },
    )


if __name__ == "__main__":
    main()
