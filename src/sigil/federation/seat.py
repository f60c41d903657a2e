"""A seat: one live copy of the two halves, on which clients train one after another.

A process has one seat, however many clients it simulates: a client's round starts by loading the global
weights into the seat and ends by adding the result to a running average. So memory does not grow with the
number of clients, and a client's result depends on nothing but the global weights, its data and the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sigil.data import Dataset
from sigil.federation.averaging import State, WeightedAverage
from sigil.federation.client import Client
from sigil.federation.from_settings import check_loss, fresh_optimizer, is_measured, local_batches
from sigil.federation.observers import ClientObserver, ServerObserver
from sigil.federation.precision import Precision
from sigil.federation.server import LabelServer, Server
from sigil.federation.settings import Settings
from sigil.federation.step import step, step_with_labels
from sigil.injector import InjectionStatistics, Injector

Tick = Callable[[int], None]


@dataclass
class Harvest:
    """What some clients of a round brought: running averages and sums, ready to be merged with others'."""

    client: WeightedAverage = field(default_factory=WeightedAverage)
    server: WeightedAverage = field(default_factory=WeightedAverage)
    loss: float = 0.0
    steps: int = 0
    images: int = 0
    injections: list[InjectionStatistics] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)

    def merge(self, other: Harvest) -> None:
        """Add what other clients brought."""
        self.client.merge(other.client)
        self.server.merge(other.server)
        self.loss += other.loss
        self.steps += other.steps
        self.images += other.images
        self.injections += other.injections
        self.missing += other.missing


class Seat:
    """Two live halves and everything that trains them."""

    def __init__(
        self,
        client_half: nn.Module,
        server_half: nn.Module,
        *,
        settings: Settings,
        dataset: Dataset,
        parts: Sequence[npt.NDArray[np.int64]],
        shape: tuple[int, ...],
        precision: Precision,
        injector: Injector | None = None,
        client_observers: Sequence[ClientObserver] = (),
        server_observers: Sequence[ServerObserver] = (),
        server_factory: Callable[..., Server] | None = None,
    ) -> None:
        place = {"device": precision.device, "memory_format": precision.layout}
        self.client_half = client_half.to(**place)  # type: ignore[call-overload]
        self.server_half = server_half.to(**place)  # type: ignore[call-overload]
        self.settings = settings
        self.dataset = dataset
        self.parts = parts
        self.shape = shape
        self.precision = precision
        self.injector = injector
        self.client_observers = client_observers
        self.server_observers = server_observers
        self.server_factory = server_factory

    def train(
        self,
        round_number: int,
        clients: Sequence[int],
        client_state: State,
        server_state: State,
        *,
        lr: float,
        tick: Tick | None = None,
    ) -> Harvest:
        """Let these clients do their part of a round, each from the global weights (or in turn)."""
        federation = self.settings.federation
        in_turn = federation.mode == "sl"
        shared_server = in_turn or federation.server_halves == "shared"
        harvest = Harvest()
        self.client_half.load_state_dict(client_state)
        self.server_half.load_state_dict(server_state)
        self.client_half.train()
        self.server_half.train()
        server = self._server(lr)
        for position, index in enumerate(clients):
            if position and not in_turn:
                self.client_half.load_state_dict(client_state)
            if position and not shared_server:
                self.server_half.load_state_dict(server_state)
                server = self._server(lr)
            self._train_client(round_number, index, server, lr, harvest, tick)
            samples = len(self.parts[index])
            if not in_turn:
                harvest.client.add(self.client_half.state_dict(), weight=samples)
            if not shared_server:
                harvest.server.add(self.server_half.state_dict(), weight=samples)
        if in_turn:
            harvest.client.add(self.client_half.state_dict(), weight=1)
        if shared_server:
            harvest.server.add(self.server_half.state_dict(), weight=1)
        return harvest

    def _train_client(
        self,
        round_number: int,
        index: int,
        server: Server,
        lr: float,
        harvest: Harvest,
        tick: Tick | None,
    ) -> None:
        client = Client(
            index,
            self.client_half,
            self._optimizer(self.client_half, lr),
            precision=self.precision,
            observers=self.client_observers,
        )
        for at, images, labels in local_batches(
            self.settings,
            self.dataset,
            indices=self.parts[index],
            round_number=round_number,
            client=index,
            precision=self.precision,
            observers=self.client_observers,
        ):
            measured = self.injector is not None and is_measured(self.settings, at.step)
            if self.injector is not None:
                self.injector.statistics = measured
            if isinstance(server, LabelServer):
                step_with_labels(client, server, images, labels, at=at)
            else:
                step(client, server, images, labels, at=at)
            if measured and self.injector is not None and self.injector.last is not None:
                harvest.injections.append(self.injector.last)
            harvest.images += len(labels)
            if tick is not None:
                tick(len(labels))
        harvest.loss += check_loss(client, round_number)
        harvest.steps += client.steps

    def _server(self, lr: float) -> Server:
        honest = Server if self.settings.federation.mode == "usfl" else LabelServer
        make = self.server_factory or honest
        return make(
            self.server_half,
            self._optimizer(self.server_half, lr),
            shape=self.shape,
            precision=self.precision,
            injector=self.injector,
            observers=self.server_observers,
        )

    def _optimizer(self, half: nn.Module, lr: float) -> torch.optim.Optimizer:
        return fresh_optimizer(half, lr, settings=self.settings, precision=self.precision)
