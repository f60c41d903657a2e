"""One connection of one client: the protocol from HELLO to FINISHED, on the service's event loop.

::

    client                                   server
    HELLO     ticket, answers received  ──►  ticket, certificate, limits checked
              ◄──  WELCOME  answers given    (a lost answer follows at once)
    ACTIVATION      step s  ──►              header checked, budget, chunks, forward
              ◄──  LOGITS   step s
    LOGIT_GRADIENT  step s  ──►              header checked, chunks, backward, mark
              ◄──  CUT_GRADIENT  step s
    … next step …
    FINISH    steps         ──►              state checked
              ◄──  FINISHED
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Protocol

import grpc
import torch
from torch import Tensor

from sigil.transport import wire
from sigil.transport.limits import Reason, Rejection
from sigil.transport.rounds import OpenRound
from sigil.transport.session import ServedHalf, Session, Status
from sigil.transport.wire import Header, Kind

# Where a client broke no rule: it may come back.
_FORGIVEN = (Reason.DEADLINE, Reason.SUPERSEDED, Reason.TRUNCATED)
_ENDED = "The stream ended before the round did."
_ANSWERS = {Kind.ACTIVATION: Kind.LOGITS, Kind.LOGIT_GRADIENT: Kind.CUT_GRADIENT}


class Context(Protocol):
    """What a stream needs of gRPC."""

    async def read(self) -> Any: ...
    async def write(self, message: bytes) -> None: ...


class Stream:
    """The server's end of one stream, opened by the `holder` of the certificate with this fingerprint.

    `current` tells the round that is open now, if there is one.
    """

    def __init__(
        self,
        served: ServedHalf,
        context: Context,
        *,
        current: Callable[[], OpenRound | None],
        holder: str,
    ) -> None:
        self._served = served
        self._current = current
        self._context = context
        self._holder = holder
        self._task = asyncio.current_task()
        self._closing: Reason | None = None

    def close(self, reason: Reason) -> None:
        """End this stream from outside."""
        self._closing = reason
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        """Serve the stream to its end; raises :class:`Rejection` where the client is at fault."""
        try:
            await self._serve()
        except asyncio.CancelledError:
            if self._closing is None:
                raise
            raise Rejection(self._closing, "The server closed this stream.") from None

    async def _serve(self) -> None:
        header, session = await self._hello()
        drop = False
        try:
            await self._welcome(header, session)
            while await self._turn(session):
                pass
        except Exception as error:
            reason = error.reason if isinstance(error, Rejection) else Reason.INTERNAL
            drop = reason is not Reason.TRUNCATED
            if session.stream is self and reason not in _FORGIVEN:
                session.expel(reason)
            raise
        finally:
            session.leave(self, drop=drop)

    async def _hello(self) -> tuple[Header, Session]:
        try:
            async with asyncio.timeout(self._served.limits.hello_seconds):
                message = await self._read()
        except TimeoutError:
            raise Rejection(Reason.DEADLINE, "No HELLO came in time.") from None
        header, ticket = wire.read_hello(message)
        current = self._current()
        if current is None or current.number != header.round:
            raise Rejection(Reason.CLOSED, f"Round {header.round} is not open.")
        session = current.admit(ticket, header.client, self._holder)
        async with session.lock:
            if self._current() is not current:
                raise Rejection(Reason.CLOSED, f"Round {header.round} is not open.")
            session.attach(self, answers=header.step)
        return header, session

    async def _welcome(self, hello: Header, session: Session) -> None:
        answer = Header(Kind.WELCOME, session.round, session.client, session.answers)
        async with self._waiting(session):
            await self._write(answer.pack())
        if hello.step < session.answers and session.last is not None:
            await self._send(session, *session.last)

    async def _turn(self, session: Session) -> bool:
        """Take one message and answer it; false after the last one."""
        clock, stage = asyncio.get_running_loop().time, self._served.metrics.stage
        began = clock()
        async with self._waiting(session):
            header = wire.unpack(await self._read())
        stage("client", clock() - began)
        if header.kind is Kind.FINISH:
            await self._finish(session, header)
            return False
        session.expect(header)
        session.last = None
        if header.kind is Kind.ACTIVATION:
            session.release()
            # The activation and its gradient, at their full width whatever the wire's is.
            amount = 2 * math.prod(header.shape) * torch.float32.itemsize
            await self._served.budget.acquire(amount)
            session.reserved = amount
            session.waited = 0.0
            session.began = asyncio.get_running_loop().time()
        began = clock()
        assembly = wire.Assembly(header, widen=not self._served.precision.bfloat16, finite=True)
        async with self._waiting(session):
            while not assembly.complete:
                assembly.add(await self._read())
        session.bytes += header.size
        values = assembly.tensor()
        stage("receive", clock() - began)
        del assembly
        began = clock()
        task = session.spawn(self._compute(session, header.kind, values))
        del values
        answer = await asyncio.shield(task)
        stage("forward" if header.kind is Kind.ACTIVATION else "backward", clock() - began)
        if header.kind is Kind.LOGIT_GRADIENT:
            session.waited = 0.0
        began = clock()
        await self._send(session, _ANSWERS[header.kind], answer)
        stage("send", clock() - began)
        return True

    async def _compute(self, session: Session, kind: Kind, values: Tensor) -> Tensor:
        """One half of a step and its record, whole even if the stream breaks meanwhile."""
        async with session.lock:
            if session.stream is not self:
                raise Rejection(Reason.SUPERSEDED, "The server closed this stream.")
            work = session.forward if kind is Kind.ACTIVATION else session.backward
            try:
                answer: Tensor = await self._served.scheduler.run(partial(work, values))
            except Rejection:
                raise
            except Exception:
                session.restart()
                raise
            session.answers += 1
            session.last = (_ANSWERS[kind], answer)
            return answer

    async def _send(self, session: Session, kind: Kind, values: Tensor) -> None:
        step = session.step if kind is Kind.LOGITS else session.steps
        messages = wire.frame(
            kind,
            values,
            round_number=session.round,
            client=session.client,
            step=step,
            wire=self._served.wire,
        )
        async with self._waiting(session):
            for message in messages:
                await self._write(message)
        if kind is Kind.CUT_GRADIENT:
            session.release()
            metrics = self._served.metrics
            metrics.steps.inc()
            metrics.images.inc(len(values))
            metrics.step_seconds.observe(asyncio.get_running_loop().time() - session.began)

    async def _finish(self, session: Session, header: Header) -> None:
        if (header.round, header.client) != (session.round, session.client):
            raise Rejection(Reason.IDENTITY, f"This stream is for client {session.client} only.")
        if not session.answers or session.answers % 2 or header.step != session.steps:
            raise Rejection(
                Reason.ORDER, f"The client ends after {header.step} steps, but {session.steps} are done."
            )
        if session.status is not Status.FINISHED:
            async with session.lock:
                await self._served.scheduler.run(session.finish)
                session.status, session.last = Status.FINISHED, None
        session.release()
        async with self._waiting(session):
            await self._write(Header(Kind.FINISHED, session.round, session.client, session.steps).pack())

    @asynccontextmanager
    async def _waiting(self, session: Session) -> AsyncIterator[None]:
        """Time inside is on the client's account."""
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(self._served.limits.step_seconds - session.waited):
                yield
        except TimeoutError:
            raise Rejection(
                Reason.DEADLINE,
                f"The server waited {self._served.limits.step_seconds:g} seconds for this client.",
            ) from None
        finally:
            session.waited += clock() - began

    async def _read(self) -> bytes:
        with _broken_is_ended():
            message = await self._context.read()
        if message is grpc.aio.EOF:
            raise Rejection(Reason.TRUNCATED, _ENDED)
        self._served.metrics.received.inc(len(message))
        return bytes(message)

    async def _write(self, message: bytes) -> None:
        with _broken_is_ended():
            await self._context.write(message)
        self._served.metrics.sent.inc(len(message))


@contextmanager
def _broken_is_ended() -> Iterator[None]:
    """Whatever gRPC raises while it reads or writes, the connection is at fault."""
    try:
        yield
    except Exception:
        raise Rejection(Reason.TRUNCATED, _ENDED) from None
