"""A client's round across the network: its own half, its own data, and the server at the end of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from sigil.data import Dataset
from sigil.errors import NetworkError
from sigil.federation.averaging import State
from sigil.federation.from_settings import build_halves
from sigil.federation.observers import ClientObserver
from sigil.federation.precision import choose
from sigil.federation.settings import Settings
from sigil.federation.trainer import Tick, train_client
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
    precision = choose(settings.run.device, settings.run.precision)
    half = build_halves(
        settings, classes=dataset.classes, input_shape=dataset.shape, precision=precision
    ).client
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
        result = train_client(
            client_index,
            half,
            remote,
            settings=settings,
            dataset=dataset,
            indices=indices,
            round_number=task.round,
            lr=task.lr,
            precision=precision,
            observers=observers,
            tick=tick,
        )
        remote.finish()
        state = {name: value.detach().clone() for name, value in half.state_dict().items()}
        loss = result.loss / max(1, result.steps)
        return RoundUpdate(state, images=result.images, steps=result.steps, loss=loss)

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
