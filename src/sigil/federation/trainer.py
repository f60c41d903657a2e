"""One round of training: global states in, weighted averages out.

A :class:`RoundTrainer` does it in this process (:class:`LocalTrainer`, here), in several processes
(:mod:`sigil.federation.workers`) or with clients elsewhere (:mod:`sigil.transport.owner`). What one client
does in a round, :func:`train_client`, is the same for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sigil.errors import LossError, RepetitionError, TrainingError
from sigil.federation.averaging import Average, State, WeightedAverage, make_average
from sigil.federation.client import Client
from sigil.federation.from_settings import Training
from sigil.federation.server import LabelServer, ServerEnd
from sigil.federation.settings import Settings
from sigil.federation.step import step, step_with_labels
from sigil.imprint import Patterns, recipient
from sigil.injector import InjectionStatistics
from sigil.seeds import derive

Tick = Callable[[int], None]


@dataclass(frozen=True)
class RoundStart:
    """What a round begins with: its number, its learning rate and the global weights of both halves.

    With ``patterns`` every client gets its own copy of the client half (:mod:`sigil.federation.imprinting`).
    """

    number: int
    lr: float
    client: State
    server: State
    patterns: Patterns | None = None

    def given(self, client: int, half: State) -> State:
        """What a client gets in place of the half: its own copy of it, if there are copies."""
        return half if self.patterns is None else self.patterns.give(recipient(client), half)

    def taken(self, client: int, half: State, returned: State) -> State:
        """What a client made of the half, given what it made of its copy."""
        return returned if self.patterns is None else self.patterns.take(recipient(client), half, returned)


@dataclass
class RoundSums:
    """What some clients of a round came to: running averages and sums, ready to be merged with others'."""

    client: Average = field(default_factory=WeightedAverage)
    server: Average = field(default_factory=WeightedAverage)
    loss: float = 0.0
    steps: int = 0
    images: int = 0
    injections: list[InjectionStatistics] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    # Near-repeated activations by client, of those that sent any.
    repeated: dict[int, int] = field(default_factory=dict)
    # Why an update was left out, by client.
    left_out: dict[int, str] = field(default_factory=dict)

    @classmethod
    def begin(cls, settings: Settings, *, missing: Sequence[int] = ()) -> RoundSums:
        """Nothing yet, with the averages that the settings ask for."""
        kind, trim = settings.federation.average, settings.federation.trim
        client, server = (make_average(kind, trim=trim) for _ in range(2))
        return cls(client, server, missing=list(missing))

    def merge(self, other: RoundSums) -> None:
        """Add what other clients came to."""
        self.client.merge(other.client)
        self.server.merge(other.server)
        self.loss += other.loss
        self.steps += other.steps
        self.images += other.images
        self.injections += other.injections
        self.missing += other.missing
        self.repeated |= other.repeated
        self.left_out |= other.left_out


class RoundTrainer(Protocol):
    """Trains the clients of a federation, round by round, wherever they are."""

    def train(self, start: RoundStart, *, tick: Tick | None = None) -> RoundSums:
        """Train one round; `tick` is called with the number of images of each step as they are done."""

    def close(self) -> None:
        """Release processes and connections."""


@dataclass(frozen=True)
class LocalResult:
    """What one client did in one round, by its own count; `loss` is the sum over its steps."""

    images: int
    steps: int
    loss: float


def train_client(
    training: Training,
    index: int,
    server: ServerEnd | LabelServer,
    *,
    indices: npt.NDArray[np.int64],
    round_number: int,
    lr: float,
    tick: Tick | None = None,
) -> LocalResult:
    """Train the live client half for one round on the images `indices`, with the half behind `server`."""
    half = training.halves.client
    client = Client(
        index,
        half,
        training.fresh_optimizer(half, lr),
        precision=training.precision,
        observers=training.client_observers,
        agreed=training.loss,
    )
    images = 0
    for at, pictures, labels in training.local_batches(index, indices=indices, round_number=round_number):
        try:
            if isinstance(server, LabelServer):
                step_with_labels(client, server, pictures, labels, at=at)
            else:
                step(client, server, pictures, labels, at=at)
        except (LossError, RepetitionError) as error:
            # A training that diverged is nobody's attack.
            _check_loss(float(client.loss), index, round_number)
            refusal = f"The server refused client {index} in round {round_number}: {error}"
            raise TrainingError(refusal) from None
        images += len(labels)
        if tick is not None:
            tick(len(labels))
    loss = float(client.loss)
    _check_loss(loss, index, round_number)
    return LocalResult(images=images, steps=client.steps, loss=loss)


def _check_loss(loss: float, client: int, round_number: int) -> None:
    if not math.isfinite(loss):
        raise TrainingError(
            f"The loss of client {client} is {loss} in round {round_number}, so training stops here "
            "with the last good checkpoint kept; lower optimizer.lr or lengthen optimizer.warmup_rounds."
        )


class LocalTrainer:
    """Trains clients one after another in this process, on one live copy of the two halves.

    A client's round starts by loading the global weights into them and ends by adding the result to a
    running average. So memory does not grow with the number of clients, and a client's result depends on
    nothing but the global weights, its data and the seed.
    """

    def __init__(self, training: Training) -> None:
        self.training = training

    def train(
        self, start: RoundStart, *, tick: Tick | None = None, clients: Sequence[int] | None = None
    ) -> RoundSums:
        """Train all clients, or only these, each from the global weights (or in turn)."""
        training = self.training
        settings, halves = training.settings, training.halves
        in_turn = settings.federation.mode == "sl"
        sums = RoundSums.begin(settings)
        half = start.client
        halves.server.load_state_dict(start.server)
        halves.client.train()
        halves.server.train()
        optimizer = training.fresh_optimizer(halves.server, start.lr)
        for position, index in enumerate(self._in_order(start.number) if clients is None else clients):
            halves.client.load_state_dict(start.given(index, half))
            if position and not training.one_server_half:
                halves.server.load_state_dict(start.server)
                optimizer = training.fresh_optimizer(halves.server, start.lr)
            server = training.make_server(
                index,
                halves.server,
                optimizer,
                round_number=start.number,
                observers=training.server_observers,
            )
            result = train_client(
                training,
                index,
                server,
                indices=training.parts[index],
                round_number=start.number,
                lr=start.lr,
                tick=tick,
            )
            sums.images += result.images
            sums.steps += result.steps
            sums.loss += result.loss
            sums.injections += server.injections
            if server.repetitions is not None and server.repetitions.total:
                sums.repeated[index] = server.repetitions.total
            samples = len(training.parts[index])
            state = start.taken(index, half, halves.client.state_dict())
            if in_turn:
                half = state
            else:
                sums.client.add(state, weight=samples)
            if not training.one_server_half:
                sums.server.add(halves.server.state_dict(), weight=samples)
        if in_turn:
            sums.client.add(half, weight=1)
        if training.one_server_half:
            sums.server.add(halves.server.state_dict(), weight=1)
        return sums

    def close(self) -> None:
        """Nothing is open."""

    def _in_order(self, number: int) -> list[int]:
        """All clients, in the order in which they train."""
        count = len(self.training.parts)
        if not self.training.one_server_half:
            return list(range(count))
        # A later client trains on a server that has seen more: take turns at it.
        order = np.random.default_rng(derive(self.training.settings.run.seed, "order", number))
        return [int(index) for index in order.permutation(count)]
