"""The federation: global halves, clients with their shares of the data, and one round after another."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn

from sigil.data import Dataset, Inputs
from sigil.data.inputs import LEAST_INPUTS
from sigil.federation.averaging import State
from sigil.federation.from_settings import Training, scheduled_rate
from sigil.federation.imprinting import Imprinting
from sigil.federation.measuring import accuracy
from sigil.federation.observers import ClientObserver, ServerObserver
from sigil.federation.server import Server
from sigil.federation.settings import Settings
from sigil.federation.trainer import RoundStart, RoundTrainer, Tick
from sigil.federation.workers import choose_trainer
from sigil.injector import InjectionStatistics
from sigil.keys.key import Key
from sigil.models import Model
from sigil.verdict.report import Reading
from sigil.verdict.verification import read_mark

log = logging.getLogger("sigil.federation")


@dataclass(frozen=True)
class RoundResult:
    """What a round came to: means over its steps, and the clients that did not finish it.

    `repeated` tells how many near-repeated activations a client sent, of those that sent any; `left_out` why
    a client's update was not averaged.
    """

    round: int
    lr: float
    loss: float
    images: int
    seconds: float
    injection: dict[str, float]
    missing: tuple[int, ...] = ()
    repeated: dict[int, int] = field(default_factory=dict)
    left_out: dict[int, str] = field(default_factory=dict)


class Federation:
    """U-SFL, SFL or SL training: make it, then call :meth:`run_round` as often as wanted.

    `trainer` makes what trains the clients of a round, given the whole :class:`Training`; without one they
    train on this machine, in this process or in several, whichever is faster.

    `server_factory`, called like :class:`Server`, puts another server in its place: a malicious one, as a
    control for detectors. `registers` is the folder in which ``federation.imprint`` keeps what names clients
    by their copies. Observers may be added to ``client_observers`` and ``server_observers`` until the
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
        trainer: Callable[[Training], RoundTrainer] | None = None,
        registers: Path | None = None,
    ) -> None:
        self.training = Training.prepare(settings, dataset, key=key, server_factory=server_factory)
        self._trainer = None if trainer is None else trainer(self.training)
        self.client_observers = self.training.client_observers
        self.server_observers = self.training.server_observers
        self.client_observers += [*_asked_of_clients(settings), *client_observers]
        self.server_observers += server_observers
        self.imprinting: Imprinting | None = None
        if settings.federation.imprint:
            half = self.training.halves.client
            assert isinstance(half, Model)
            clients = settings.federation.clients
            self.imprinting = Imprinting(key, half, clients=clients, folder=registers)
        self.settings = settings
        self.dataset = dataset
        self.precision = self.training.precision
        self.cut, self.shape = self.training.halves.cut, self.training.halves.shape
        self.parts = self.training.parts
        self.round = 0
        self.client_state: State = _copy(self.training.halves.client.state_dict())
        self.server_state: State = _copy(self.training.halves.server.state_dict())

    @property
    def images_per_round(self) -> int:
        """Training images that a round goes through."""
        return self.training.images_per_round

    def run_round(self, tick: Tick | None = None) -> RoundResult:
        """Train one round: every client from the global weights, then the weighted average."""
        number = self.round + 1
        began = time.perf_counter()
        lr = scheduled_rate(self.settings, number)
        if self._trainer is None:  # only now are all observers known
            self._trainer = choose_trainer(self.training)
        for observer in (*self.client_observers, *self.server_observers):
            observer.on_round_start(number)
        patterns = None if self.imprinting is None else self.imprinting.begin(number, self.client_state)
        with torch.random.fork_rng(devices=[]):
            start = RoundStart(number, lr, self.client_state, self.server_state, patterns)
            sums = self._trainer.train(start, tick=tick)
        self.client_state = sums.client.result()
        self.server_state = sums.server.result()
        self.round = number
        for client, count in sorted(sums.repeated.items()):
            what = "activation" if count == 1 else "activations"
            log.info("client %d repeated %d %s in round %d", client, count, what, number)
        for observer in (*self.client_observers, *self.server_observers):
            observer.on_round_end(number)
        return RoundResult(
            round=number,
            lr=lr,
            loss=sums.loss / max(1, sums.steps),
            images=sums.images,
            seconds=time.perf_counter() - began,
            injection=injection_means(sums.injections),
            missing=tuple(sums.missing),
            repeated=dict(sorted(sums.repeated.items())),
            left_out=dict(sorted(sums.left_out.items())),
        )

    def accuracy(self) -> float:
        """Test accuracy of the global halves."""
        client_half, server_half = self.halves()
        return accuracy(client_half, server_half, self.dataset, precision=self.precision)

    def read_mark(self, key: Key, *, probes: int = 256) -> tuple[Reading, ...]:
        """Read a key's mark in the global client half: on noise, and on test images if there are enough."""
        client_half, _ = self.halves()
        test = self.dataset.test.images
        moments = (self.dataset.mean, self.dataset.std)
        return read_mark(
            client_half,
            key,
            Inputs(test, normalisation=moments, is_data_set=True) if len(test) >= LEAST_INPUTS else None,
            input_shape=self.dataset.shape,
            probes=probes,
        )

    def load(self, round_number: int, client_state: State, server_state: State) -> None:
        """Go on from the weights at the end of a round."""
        device = self.precision.device
        self.round = round_number
        self.client_state = {name: value.to(device) for name, value in client_state.items()}
        self.server_state = {name: value.to(device) for name, value in server_state.items()}

    def halves(self) -> tuple[nn.Module, nn.Module]:
        """The live client half and server half, holding the global weights."""
        halves = self.training.halves
        halves.client.load_state_dict(self.client_state)
        halves.server.load_state_dict(self.server_state)
        return halves.client, halves.server

    def close(self) -> None:
        """Release what the trainer holds and close the observers' files."""
        if self._trainer is not None:
            self._trainer.close()
        for observer in (*self.client_observers, *self.server_observers):
            observer.close()


def _asked_of_clients(settings: Settings) -> list[ClientObserver]:
    """The client observers that `settings.behaviour` asks for."""
    behaviour = settings.behaviour
    observers: list[ClientObserver] = []
    # Both are built on this package, so that they are imported only where they are asked for.
    if behaviour.mark != "none":
        from sigil.baselines import Backdoor, ParameterMark

        kind = Backdoor if behaviour.mark == "backdoor" else ParameterMark
        observers.append(kind.from_settings(settings))
    if behaviour.noise_snr is not None:
        from sigil.attacks.noise import NoiseInjection

        observers.append(NoiseInjection.from_settings(settings))
    return observers


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
