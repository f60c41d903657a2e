"""A small federation on loopback: settings, data, certificates and a service for the tests."""

from __future__ import annotations

import base64
import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch

from sigil.data import Dataset
from sigil.federation import Federation, Settings
from sigil.federation.averaging import State, WeightedAverage
from sigil.federation.from_settings import (
    Training,
    build_halves,
    load_data,
    scheduled_rate,
)
from sigil.federation.precision import choose
from sigil.federation.settings import make
from sigil.keys.key import Key
from sigil.transport import (
    ClientCredentials,
    RoundOutcome,
    RoundTask,
    RoundUpdate,
    ServerCredentials,
    SplitService,
    certificates,
    train_round,
    wire,
)
from sigil.transport.limits import Reason
from sigil.transport.wire import Header, Kind


def loss_gradient(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """What an honest client sends back."""
    outputs = logits.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(outputs, labels), outputs)
    return gradient


def small_settings(**changes: Any) -> Settings:
    """Two rounds of three clients on some digits, marked."""
    values: dict[str, Any] = {
        "model": {"name": "vgg11", "width": 4, "cut": "pool2"},
        "data": {"name": "digits", "train_limit": 120, "test_limit": 20},
        "federation": {"clients": 3, "rounds": 2, "local_epochs": 2, "batch_size": 16},
        "optimizer": {"lr": 0.05, "warmup_rounds": 0},
        "watermark": {"strength": 0.5, "bits": 16, "statistics_every": 2},
        "run": {"device": "cpu", "workers": 1, "seed": 3},
    }
    for section, entries in changes.items():
        values[section] = {**values.get(section, {}), **entries}
    return make(values)


@dataclass
class Net:
    """Everything that a test needs to run clients against a service."""

    settings: Settings
    dataset: Dataset
    key: Key
    shape: tuple[int, ...]
    folder: Path
    fingerprints: dict[int, str]

    def training(self, **changes: Any) -> Training:
        arguments: dict[str, Any] = {"settings": self.settings, "dataset": self.dataset, "key": self.key}
        return Training.prepare(**{**arguments, **changes})

    def service(self, training: Training | None = None, **changes: Any) -> SplitService:
        credentials = ServerCredentials.load(self.folder)
        return SplitService(training or self.training(), **{"credentials": credentials, **changes})

    def credentials(self, client: int) -> ClientCredentials:
        return ClientCredentials.load(certificates.bundle_folder(self.folder, client))

    def task(
        self, service: SplitService | Proxy, ticket: str, state: State, number: int = 1, **changes: Any
    ) -> RoundTask:
        lr = scheduled_rate(self.settings, number)
        return RoundTask(number, service.address, ticket, lr=lr, client_state=state, **changes)

    def train(self, task: RoundTask, client: int, **changes: Any) -> RoundUpdate:
        training = Training.of_client(
            changes.pop("settings", self.settings), changes.pop("dataset", self.dataset)
        )
        training.client_observers += changes.pop("observers", ())
        arguments: dict[str, Any] = {"credentials": self.credentials(client), "patience": 10.0}
        return train_round(task, training, client, **{**arguments, **changes})

    def raw(self, service: SplitService, client: int = 0) -> Raw:
        return Raw(self.channel(service, self.credentials(client)))

    def channel(self, service: SplitService, credentials: ClientCredentials) -> grpc.Channel:
        secure = grpc.ssl_channel_credentials(credentials.authority, credentials.key, credentials.certificate)
        options = [("grpc.ssl_target_name_override", certificates.SERVER_NAME), ("grpc.enable_retries", 0)]
        return grpc.secure_channel(service.address, secure, options=options)

    def hello(self, ticket: str, client: int = 0, number: int = 1, answers: int = 0) -> bytes:
        return wire.hello(bytes.fromhex(ticket), round_number=number, client=client, answers=answers)

    def activation(self, samples: int = 4, client: int = 0, number: int = 1, step: int = 1) -> list[bytes]:
        """The messages of an activation that the server accepts."""
        values = torch.rand(samples, *self.shape, generator=torch.Generator().manual_seed(step))
        return list(wire.frame(Kind.ACTIVATION, values, round_number=number, client=client, step=step))

    def gradient(self, samples: int = 4, client: int = 0, number: int = 1, step: int = 1) -> list[bytes]:
        """The messages of a logit gradient that the server accepts after the first activation."""
        precision = choose(self.settings.run.device, self.settings.run.precision)
        half = build_halves(
            self.settings,
            classes=self.dataset.classes,
            input_shape=self.dataset.shape,
            precision=precision,
        ).server
        sent = torch.rand(samples, *self.shape, generator=torch.Generator().manual_seed(1))
        with torch.no_grad(), precision.autocast():
            logits = half.train()(sent).float()
        labels = torch.arange(samples) % self.dataset.classes
        values = loss_gradient(logits, labels)
        return list(wire.frame(Kind.LOGIT_GRADIENT, values, round_number=number, client=client, step=step))

    def local(self) -> Federation:
        """The same training in one process."""
        return Federation(self.settings, self.dataset, key=self.key)

    def open(
        self, service: SplitService, state: State, number: int = 1, clients: int | None = None
    ) -> dict[int, str]:
        """Open a round for the first `clients`, or for all."""
        lr = scheduled_rate(self.settings, number)
        chosen = dict(list(self.fingerprints.items())[:clients])
        return service.open_round(number, state, lr=lr, clients=chosen)

    def round(
        self, service: SplitService, client_state: State, server_state: State, number: int, **task: Any
    ) -> tuple[State, RoundOutcome, dict[int, RoundUpdate]]:
        """One round with all clients at once: the averaged client half, the outcome, the updates."""
        tickets = self.open(service, server_state, number)
        with ThreadPoolExecutor(len(tickets)) as pool:
            jobs = {
                client: pool.submit(
                    self.train, self.task(service, ticket, client_state, number, **task), client
                )
                for client, ticket in tickets.items()
            }
            updates = {client: job.result() for client, job in jobs.items()}
        outcome = service.wait_round(timeout=120)
        average = WeightedAverage()
        for client in outcome.finished:
            average.add(updates[client].client_state, weight=outcome.clients[client].weight)
        return average.result(), outcome, updates


