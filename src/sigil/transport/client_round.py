"""A client's round across the network: its own half, its own data, and the server at the end of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from sigil.data import Dataset
from sigil.errors import NetworkError
from sigil.federation import precision as precisions
from sigil.federation.averaging import State
from sigil.federation.client import Client
from sigil.federation.from_settings import build_halves, check_loss, fresh_optimizer, local_batches
from sigil.federation.observers import ClientObserver
from sigil.federation.seat import Tick
from sigil.federation.settings import Settings
from sigil.federation.step import step
from sigil.transport.certificates import ClientCredentials
from sigil.transport.remote import RemoteServer, RoundRestarted
from sigil.transport.wire import Wire

_MAX_RESTARTS = 10


@dataclass(frozen=True)
class RoundTask:
    """What the owner asks of a client: train these weights for one round, with this ticket."""

    round: int
    address: str
    ticket: str = field(repr=False)
    lr: float
    client_state: State = field(repr=False)
    wire: Wire = "float32"


@dataclass(frozen=True)
class RoundUpdate:
    """What a client has to show for a round: its half, and its own count of images, steps and mean loss."""

    client_state: State
    images: int
    steps: int
    loss: float


def train_round(
    task: RoundTask,
    *,
    settings: Settings,
    dataset: Dataset,
    indices: npt.NDArray[np.int64],
    client_index: int,
    credentials: ClientCredentials,
    observers: Sequence[ClientObserver] = (),
    patience: float = 60.0,
    tick: Tick | None = None,
) -> RoundUpdate:
    """Train one round on the images `indices` of `dataset`, with the server half behind `task.address`.

    Broken connections are opened again for up to `patience` seconds each, and the round goes on where it
    was; if the server has given the step up meanwhile, the round is trained again from its start, before
    the eyes of the observers. Either way the result is the same bit for bit.
    :class:`sigil.transport.Refused` means that this ticket is good for nothing any more.
    """
    precision = precisions.choose(settings.run.device, settings.run.precision)
    half = build_halves(settings, classes=dataset.classes, input_shape=dataset.shape).client
    half = half.to(device=precision.device, memory_format=precision.layout)  # type: ignore[call-overload]
    remote = RemoteServer(
        task.address,
        ticket=task.ticket,
        round_number=task.round,
        client=client_index,
        classes=dataset.classes,
        credentials=credentials,
        precision=precision,
        wire=task.wire,
        patience=patience,
    )

    def train() -> RoundUpdate:
        half.load_state_dict(task.client_state)
        half.train()
        client = Client(
            client_index,
            half,
            fresh_optimizer(half, task.lr, settings=settings, precision=precision),
            precision=precision,
            observers=observers,
        )
        images = 0
        for at, pictures, labels in local_batches(
            settings,
            dataset,
            indices=indices,
            round_number=task.round,
            client=client_index,
            precision=precision,
            observers=observers,
        ):
            step(client, remote, pictures, labels, at=at)
            images += len(labels)
            if tick is not None:
                tick(len(labels))
        loss = check_loss(client, task.round)
        remote.finish()
        state = {name: value.detach().clone() for name, value in half.state_dict().items()}
        return RoundUpdate(state, images=images, steps=client.steps, loss=loss / max(1, client.steps))

    try:
        for _ in range(_MAX_RESTARTS):
            try:
                with torch.random.fork_rng(devices=[]):
                    return train()
            except RoundRestarted:
                continue
    finally:
        remote.close()
    raise NetworkError(
        f"Round {task.round} was begun {_MAX_RESTARTS} times and never ended; the connection to "
        f"{task.address} is too bad, or the server's step_seconds too short for this machine."
    )
