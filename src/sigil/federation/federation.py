"""The federation: global halves, clients with their shares of the data, and one round after another."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from sigil.data import Dataset
from sigil.errors import ConfigError
from sigil.federation import behaviour
from sigil.federation import precision as precisions
from sigil.federation.averaging import State
from sigil.federation.evaluation import accuracy
from sigil.federation.from_settings import build_halves, client_parts, make_injector, scheduled_rate
from sigil.federation.observers import ClientObserver, ServerObserver
from sigil.federation.seat import Harvest, Seat, Tick
from sigil.federation.seeds import derive
from sigil.federation.server import Server
from sigil.federation.settings import Settings
from sigil.federation.workers import Workers, can_spread, fastest_workers
from sigil.injector import InjectionStatistics
from sigil.key import Key
from sigil.verification import Report, verify


@dataclass(frozen=True)
class RoundResult:
    """What a round came to: means over its steps, and the clients that did not finish it."""

    round: int
    lr: float
    loss: float
    images: int
    seconds: float
    injection: dict[str, float]
    missing: tuple[int, ...] = ()


class Federation:
    """U-SFL, SFL or SL training in one machine: make it, then call :meth:`run_round` as often as wanted.

    `server_factory`, called like :class:`Server`, puts another server in its place: a malicious one, as a
    control for detectors. Observers may be added to ``client_observers`` and ``server_observers`` until the
    first round.

    Everything that a round does follows from the global weights, the settings and the round's number; so a
    federation that is given the weights after round r continues exactly as if it had never stopped.
    """

    def __init__(
        self,
        settings: Settings,
        dataset: Dataset,
        *,
        key: Key | None = None,
        client_observers: Sequence[ClientObserver] = (),
        server_observers: Sequence[ServerObserver] = (),
        server_factory: Callable[..., Server] | None = None,
    ) -> None:
        self.settings = settings
        self.dataset = dataset
        self.precision = precisions.choose(settings.run.device, settings.run.precision)
        self.client_observers = [*behaviour.observers(settings), *client_observers]
        self.server_observers = list(server_observers)
        halves = build_halves(settings, classes=dataset.classes, input_shape=dataset.shape)
        self.cut, self.shape = halves.cut, halves.shape
        self.key = key
        self.injector = make_injector(settings, key, halves=halves)
        self.parts = client_parts(settings, dataset)
        self.seat = Seat(
            halves.client,
            halves.server,
            settings=settings,
            dataset=dataset,
            parts=self.parts,
            shape=self.shape,
            precision=self.precision,
            injector=self.injector,
            client_observers=self.client_observers,
            server_observers=self.server_observers,
            server_factory=server_factory,
        )
        self.round = 0
        self.client_state: State = _copy(self.seat.client_half.state_dict())
        self.server_state: State = _copy(self.seat.server_half.state_dict())
        self.workers: Workers | None = None

    @property
    def images_per_round(self) -> int:
        """Training images that a round goes through."""
        return sum(map(len, self.parts)) * self.settings.federation.local_epochs

    def run_round(self, tick: Tick | None = None) -> RoundResult:
        """Train one round: every client from the global weights, then the weighted average."""
        number = self.round + 1
        began = time.perf_counter()
        lr = self._learning_rate(number)
        for observer in (*self.client_observers, *self.server_observers):
            observer.on_round_start(number)
        with torch.random.fork_rng(devices=[]):
            harvest = self._train(number, lr, tick)
        self.client_state = harvest.client.result()
        self.server_state = harvest.server.result()
        self.round = number
        for observer in (*self.client_observers, *self.server_observers):
            observer.on_round_end(number)
        return RoundResult(
            round=number,
            lr=lr,
            loss=harvest.loss / max(1, harvest.steps),
            images=harvest.images,
            seconds=time.perf_counter() - began,
            injection=injection_means(harvest.injections),
            missing=tuple(harvest.missing),
        )

    def accuracy(self) -> float:
        """Test accuracy of the global halves."""
        client_half, server_half = self.halves()
        return accuracy(client_half, server_half, self.dataset, precision=self.precision)

    def verify(self, key: Key, *, probes: int = 256, seed: int = 0) -> Report:
        """Verify the global client half against a key."""
        client_half, _ = self.halves()
        return verify(client_half, key, input_shape=self.dataset.shape, probes=probes, seed=seed)

    def load(self, round_number: int, client_state: State, server_state: State) -> None:
        """Go on from the weights at the end of a round."""
        place = self.precision.device
        self.round = round_number
        self.client_state = {name: value.to(place) for name, value in client_state.items()}
        self.server_state = {name: value.to(place) for name, value in server_state.items()}

    def halves(self) -> tuple[nn.Module, nn.Module]:
        """The live client half and server half, holding the global weights."""
        self.seat.client_half.load_state_dict(self.client_state)
        self.seat.server_half.load_state_dict(self.server_state)
        return self.seat.client_half, self.seat.server_half

    def close(self) -> None:
        """End the worker processes and close the observers' files."""
        if self.workers is not None:
            self.workers.close()
        for observer in (*self.client_observers, *self.server_observers):
            observer.close()

    def _train(self, number: int, lr: float, tick: Tick | None) -> Harvest:
        clients: list[int] = list(range(len(self.parts)))
        if self.settings.federation.mode == "sl" or self.settings.federation.server_halves == "shared":
            # Who comes later trains on a server that has seen more: take turns at it.
            order = np.random.default_rng(derive(self.settings.run.seed, "order", number))
            clients = [int(index) for index in order.permutation(len(self.parts))]
        if self.workers is None:
            self.workers = self._start_workers()
        if self.workers is not None:
            return self.workers.train(number, clients, self.client_state, self.server_state, lr, tick)
        return self.seat.train(number, clients, self.client_state, self.server_state, lr=lr, tick=tick)

    def _learning_rate(self, number: int) -> float:
        return scheduled_rate(self.settings, number)

    def _start_workers(self) -> Workers | None:
        count = self.settings.run.workers or fastest_workers(self)
        if count == 1:
            return None
        federation = self.settings.federation
        if federation.mode == "sl" or federation.server_halves == "shared":
            raise ConfigError(
                "Clients that share one server half take turns at it, so run.workers must be 1 (or 0) here."
            )
        if not can_spread(self):
            raise ConfigError(
                "An observer or a server of its own kind follows the clients in order, so run.workers must "
                "be 1 (or 0) here."
            )
        return Workers(count, self)


def _copy(state: State) -> State:
    return {name: value.detach().clone() for name, value in state.items()}


def injection_means(rows: Sequence[InjectionStatistics]) -> dict[str, float]:
    """Means of the recorded injections of a round, by name; nothing if none was recorded."""
    if not rows:
        return {}
    names = ("main_norm", "watermark_norm", "injected_norm", "factor", "cosine", "wsr")
    means = {name: float(np.mean([getattr(row, name) for row in rows])) for name in names}
    means["cosine_abs"] = float(np.mean([abs(row.cosine) for row in rows]))
    return means
