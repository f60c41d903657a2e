"""The federation: global halves, clients with their shares of the data, and one round after another."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sigil.data import Dataset, Inputs, evaluate_batches
from sigil.errors import reason
from sigil.federation.averaging import State
from sigil.federation.from_settings import Training, scheduled_rate
from sigil.federation.imprinting import Imprinting
from sigil.federation.observers import ClientObserver, Observer, ServerObserver
from sigil.federation.precision import Precision
from sigil.federation.server import Server
from sigil.federation.settings import Settings
from sigil.federation.trainer import RoundStart, RoundTrainer, Tick
from sigil.federation.workers import choose_trainer
from sigil.injector import InjectionStatistics
from sigil.keys.key import Key
from sigil.models import Model
from sigil.verdict import choices
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
    train on this machine, in this process or in several, whichever is faster. `server_factory` puts another
    server in the honest one's place, such as a malicious one, as a control for detectors. `registers` is the
    folder in which ``federation.imprint`` keeps what names clients by their copies.

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
        self.round = 0
        self.client_state, self.server_state = (
            {name: value.detach().clone() for name, value in half.state_dict().items()}
            for half in (self.training.halves.client, self.training.halves.server)
        )

    @property
    def observers(self) -> list[Observer]:
        """All that look on, those of the clients first."""
        return [*self.client_observers, *self.server_observers]

    def run_round(self, tick: Tick | None = None) -> RoundResult:
        """Train one round: every client from the global weights, then the weighted average."""
        number = self.round + 1
        began = time.perf_counter()
        lr = scheduled_rate(self.settings, number)
        if self._trainer is None:  # only now are all observers known
            self._trainer = choose_trainer(self.training)
        for observer in self.observers:
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
        for observer in self.observers:
            observer.on_round_end(number)
        return RoundResult(
            round=number,
            lr=lr,
            loss=sums.loss / max(1, sums.steps),
            images=sums.images,
            seconds=time.perf_counter() - began,
            injection=_means(sums.injections),
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
        inputs = Inputs.of_test(self.dataset)
        return read_mark(self.halves()[0], key, inputs, input_shape=self.dataset.shape, probes=probes)

    def measure(self, result: RoundResult) -> dict[str, Any]:
        """One line of ``metrics.jsonl``."""
        settings = self.settings
        row: dict[str, Any] = {
            "round": result.round,
            "lr": result.lr,
            "loss": result.loss,
            "images": result.images,
            "seconds": round(result.seconds, 3),
            "images_per_second": round(result.images / result.seconds, 1),
            **{f"injection_{name}": value for name, value in result.injection.items()},
        }
        if self.imprinting is not None:
            row["imprint"] = self.imprinting.block
        if result.repeated:
            row["repeated_activations"] = sum(result.repeated.values())
            row["repeating_clients"] = list(result.repeated)
        if result.missing:
            row["missing"] = list(result.missing)
        if result.left_out:
            row["left_out"] = {str(client): why for client, why in result.left_out.items()}
        last = result.round == settings.federation.rounds
        if result.round % settings.run.evaluate_every == 0 or last:
            self._evaluate(row)
        return row

    def _evaluate(self, row: dict[str, Any]) -> None:
        """Add accuracy and the mark's readings to a round's metrics, or the sentence that says why not.

        A round whose weights are not finite, or whose client half answers so, is lost: it is marked as
        discarded, and training goes on from the weights before it.
        """
        key = self.training.key
        try:
            measured: dict[str, Any] = {"accuracy": self.accuracy()}
            sound = _finite(self.client_state) and _finite(self.server_state)
            if key is not None:
                readings = self.read_mark(key, probes=self.settings.watermark.probes)
                measured |= marked(readings, key, self.halves()[0])
                sound = sound and all(reading.readable for reading in readings)
        except Exception as error:  # whatever it is, hours of training are worth more than one measurement
            row["evaluation_failed"] = reason(error)
            log.warning("round %d could not be evaluated: %s", row["round"], row["evaluation_failed"])
            return
        if sound:
            row |= measured
            return
        row |= {"evaluation_failed": "the weights or what they answer are not finite", "discarded": True}
        log.warning("round %d is discarded: its weights or what they answer are not finite", row["round"])

    def load(self, round_number: int, client_state: State, server_state: State) -> None:
        """Go on from the weights at the end of a round."""
        self.round = round_number
        self.client_state, self.server_state = (
            {name: value.to(self.precision.device) for name, value in state.items()}
            for state in (client_state, server_state)
        )

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
        for observer in self.observers:
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


def _means(rows: Sequence[InjectionStatistics]) -> dict[str, float]:
    """Means of the recorded injections of a round, by name; nothing if none was recorded."""
    if not rows:
        return {}
    names = ("main_norm", "watermark_norm", "injected_norm", "factor", "cosine", "wsr")
    means = {name: float(np.mean([getattr(row, name) for row in rows])) for name in names}
    means["cosine_abs"] = float(np.mean([abs(row.cosine) for row in rows]))
    return means


@torch.inference_mode()
def accuracy(
    client_half: nn.Module,
    server_half: nn.Module,
    dataset: Dataset,
    *,
    precision: Precision,
) -> float:
    """Share of the test images that both halves together classify rightly, in evaluation mode."""
    client_half.eval()
    server_half.eval()
    right = torch.zeros((), dtype=torch.long, device=precision.device)
    for images, labels in evaluate_batches(dataset.test, dataset, batch_size=500, **precision.place):
        with precision.autocast():
            logits = server_half(client_half(images))
        right += (logits.argmax(1) == labels).sum()
    return float(right) / len(dataset.test)


def marked(readings: Sequence[Reading], key: Key, client_half: nn.Module) -> dict[str, float]:
    """What a round's readings of the mark come to: p before correction and corrected, and the rate of proof.

    The names without a kind are those of noise, the paper's probe. Inputs that the key does not state have
    neither a corrected p nor a rate of proof, because they do not count as long as nobody else chose them.
    """
    alpha = float(key.fields.alpha)
    price = choices.price(key, cuts=choices.count_cuts(client_half, key))
    numbers: dict[str, float] = {"alpha": alpha}
    for reading in readings:
        end = "" if reading.kind == "noise" else f"_{reading.kind}"
        numbers |= {f"wsr{end}": reading.wsr, f"log10_p_before{end}": reading.log10_p_before}
        if reading.source != "claimant":
            numbers[f"log10_p{end}"] = price.corrected(reading.log10_p_before)
            if math.isfinite(rate := reading.threshold(price.level(alpha))):
                numbers[f"wsr_level{end}"] = rate
    return numbers


def _finite(state: State) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in state.values() if value.is_floating_point())
