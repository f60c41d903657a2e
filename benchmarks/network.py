"""What the network costs a training, each claim as a ratio measured in one run.

    python benchmarks/network.py --json results/benchmarks/network.json

The service runs in a process of its own and everything goes over the loopback interface with mutual TLS.
Where the transport itself is measured, the server's arithmetic is replaced by nothing, on both sides of the
comparison. Variants take turns and medians are taken.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import socket
import ssl
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import torch
from torch import Tensor

from sigil.experiments.lab.timing import interleaved
from sigil.federation import (
    Activation,
    CutGradient,
    Federation,
    LogitGradient,
    Logits,
    Settings,
    from_settings,
)
from sigil.federation.averaging import WeightedAverage
from sigil.federation.from_settings import build_halves, client_parts, load_data, scheduled_rate
from sigil.federation.precision import Precision
from sigil.federation.settings import make
from sigil.keys.key import Key
from sigil.transport import (
    ClientCredentials,
    Limits,
    RemoteServer,
    RoundTask,
    ServerCredentials,
    SplitService,
    certificates,
    train_round,
)
from sigil.transport.wire import Wire

CLASSES, IMAGE = 10, (3, 32, 32)
CPU = Precision(torch.device("cpu"), bfloat16=False)
CLIENTS = 8
WIRES: tuple[Wire, ...] = ("float32", "bfloat16")
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
            "federation": {"batch_size": options.batch, "clients": CLIENTS},
            "watermark": {"strength": 0.1, "statistics_every": 0},
            "run": {"device": "cpu", "precision": "float32"},
        }
    )


# --- processes -------------------------------------------------------------------------------------------


def serve(pipe: Connection, folder: Path, settings: Settings, wire: Wire, computes: bool) -> None:
    """Body of a service's process: one long round; on request it tells its processor time, at last its peak
    of memory."""
    if not computes:
        from_settings.Server = Nothing  # type: ignore[assignment, attr-defined]
    shape = build_halves(settings, classes=CLASSES, input_shape=IMAGE).shape
    key = Key.generate("benchmark", shape=shape, bits=50)
    with SplitService(
        settings,
        key=key,
        classes=CLASSES,
        input_shape=IMAGE,
        credentials=ServerCredentials.load(folder),
        limits=PATIENT,
        wire=wire,
    ) as service:
        clients = certificates.make(folder, clients=CLIENTS)
        tickets = service.open_round(1, service.initial_state, lr=1e-4, clients=clients)
        pipe.send((service.address, tickets, shape, _memory("VmRSS")))
        while pipe.recv() == "seconds":
            pipe.send(time.process_time())
        pipe.send(_memory("VmHWM"))


def _memory(name: str) -> float:
    """Megabytes of this process: VmRSS now, VmHWM at most so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    raise SystemExit("This benchmark reads memory from /proc, which only Linux has.")


