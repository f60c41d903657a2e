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
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from sigil.errors import LossError, RepetitionError
from sigil.federation.averaging import State
from sigil.federation.from_settings import Training
from sigil.federation.messages import Activation, LogitGradient
from sigil.federation.observers import ServerObserver
from sigil.federation.precision import Precision
from sigil.federation.server import Server
from sigil.injector import InjectionStatistics
from sigil.transport.limits import Budget, Limits, Reason, Rejection
from sigil.transport.metrics import Metrics
from sigil.transport.wire import Header, Kind, Wire, agreed_formats, check_finite

log = logging.getLogger("sigil.transport")

Result = TypeVar("Result")


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


class Scheduler:
    """The one compute thread of all server halves: torch spreads each operation over the cores by itself.

    Every client has at most one step under way and waits for its turn, first come, first served; so between
    two turns of one client every other client that is ready gets one.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sigil-compute")

    async def run(self, work: Callable[[], Result]) -> Result:
        """Do this when all that came before is done."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        """Finish what is under way and take no more."""
        self._thread.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class ServedHalf:
    """The server half that a service offers, and what all its sessions share; each trains a copy of it."""

    training: Training
    limits: Limits
    wire: Wire
    metrics: Metrics
    budget: Budget
    scheduler: Scheduler

    @property
    def precision(self) -> Precision:
        return self.training.precision

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample at the cut."""
        return self.training.halves.shape

    @property
    def classes(self) -> int:
        return self.training.dataset.classes

    @property
    def samples_per_batch(self) -> int:
        # A last batch of one sample is joined to the one before it.
        return self.limits.samples_per_batch or self.training.settings.federation.batch_size + 1


class OpenStream(Protocol):
    """The connection of a client that is there."""

    def close(self, reason: Reason) -> None: ...


