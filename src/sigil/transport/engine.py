"""What all streams of a service share: the open round, the compute thread, the budget, and who is where."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sigil.transport.metrics import Metrics
from sigil.transport.rejections import Reason, Rejection
from sigil.transport.rounds import Round
from sigil.transport.scheduler import Budget, Scheduler
from sigil.transport.session import Session, Setup, Status

if TYPE_CHECKING:
    from sigil.transport.stream import Stream

log = logging.getLogger("sigil.transport")


class Engine:
    """What all streams of a service share."""

    def __init__(self, setup: Setup, metrics: Metrics) -> None:
        self.setup = setup
        self.limits = setup.limits
        self.metrics = metrics
        self.scheduler = Scheduler()
        self.budget = Budget(setup.limits.bytes_in_flight, changed=metrics.in_flight.set)
        self.round: Round | None = None
        self.streams: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[Any]] = set()

    @contextmanager
    def admitted(self, holder: str) -> Iterator[None]:
        """Count a stream of this certificate's holder, if there is room for one more."""
        if (
            self.streams.total() >= self.limits.streams
            or self.streams[holder] >= self.limits.streams_per_client
        ):
            raise Rejection(Reason.STREAMS, "There are too many streams; close some or come back later.")
        self.streams[holder] += 1
        try:
            yield
        finally:
            self.streams[holder] -= 1
            self.streams += Counter()  # forgets those without any

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start something that outlives the stream that began it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def release(self, session: Session) -> None:
        """Give back what a session's open step held of the budget."""
        amount, session.reserved = session.reserved, 0
        if amount:
            self.budget.release(amount)

    def expel(self, session: Session, reason: Reason) -> None:
        """End a client's round for good."""
        session.status, session.reason = Status.EXPELLED, reason
        self._clear(session)
        log.warning("client %d is out of round %d: %s", session.client, session.round, reason.value)

    def lose(self, session: Session) -> None:
        """Stop waiting for a client."""
        session.status = Status.LOST
        self._clear(session)
        log.warning("client %d did not finish round %d", session.client, session.round)

    def _clear(self, session: Session) -> None:
        session.restart()
        self.release(session)
        self.changed()

    def changed(self) -> None:
        """Tell whoever waits for the round."""
        if self.round is not None:
            self.round.changed.set()

    def leave(self, session: Session, stream: Stream, *, drop: bool) -> None:
        """A stream ended: its client may come back, to its step for a while and to its round for longer."""
        if session.stream is not stream:
            return
        session.stream = None
        self.metrics.clients.dec()
        if session.settled:
            self.changed()
            return
        session.status = Status.ABSENT
        if session.answers % 2 == 0 and not session.lock.locked():
            self.release(session)  # no step is open: what was on its way is gone
        patience = 0.0 if drop else max(0.0, self.limits.step_seconds - session.waited)
        session.left = asyncio.get_running_loop().time()
        session.timers = [self.spawn(self._drop(session, patience))]
        if self.limits.return_seconds is not None:
            session.timers.append(self.spawn(self._give_up(session, self.limits.return_seconds)))

    async def _drop(self, session: Session, seconds: float) -> None:
        await asyncio.sleep(seconds)
        async with session.lock:
            if session.stream is None and not session.settled:
                session.restart()
                self.release(session)

    async def _give_up(self, session: Session, seconds: float) -> None:
        await asyncio.sleep(seconds)
        async with session.lock:
            if session.stream is None and not session.settled:
                self.lose(session)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits for it sees it; nobody may be left to
