"""Clients of a round in several processes, where that is faster than several threads.

Small networks leave most of a second thread idle; two processes of one thread do not. Each worker has a
seat of its own and trains every n-th client; the averages are merged in the workers' order, so that a run
with the same number of workers and threads repeats bit for bit.
"""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
import torch.multiprocessing as processes
from torch import Tensor

from sigil.data import Split
from sigil.errors import SigilError, TrainingError
from sigil.federation.averaging import State
from sigil.federation.seat import Harvest, Seat, Tick
from sigil.injector import Injector

if TYPE_CHECKING:
    from sigil.federation.federation import Federation

# Below this many images a round, starting processes and passing weights costs more than it brings.
WORTHWHILE_IMAGES = 4_000


def fastest_workers(federation: Federation) -> int:
    """How many worker processes suit this run: one a core on a CPU for rounds that are long enough."""
    settings = federation.settings
    if (
        federation.precision.device.type != "cpu"
        or settings.federation.mode == "sl"
        or settings.federation.server_halves == "shared"
        or not can_spread(federation)
        or federation.images_per_round < WORTHWHILE_IMAGES
        or processes.current_process().daemon
    ):
        return 1
    cores = settings.run.threads or len(os.sched_getaffinity(0))
    return max(1, min(cores, len(federation.parts)))


def can_spread(federation: Federation) -> bool:
    """Whether nothing that looks on, or serves, must follow the clients one after another."""
    return (
        not federation.client_observers
        and all(observer.mergeable for observer in federation.server_observers)
        and federation.seat.server_factory is None
    )


class Workers:
    """A few processes, each with a seat; started once and used for every round."""

    def __init__(self, count: int, federation: Federation) -> None:
        context = processes.get_context("spawn")
        cores = federation.settings.run.threads or len(os.sched_getaffinity(0))
        threads = max(1, cores // count)
        self._observers = federation.server_observers
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(count):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there, threads), daemon=True)
            process.start()
            here.send(_recipe(federation))
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def train(
        self,
        number: int,
        clients: list[int],
        client_state: State,
        server_state: State,
        lr: float,
        tick: Tick | None,
    ) -> Harvest:
        """Train these clients, every n-th by each worker, and merge what they bring."""
        count = len(self._pipes)
        for position, pipe in enumerate(self._pipes):
            pipe.send((number, clients[position::count], client_state, server_state, lr))
        harvests: dict[int, tuple[Harvest, list[Any]]] = {}
        while len(harvests) < count:
            for ready in wait(self._pipes):
                position = self._pipes.index(ready)  # type: ignore[arg-type]
                kind, content = self._receive(position)
                if kind == "tick" and tick is not None:
                    tick(content)
                elif kind == "error":
                    raise content
                elif kind == "harvest":
                    harvests[position] = content
        total = Harvest()
        for position in range(count):
            harvest, sums = harvests[position]
            total.merge(harvest)
            for observer, part in zip(self._observers, sums, strict=True):
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
    """The part of a key that an injector multiplies with: the seed stays in the parent."""

    shape: tuple[int, ...]
    matrix: Tensor
    target: Tensor


@dataclass(frozen=True)
class _MappedArray:
    """A memory-mapped array by its file, so that a worker maps it instead of receiving a copy."""

    path: str
    offset: int
    shape: tuple[int, ...]
    dtype: str

    def open(self) -> npt.NDArray[Any]:
        return np.memmap(self.path, self.dtype, mode="r", offset=self.offset, shape=self.shape)


def _recipe(federation: Federation) -> dict[str, Any]:
    """What a worker needs to build a seat like the parent's; it travels through a pipe to our own child."""
    seat, injector = federation.seat, federation.injector
    images: Any = seat.dataset.train.images
    if isinstance(images, np.memmap) and images.filename is not None:
        images = _MappedArray(str(images.filename), images.offset, images.shape, str(images.dtype))
    nothing = Split(np.empty((0, *seat.dataset.shape), np.uint8), np.empty(0, np.int64))
    return {
        "halves": (seat.client_half, seat.server_half),
        "settings": seat.settings,
        # Workers do not test, so the test images stay here; the training images are put in again there.
        "dataset": replace(seat.dataset, train=nothing, test=nothing),
        "images": images,
        "labels": np.asarray(seat.dataset.train.labels),
        "parts": seat.parts,
        "shape": seat.shape,
        "precision": seat.precision,
        "observers": federation.server_observers,
        "injector": None
        if injector is None
        else {
            "key": _Mark(injector.key.shape, injector.key.matrix, injector.key.target),
            "strength": injector.strength,
            "clip": injector.clip,
            "per_sample": injector.per_sample,
        },
    }


def _build(recipe: dict[str, Any]) -> Seat:
    images = recipe["images"]
    images = images.open() if isinstance(images, _MappedArray) else images
    # Tensors arrive as shared memory: without copies, all workers would train the same weights at once.
    client_half, server_half = copy.deepcopy(recipe["halves"])
    injector = recipe["injector"]
    return Seat(
        client_half,
        server_half,
        settings=recipe["settings"],
        dataset=replace(recipe["dataset"], train=Split(images, recipe["labels"])),
        parts=recipe["parts"],
        shape=recipe["shape"],
        precision=recipe["precision"],
        injector=None if injector is None else Injector(**injector),
        server_observers=recipe["observers"],
    )


def _work(pipe: Connection, threads: int) -> None:
    """Body of a worker process: build a seat, then train whatever arrives until the pipe closes."""
    torch.set_num_threads(threads)
    try:
        seat = _build(pipe.recv())
        while True:
            number, clients, client_state, server_state, lr = pipe.recv()
            for observer in seat.server_observers:
                observer.on_round_start(number)
            try:
                harvest = seat.train(
                    number,
                    clients,
                    client_state,
                    server_state,
                    lr=lr,
                    tick=lambda images: pipe.send(("tick", images)),
                )
            except SigilError as error:
                pipe.send(("error", error))
                continue
            pipe.send(("harvest", (harvest, [observer.collect() for observer in seat.server_observers])))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