class Session:
    """One client's part of one round, through all its connections; `changed` is called when it is settled."""

    def __init__(
        self,
        client: int,
        *,
        round_number: int,
        state: State,
        lr: float,
        served: ServedHalf,
        changed: Callable[[], object] = lambda: None,
    ) -> None:
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
        self.stream: OpenStream | None = None
        self._timers: list[asyncio.Task[None]] = []
        self._deadline: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._state, self._lr, self._served, self._changed = state, lr, served, changed
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
    def repeated(self) -> int:
        """How many near-repeated activations this client has sent."""
        repetitions = None if self._server is None else self._server.repetitions
        return 0 if repetitions is None else repetitions.total

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

    def attach(self, stream: OpenStream, *, answers: int) -> None:
        """Go on with a client that connected and has this many answers; it supersedes its last stream."""
        metrics, limits = self._served.metrics, self._served.limits
        if self.status in (Status.EXPELLED, Status.LOST):
            raise Rejection(Reason.CLOSED, f"Round {self.round} is over for this client.")
        if self.reconnects >= limits.reconnects:
            if self.stream is None:
                self.expel(Reason.RECONNECTS)
            raise Rejection(Reason.RECONNECTS, "This client came back too often in this round.")
        if self.answers and answers and answers not in (self.answers - 1, self.answers):
            raise Rejection(Reason.ORDER, f"The client has {answers} answers, but {self.answers} were given.")
        self._stop_timers()
        if self.stream is not None:
            self.stream.close(Reason.SUPERSEDED)
            metrics.training.dec()
        elif self.reconnects >= 0:
            self.waited += asyncio.get_running_loop().time() - self.left
        self.reconnects += 1
        if self.reconnects:
            metrics.reconnects.inc()
        elif limits.round_seconds is not None:
            self._deadline = self.spawn(self._expire(limits.round_seconds))
        if not answers or not self.answers:
            self.restart()
            self.release()
            self.waited = 0.0
        if self.status is not Status.FINISHED or not answers:
            self.status = Status.CONNECTED
        self.stream = stream
        metrics.training.inc()

    def leave(self, stream: OpenStream, *, drop: bool) -> None:
        """A stream ended: its client may come back, to its step for a while and to its round for longer."""
        if self.stream is not stream:
            return
        limits = self._served.limits
        self.stream = None
        self._served.metrics.training.dec()
        if self.settled:
            self._changed()
            return
        self.status = Status.ABSENT
        if self.answers % 2 == 0 and not self.lock.locked():
            self.release()  # no step is open: what was on its way is gone
        patience = 0.0 if drop else max(0.0, limits.step_seconds - self.waited)
        self.left = asyncio.get_running_loop().time()
        self._timers = [self.spawn(self._drop_step(patience))]
        if limits.return_seconds is not None:
            self._timers.append(self.spawn(self._give_up(limits.return_seconds)))

    async def end(self) -> None:
        """Wait no longer for the client."""
        self._stop_timers()
        if self._deadline is not None:
            self._deadline.cancel()
        await self._part(Reason.CLOSED)

    def expel(self, reason: Reason) -> None:
        """End the client's round for good."""
        self.status, self.reason = Status.EXPELLED, reason
        self._clear()
        log.warning("client %d is out of round %d: %s", self.client, self.round, reason.value)

    def release(self) -> None:
        """Give back what the open step held of the budget."""
        amount, self.reserved = self.reserved, 0
        if amount:
            self._served.budget.release(amount)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start something that outlives the stream that began it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whatever waits for it sees it; nothing may be left to

    def _stop_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()

    def _lose(self) -> None:
        self.status = Status.LOST
        self._clear()
        log.warning("client %d did not finish round %d", self.client, self.round)

    def _clear(self) -> None:
        self.restart()
        self.release()
        self._changed()

    async def _expire(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._stop_timers()
        await self._part(Reason.DEADLINE)

    async def _part(self, reason: Reason) -> None:
        """Go on without the client, unless it is done."""
        async with self.lock:
            if self.settled:
                return  # its stream is ending by itself
            if self.stream is not None:
                self.stream.close(reason)
            self._lose()

    async def _drop_step(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        async with self.lock:
            if self.stream is None and not self.settled:
                self.restart()
                self.release()

    async def _give_up(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        async with self.lock:
            if self.stream is None and not self.settled:
                self._lose()

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
        served, limits = self._served, self._served.limits
        if wanted is Kind.ACTIVATION:
            if header.dtype not in agreed_formats(served.wire):
                raise Rejection(Reason.DTYPE, f"Activations travel as {served.wire} here.")
            samples = header.shape[0]
            if header.shape[1:] != served.shape or not 2 <= samples <= served.samples_per_batch:
                raise Rejection(
                    Reason.SHAPE,
                    f"An activation here is 2 to {served.samples_per_batch} samples of {served.shape}, "
                    f"not {header.shape}.",
                )
            if self.steps >= limits.steps_per_round or self.images + samples > limits.samples_per_round:
                raise Rejection(Reason.STEPS, "The round has no room for another step of this client.")
        else:
            if header.dtype is not torch.float32:
                raise Rejection(Reason.DTYPE, "Logit gradients travel as float32.")
            if header.shape != (self._batch, served.classes):
                raise Rejection(
                    Reason.SHAPE,
                    f"The logit gradient must be {(self._batch, served.classes)}, not {header.shape}.",
                )
        if self.bytes + header.size > limits.bytes_per_round:
            raise Rejection(Reason.STEPS, "This client has sent all the bytes that a round allows.")

    def forward(self, values: Tensor) -> Tensor:
        """Activation, all of it finite, to logits; on the compute thread."""
        before = self.repeated
        try:
            logits = self._live().forward(Activation(values.to(self._served.precision.device))).values
        except RepetitionError as error:
            raise Rejection(Reason.REPEATED, str(error)) from None
        finally:
            self._served.metrics.repeated.inc(self.repeated - before)
        self._batch = len(values)
        return logits.float().cpu()

    def backward(self, values: Tensor) -> Tensor:
        """Logit gradient, all of it finite, to cut gradient; on the compute thread."""
        try:
            final = self._live().backward(LogitGradient(values.to(self._served.precision.device))).values
        except LossError as error:
            raise Rejection(Reason.LOSS, str(error)) from None
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
            training = self._served.training
            half = copy.deepcopy(training.halves.server)
            half.load_state_dict(self._state)
            half.train()
            self.observers = [copy.deepcopy(observer) for observer in training.server_observers]
            for observer in self.observers:
                observer.on_round_start(self.round)
            optimizer = training.fresh_optimizer(half, self._lr)
            self._server = training.make_server(
                self.client, half, optimizer, round_number=self.round, observers=self.observers
            )
        return self._server