class Service:
    """A service in a process of its own."""

    def __init__(self, folder: Path, settings: Settings, *, wire: Wire = "float32", computes: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=serve, args=(there, folder, settings, wire, computes))
        self._process.start()
        self._folder, self._wire = folder, wire
        self.address, self._tickets, self.shape, self.idle_mb = self._pipe.recv()

    def client(self, index: int) -> RemoteServer:
        return RemoteServer(
            self.address,
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

    def close(self) -> float:
        """End it; returns its peak of memory in megabytes."""
        self._pipe.send("end")
        peak: float = self._pipe.recv()
        self._process.join()
        return peak


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
        began = time.process_time()
        while receive(line, large):
            line.sendall(small)
            receive(line, small)
            line.sendall(large)
        pipe.send(time.process_time() - began)


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

    def close(self) -> float:
        """Hang up; returns the processor time of the other end."""
        self._line.close()
        taken: float = self._pipe.recv()
        self._process.join()
        return taken


class Timed:
    """Counts the calls of something and this process's processor time in it."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self.calls = 0
        self.seconds = 0.0

    def __call__(self) -> None:
        began = time.process_time()
        self._work()
        self.seconds += time.process_time() - began
        self.calls += 1


# --- measurements ----------------------------------------------------------------------------------------


def stepping(remote: RemoteServer, activation: Tensor, gradient: Tensor) -> Callable[[], None]:
    """One step's four messages, without a client's arithmetic."""

    def run() -> None:
        remote.forward(Activation(activation))
        remote.backward(LogitGradient(gradient))

    return run


def transports(folder: Path, settings: Settings, batch: int, repeats: int) -> dict[str, dict[str, float]]:
    """Seconds a step of the three ways to move it: the median, and the processor time of both ends."""
    services = [Service(folder, settings, wire=wire, computes=False) for wire in WIRES]
    activation, gradient = batch_of(services[0].shape, batch)
    socket_end = BareSocket(folder, 4 * activation.numel(), 4 * gradient.numel())
    remotes = [service.client(0) for service in services]
    ways = {"bare TLS socket, float32": Timed(socket_end.step)}
    for wire, remote in zip(WIRES, remotes, strict=True):
        ways[f"service, {wire}"] = Timed(stepping(remote, activation, gradient))
    before = [service.seconds() for service in services]
    medians = interleaved(ways, repeats)
    after = [service.seconds() for service in services]
    elsewhere = [socket_end.close(), *(now - then for now, then in zip(after, before, strict=True))]
    for remote in remotes:
        remote.close()
    for service in services:
        service.close()
    return {
        name: {"median": medians[name], "processor": (way.seconds + other) / way.calls}
        for (name, way), other in zip(ways.items(), elsewhere, strict=True)
    }


def batch_of(shape: tuple[int, ...], batch: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    activation = torch.rand(batch, *shape, generator=generator)
    if activation.ndim == 4:
        activation = activation.to(memory_format=torch.channels_last)
    return activation, torch.randn(batch, CLASSES, generator=generator) / batch


def crowd(folder: Path, settings: Settings, batch: int, repeats: int, seconds: float) -> dict[str, Any]:
    """Steps a second of one client and of eight at once, in turns, and how even the eight are served."""
    service = Service(folder, settings, computes=True)
    activation, gradient = batch_of(service.shape, batch)
    remotes = [service.client(index) for index in range(CLIENTS)]
    runs = [stepping(remote, activation, gradient) for remote in remotes]
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
    """Megabytes of a fresh service's process: idle, and at most with so many clients at work."""
    service = Service(folder, settings, computes=True)
    activation, gradient = batch_of(service.shape, batch)
    remotes = [service.client(index) for index in range(clients)]
    rates([stepping(remote, activation, gradient) for remote in remotes], 3.0)
    for remote in remotes:
        remote.close()
    return {"idle_mb": service.idle_mb, "peak_mb": service.close()}


def quality(folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Accuracy and mark after the same small training over both wires: digits, three clients."""
    settings = make(
        {
            "model": {"name": "resnet18", "width": 8, "cut": "layer2"},
            "data": {"name": "digits"},
            "federation": {"clients": 3, "rounds": rounds, "local_epochs": 1, "batch_size": 64},
            "optimizer": {"lr": 0.05, "warmup_rounds": 2},
            "watermark": {"strength": 0.1, "bits": 50},
            "run": {"device": "cpu", "precision": "float32"},
        }
    )
    dataset = load_data(settings)
    parts = client_parts(settings, dataset)
    shape = build_halves(settings, classes=dataset.classes, input_shape=dataset.shape).shape
    key = Key.generate("benchmark", shape=shape, bits=50, seed=bytes(32))
    clients = certificates.make(folder, clients=len(parts))
    result: dict[str, dict[str, float]] = {}
    for wire in WIRES:
        federation = Federation(settings, dataset, key=key)
        with SplitService(
            settings,
            key=key,
            classes=dataset.classes,
            input_shape=dataset.shape,
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
                        settings=settings,
                        dataset=dataset,
                        indices=parts[index],
                        client_index=index,
                        credentials=ClientCredentials.load(certificates.bundle_folder(folder, index)),
                    )
                    average.add(update.client_state, weight=len(parts[index]))
                outcome = service.wait_round(minimum=len(parts))
                federation.load(number, average.result(), outcome.server_state())
        report, *_ = federation.read_mark(key)
        result[wire] = {"accuracy": federation.accuracy(), "wsr": report.wsr, "p_value": 10.0**report.log10_p}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=64, help="256 × 256 × 8 × 8 floats are 16.8 MB each way")
    parser.add_argument("--crowd-batch", type=int, default=64)
    parser.add_argument("--crowd-width", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=10.0, help="of one turn of the clients at once")
    parser.add_argument("--turns", type=int, default=3, help="of one client and of eight")
    parser.add_argument("--rounds", type=int, default=15, help="of the training over both wires")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        certificates.make(folder, clients=CLIENTS)
        steps = transports(folder, settings_of(options), options.batch, options.repeats)
        options.width, options.batch = options.crowd_width, options.crowd_batch
        small = settings_of(options)
        many = crowd(folder, small, options.batch, options.turns, options.seconds)
        sizes = {count: memory(folder, small, options.batch, count) for count in (1, CLIENTS)}
        wires = quality(folder, options.rounds)

    used = {count: entry["peak_mb"] - entry["idle_mb"] for count, entry in sizes.items()}
    rows: list[tuple[str, float, str]] = [
        (
            "step over gRPC with mTLS / bare TLS socket moving the same bytes",
            steps["service, float32"]["median"] / steps["bare TLS socket, float32"]["median"],
            "<= 1.3",
        ),
        (
            "step with bfloat16 wire / float32 wire",
            steps["service, bfloat16"]["median"] / steps["service, float32"]["median"],
            "<= 0.65",
        ),
        (
            "8 clients at once: total throughput / one client",
            many["eight clients, steps/s"] / many["one client, steps/s"],
            ">= 1.0",
        ),
        ("the same: slowest client / mean", many["slowest / mean"], ">= 0.5"),
        ("server memory, 8 clients / 1 client", sizes[CLIENTS]["peak_mb"] / sizes[1]["peak_mb"], "report"),
        ("the same, beyond the idle process", used[CLIENTS] / used[1], "report"),
    ]
    print("| claim | measured | must reach |\n| --- | --- | --- |")
    for claim, value, target in rows:
        print(f"| {claim} | {value:.3f} | {target} |")
    print("\n| way to move one step | ms | ms of processor time, both ends |\n| --- | --- | --- |")
    for way, taken in steps.items():
        print(f"| {way} | {1000 * taken['median']:.1f} | {1000 * taken['processor']:.1f} |")
    print("\n| wire | accuracy | WSR | p |\n| --- | --- | --- | --- |")
    for wire, measured in wires.items():
        print(f"| {wire} | {measured['accuracy']:.4f} | {measured['wsr']:.3f} | {measured['p_value']:.1e} |")
    if options.json:
        result: dict[str, Any] = {
            "claims": [{"claim": c, "measured": v, "target": t} for c, v, t in rows],
            "step_seconds": steps,
            "clients": many,
            "memory_mb": sizes,
            "wires": wires,
            "setting": {**vars(options), "json": None, "cores": os.cpu_count()},
            "load_average": os.getloadavg(),
            "versions": {
                "torch": torch.__version__,
                "grpc": grpc.__version__,
                "python": platform.python_version(),
            },
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