class Raw:
    """A stream on which a test can say anything."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.call = channel.stream_stream(wire.METHOD)(iter(self._out.get, None))

    def send(self, *messages: bytes) -> Raw:
        for message in messages:
            self._out.put(message)
        return self

    def receive(self) -> Header:
        """The next answer's header; a tensor behind it is read and thrown away."""
        header = wire.unpack(next(self.call))
        for _ in range(-(-header.size // wire.CHUNK_BYTES)):
            next(self.call)
        return header

    def hang_up(self) -> Raw:
        self._out.put(None)
        return self

    def refusal(self) -> Reason | grpc.StatusCode:
        """How the server ends this stream: with a reason, or with a bare status."""
        try:
            for _ in self.call:
                pass
        except grpc.RpcError:
            pass
        for name, value in self.call.trailing_metadata() or ():
            if name == wire.REASON_KEY:
                return Reason(value)
        return self.call.code()


@dataclass
class Line:
    """One connection through a proxy: its two ends, and whether it may go on once it is held."""

    near: socket.socket
    far: socket.socket
    passed: int = 0
    waits: bool = False
    free: threading.Event = field(default_factory=threading.Event)


class Proxy:
    """A network between clients and a service that a test can cut: at once, or after a number of bytes.

    With `hold`, each connection stands still after that many bytes, as if every packet were lost, until
    :meth:`release`: so a test finds a client in the middle of its round however fast the machine is.
    """

    def __init__(self, target: str, *, port: int = 0, hold: int | None = None) -> None:
        self._target = target.rsplit(":", 1)
        self._listener = socket.create_server(("127.0.0.1", port))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.hold = hold
        self.connections = 0
        self.passed = 0
        self.down = False
        self._left: int | None = None
        self._lines: list[Line] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def holding(self) -> int:
        """How many connections stand still now."""
        return sum(line.waits for line in self._lines)

    def release(self) -> None:
        """Let every connection that stands still go on to its end."""
        for line in self._lines:
            if line.waits:
                line.free.set()

    def cut_after(self, count: int) -> None:
        """Cut all connections when `count` more bytes have passed, in either direction."""
        self._left = count

    def cut(self) -> None:
        """Cut all connections now."""
        self._left = None
        lines, self._lines = self._lines, []
        for line in lines:
            line.free.set()
            for end in (line.near, line.far):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self.down:
                near.close()
                continue
            try:
                far = socket.create_connection((self._target[0], int(self._target[1])))
            except OSError:
                near.close()
                continue
            self.connections += 1
            line = Line(near, far)
            self._lines.append(line)
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(line, source, sink), daemon=True).start()

    def _pump(self, line: Line, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(16_384):
                self.passed += len(data)
                line.passed += len(data)
                if self.hold is not None and line.passed > self.hold and not line.free.is_set():
                    line.waits = True
                    line.free.wait()
                    line.waits = False
                if self._left is not None:
                    self._left -= len(data)
                    if self._left <= 0:
                        self.cut()
                        return
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


def _make_net(folder: Path, **changes: Any) -> Net:
    settings = small_settings(**changes)
    dataset = load_data(settings)
    shape = build_halves(settings, classes=dataset.classes, input_shape=dataset.shape).shape
    key = Key.generate("ACME", shape=shape, bits=settings.watermark.bits, seed=bytes(range(32)))
    fingerprints = certificates.make(folder, clients=settings.federation.clients)
    return Net(settings, dataset, key, shape, folder, fingerprints)


@pytest.fixture(scope="session")
def make_net(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Net]:
    """Makes a federation whose settings differ: section=dict(name=value)."""
    return lambda **changes: _make_net(tmp_path_factory.mktemp("federation"), **changes)


@pytest.fixture(scope="session")
def net(make_net: Callable[..., Net]) -> Net:
    return make_net()


@pytest.fixture
def service(net: Net) -> Iterator[SplitService]:
    with net.service() as running:
        yield running


def _traces(key: Key) -> dict[str, bytes]:
    """The secrets in the forms in which they could slip out."""
    found = {
        "seed": key._seed,
        "seed in hex": key._seed.hex().encode(),
        "seed in base64": base64.b64encode(key._seed),
        "seed as a list": str(list(key._seed)).encode(),
    }
    bits = key.target.numpy().astype(np.uint8)
    found |= {
        "b as bytes": bits.tobytes(),
        "b packed": np.packbits(bits).tobytes(),
        "b packed the other way": np.packbits(bits, bitorder="little").tobytes(),
        "b as text": "".join(map(str, bits)).encode(),
        "b as a list": str(bits.tolist()).encode(),
    }
    for dtype in (np.float16, np.float32, np.float64):
        found[f"b in {dtype.__name__}"] = key.target.numpy().astype(dtype).tobytes()
    found["b in bfloat16"] = key.target.bfloat16().view(torch.uint8).numpy().tobytes()
    for name, matrix in (("M", key.matrix), ("its transpose", key.matrix.T.contiguous())):
        for index, row in enumerate(matrix):
            found[f"row {index} of {name}"] = row.numpy().tobytes()
            found[f"row {index} of {name} in float64"] = row.double().numpy().tobytes()
            found[f"row {index} of {name} in bfloat16"] = row.bfloat16().view(torch.uint8).numpy().tobytes()
            found[f"row {index} of {name} as text"] = ", ".join(f"{value:.4f}" for value in row[:4]).encode()
    return found


@pytest.fixture(scope="session")
def leaks() -> Callable[[Key, bytes], list[str]]:
    """Searches bytes for the secrets of a key; returns what it found."""
    return lambda key, content: [name for name, trace in _traces(key).items() if trace in content]


@pytest.fixture(scope="session")
def make_proxy() -> Callable[..., Proxy]:
    """Makes a network to an address that can be cut."""
    return Proxy


@pytest.fixture
def proxy(service: SplitService) -> Iterator[Proxy]:
    """A network to `service` that can be cut."""
    network = Proxy(service.address)
    yield network
    network.close()
