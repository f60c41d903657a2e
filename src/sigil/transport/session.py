"""A session: one client's round as the server sees it, with a server half of its own.

The protocol is a strict alternation, so one number says where a session stands: how many answers it gave.
An even number waits for an activation, an odd one for a logit gradient::

    answers      0           1                2           3
    expects      ACTIVATION  LOGIT_GRADIENT   ACTIVATION  LOGIT_GRADIENT
    of step      1           1                2           2

The last answer is kept until the next message, for a client whose connection broke before it arrived.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sigil.federation.averaging import State
from sigil.federation.from_settings import ServerMaker, fresh_optimizer
from sigil.federation.messages import Activation, LogitGradient
from sigil.federation.observers import ServerObserver
from sigil.federation.precision import Precision
from sigil.federation.server import Server
from sigil.injector import InjectionStatistics
from sigil.transport.limits import Limits
from sigil.transport.rejections import Reason, Rejection
from sigil.transport.wire import Header, Kind, Wire, check_finite

if TYPE_CHECKING:
    from sigil.transport.stream import Stream


class Status(Enum):
    """Where a client's round stands."""

    EXPECTED = "expected"
    """It has not connected yet."""
    CONNECTED = "connected"
    ABSENT = "absent"
    """Its connection ended; it may come back."""
    FINISHED = "finished"
    LOST = "lost"
    """It did not come, or did not come back in time."""
    EXPELLED = "expelled"
    """It broke the rules."""


@dataclass(frozen=True)
class Setup:
    """What all sessions of a service share; `half` is copied for each of them."""

    servers: ServerMaker
    half: nn.Module
    classes: int
    observers: Sequence[ServerObserver]
    limits: Limits
    wire: Wire

    @property
    def precision(self) -> Precision:
        return self.servers.precision

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample at the cut."""
        return self.servers.shape

    @property
    def samples_per_batch(self) -> int:
        # A last batch of one sample is joined to the one before it.
        return self.limits.samples_per_batch or self.servers.settings.federation.batch_size + 1


class Session:
    """One client's part of one round."""

    def __init__(self, client: int, *, round_number: int, state: State, lr: float, setup: Setup) -> None:
        self.client = client
        self.round = round_number
        self.status = Status.EXPECTED
        self.reason: Reason | None = None
        self.reconnects = -1  # the first connection is none
        self.bytes = 0
        self.waited = 0.0  # seconds for which the step under way has waited for the client
        self.reserved = 0  # bytes of the budget that the open step holds
        self.began = 0.0  # when the step under way did
        self.left = 0.0  # when the last stream ended
        self.lock = asyncio.Lock()
        self.stream: Stream | None = None
        self.timers: list[asyncio.Task[None]] = []
        self._state, self._lr, self._setup = state, lr, setup
        self.restart()

    def restart(self) -> None:
        """Forget everything since the start of the round."""
        self.answers = 0
        self.last: tuple[Kind, Tensor] | None = None
        self.images = 0
        self.observers: list[ServerObserver] = []
        self._batch = 0
        self._server: Server | None = None

    @property
    def step(self) -> int:
        """The step under way, or the next one; from 1."""
        return self.answers // 2 + 1

    @property
    def steps(self) -> int:
        """Steps done."""
        return self.answers // 2

    @property
    def injections(self) -> list[InjectionStatistics]:
        """What this client's server has recorded of its injections."""
        return [] if self._server is None else self._server.injections

    @property
    def settled(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.status in (Status.FINISHED, Status.LOST, Status.EXPELLED)

    @property
    def over(self) -> bool:
        """The same, and nothing is left to be said to the client either."""
        return self.settled and (self.status is not Status.FINISHED or self.stream is None)

    @property
    def server_state(self) -> State:
        """The server half of this client as it is now."""
        return self._state if self._server is None else self._server.half.state_dict()

    def expect(self, header: Header) -> None:
        """Reject any header but that of the next message, within all limits."""
        if (header.round, header.client) != (self.round, self.client):
            raise Rejection(
                Reason.IDENTITY, f"This stream is for client {self.client} in round {self.round} only."
            )
        wanted = Kind.LOGIT_GRADIENT if self.answers % 2 else Kind.ACTIVATION
        if self.status is Status.FINISHED or header.kind is not wanted or header.step != self.step:
            raise Rejection(
                Reason.ORDER,
                f"{header.kind.name} of step {header.step} came, not {wanted.name} of step {self.step}.",
            )
        setup, limits = self._setup, self._setup.limits
        if wanted is Kind.ACTIVATION:
            narrow = setup.wire == "bfloat16"
            if narrow and header.dtype is not torch.bfloat16:
                raise Rejection(Reason.DTYPE, "Activations travel as bfloat16 here.")
            samples = header.shape[0]
            if header.shape[1:] != setup.shape or not 2 <= samples <= setup.samples_per_batch:
                raise Rejection(
                    Reason.SHAPE,
                    f"An activation here is 2 to {setup.samples_per_batch} samples of {setup.shape}, "
                    f"not {header.shape}.",
                )
            if self.steps >= limits.steps_per_round or self.images + samples > limits.samples_per_round:
                raise Rejection(Reason.STEPS, "The round has no room for another step of this client.")
        else:
            if header.dtype is not torch.float32:
                raise Rejection(Reason.DTYPE, "Logit gradients travel as float32.")
            if header.shape != (self._batch, setup.classes):
                raise Rejection(
                    Reason.SHAPE,
                    f"The logit gradient must be {(self._batch, setup.classes)}, not {header.shape}.",
                )
        if self.bytes + header.size > limits.bytes_per_round:
            raise Rejection(Reason.STEPS, "This client has sent all the bytes that a round allows.")

    def forward(self, values: Tensor) -> Tensor:
        """Activation to logits; on the compute thread."""
        check_finite(values)
        logits = self._live().forward(Activation(values.to(self._setup.precision.device))).values
        self._batch = len(values)
        return logits.float().cpu()

    def backward(self, values: Tensor) -> Tensor:
        """Logit gradient to cut gradient; on the compute thread."""
        check_finite(values)
        final = self._live().backward(LogitGradient(values.to(self._setup.precision.device))).values
        self.images += self._batch
        return final.cpu()

    def finish(self) -> None:
        """Check what this client made of its server half; on the compute thread."""
        for value in self.server_state.values():
            if value.is_floating_point() and value.numel():
                check_finite(value)
        if self._server is not None:
            self._server.optimizer.zero_grad(set_to_none=True)
            self._server.optimizer.state.clear()

    def _live(self) -> Server:
        """This client's server, made from the round's weights at the first step."""
        if self._server is None:
            setup = self._setup
            half = copy.deepcopy(setup.half)
            half.load_state_dict(self._state)
            half.train()
            self.observers = [copy.deepcopy(observer) for observer in setup.observers]
            for observer in self.observers:
                observer.on_round_start(self.round)
            optimizer = fresh_optimizer(
                half, self._lr, settings=setup.servers.settings, precision=setup.precision
            )
            self._server = setup.servers.make(
                self.client, half, optimizer, round_number=self.round, observers=self.observers
            )
        return self._server
