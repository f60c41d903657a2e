"""Clients of a round in several processes, where that is faster than several threads.

Small networks leave most of a second thread idle; two processes of one thread do not. Each worker has
halves of its own and trains every n-th client; the averages are merged in the workers' order, so that a run
with the same number of workers and threads repeats bit for bit.
"""

from __future__ import annotations

import copy
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
import torch.multiprocessing as processes
from torch import Tensor

from sigil import hardware
from sigil.data import Split
from sigil.errors import ConfigError, SigilError, TrainingError
from sigil.federation.from_settings import Training
from sigil.federation.trainer import LocalTrainer, RoundStart, RoundSums, RoundTrainer, Tick

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, SpawnContext

# Below this many images per round, starting processes and passing weights costs more than it brings.
WORTHWHILE_IMAGES = 4_000


def clean_processes() -> ForkServerContext | SpawnContext:
    """How processes that compute are started: with nothing of this one but what they are given.

    Each would take seconds of a core to load PyTorch. On Linux one process does so when the first is asked
    for, starts no thread, holds nothing of a training, and all are forks of it.
    """
    if sys.platform != "linux":
        return processes.get_context("spawn")
    context = processes.get_context("forkserver")
    context.set_forkserver_preload(["sigil.federation.trainer"])
    return context


def begin(environment: Mapping[str, str], threads: int) -> None:
    """What a clean process does first: see the variables of the process that asked for it as they are now.

    It ends with that process, however that ends: one that was killed cannot tell its children.
    """
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(threads)
    parent = processes.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def choose_trainer(training: Training) -> RoundTrainer:
    """What trains the clients on this machine: one process, or as many as the settings say or suit it.

    One per core suits rounds that are long enough, on a CPU.
    """
    run = training.settings.run
    cores, count = run.threads or hardware.cores(), run.workers
    # Nothing that looks on, or serves, must follow the clients one after another.
    separable = (
        not training.client_observers
        and all(observer.mergeable for observer in training.server_observers)
        and training.server_factory is None
    )
    if not count:
        worthwhile = (
            training.precision.device.type == "cpu"
            and not training.one_server_half
            and separable
            and training.images_per_round >= WORTHWHILE_IMAGES
            and not processes.current_process().daemon
        )
        count = max(1, min(cores, len(training.parts))) if worthwhile else 1
    if count == 1:
        return LocalTrainer(training)
    if training.one_server_half:
        raise ConfigError(
            "Clients that share one server half take turns at it, so run.workers must be 1 (or 0) here."
        )
    if not separable:
        raise ConfigError(
            "An observer or a server of its own kind follows the clients in order, so run.workers must "
            "be 1 (or 0) here."
        )
    return WorkerTrainer(count, training, threads=max(1, cores // count))


class WorkerTrainer:
    """A few processes, each with a :class:`LocalTrainer`; started once and used for every round."""

    def __init__(self, count: int, training: Training, *, threads: int) -> None:
        context = clean_processes()
        self._settings = training.settings
        self._clients = range(len(training.parts))
        self._observers = training.server_observers
        self._pipes: list[Connection] = []
        self._processes = []
        try:
            for _ in range(count):
                here, there = context.Pipe()
                self._pipes.append(here)
                process = context.Process(target=_work, args=(there, dict(os.environ), threads), daemon=True)
                process.start()
                self._processes.append(process)
                there.close()
                here.send(_for_a_worker(training))
        except BaseException:
            # Those that were started before would wait for work for as long as this process lives.
            self.close()
            raise

    def train(self, start: RoundStart, *, tick: Tick | None = None) -> RoundSums:
        """Train all clients, every n-th in each worker, and merge what they come to."""
        count = len(self._pipes)
        for position, pipe in enumerate(self._pipes):
            pipe.send((start, list(self._clients[position::count])))
        results: dict[int, tuple[RoundSums, list[Any]]] = {}
        while len(results) < count:
            for ready in wait(self._pipes):
                position = self._pipes.index(ready)  # type: ignore[arg-type]
                kind, content = self._receive(position)
                if kind == "tick" and tick is not None:
                    tick(content)
                elif kind == "error":
                    raise content
                elif kind == "sums":
                    results[position] = content
        total = RoundSums.begin(self._settings)
        for position in range(count):
            sums, observed = results[position]
            total.merge(sums)
            for observer, part in zip(self._observers, observed, strict=True):
                observer.merge(part)
        return total

    def close(self) -> None:
        """Let the workers go."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()

    def _receive(self, position: int) -> tuple[str, Any]:
        try:
            message: tuple[str, Any] = self._pipes[position].recv()
        except (EOFError, ConnectionError):
            raise TrainingError(
                "A worker process died (killed, or out of memory); the last checkpoint is kept: start the "
                "run again to go on, with run.workers=1 if it happens again."
            ) from None
        return message


@dataclass(frozen=True)
class _Mark:
    """The part of a key that an injector multiplies with: the seed stays in the parent.

    `dealt`, (clients, bits), tells which client carries which bits.
    """

    shape: tuple[int, ...]
    matrix: Tensor
    target: Tensor
    dealt: Tensor

    def share_of(self, client: int, clients: int, carriers_per_bit: int | None = None) -> Tensor:
        """What the key deals out to one of the clients of this training."""
        return self.dealt[client]


@dataclass(frozen=True)
class _MappedArray:
    """A memory-mapped array by its file, so that a worker maps it instead of receiving a copy."""

    path: str
    offset: int
    shape: tuple[int, ...]
    dtype: str

    def open(self) -> npt.NDArray[Any]:
        return np.memmap(self.path, self.dtype, mode="r", offset=self.offset, shape=self.shape)


def _for_a_worker(training: Training) -> Training:
    """The training as it travels through a pipe to our own child: nothing of the key but what it embeds."""
    dataset, secret, settings = training.dataset, training.secret, training.settings
    images: Any = dataset.train.images
    if isinstance(images, np.memmap) and images.filename is not None:
        images = _MappedArray(str(images.filename), images.offset, images.shape, str(images.dtype))
    # Workers do not test, so the test images stay here.
    nothing = Split(np.empty((0, *dataset.shape), np.uint8), np.empty(0, np.int64))
    train = Split(images, np.asarray(dataset.train.labels))
    if secret is not None:
        clients, carriers = settings.federation.clients, settings.watermark.carriers_per_bit
        dealt = torch.ones(clients, len(secret.target), dtype=torch.bool)
        if settings.watermark.scheme == "shares":
            dealt = torch.stack([secret.share_of(client, clients, carriers) for client in range(clients)])
        secret = _Mark(secret.shape, secret.matrix, secret.target, dealt)
    return replace(training, dataset=replace(dataset, train=train, test=nothing), key=None, secret=secret)


def _in_a_worker(training: Training) -> Training:
    """What has arrived, ready to train: its images mapped, and its halves in this process alone."""
    dataset = training.dataset
    images: Any = dataset.train.images
    if isinstance(images, _MappedArray):
        dataset = replace(dataset, train=Split(images.open(), dataset.train.labels))
    # Tensors arrive as shared memory: without copies, all workers would train the same weights at once.
    return replace(training, dataset=dataset, halves=copy.deepcopy(training.halves))


def _work(pipe: Connection, environment: Mapping[str, str], threads: int) -> None:
    """Body of a worker process: make the training, then train whatever arrives until the pipe closes."""
    begin(environment, threads)
    try:
        training = _in_a_worker(pipe.recv())
        trainer = LocalTrainer(training)
        while True:
            start, clients = pipe.recv()
            for observer in training.server_observers:
                observer.on_round_start(start.number)
            try:
                sums = trainer.train(start, clients=clients, tick=lambda images: pipe.send(("tick", images)))
            except SigilError as error:
                pipe.send(("error", error))
                continue
            pipe.send(("sums", (sums, [observer.collect() for observer in training.server_observers])))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
