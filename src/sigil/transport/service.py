"""The split service: the owner's server halves behind one gRPC method with mutual TLS.

It runs in the owner's process, on a thread of its own, beside whatever directs the rounds::

    with SplitService(training, credentials=…) as service:
        tickets = service.open_round(1, server_state, lr=0.1, clients={0: fingerprint, 1: …})
        …                                   # hand each client its ticket; they connect and train
        outcome = service.wait_round(timeout=600, minimum=2)
        server_state = outcome.server_state()

The key is in the injector of this process and nowhere else: what leaves is logits and cut gradients.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import grpc

from sigil.errors import ConfigError, NetworkError
from sigil.federation.averaging import State
from sigil.federation.from_settings import Training
from sigil.federation.settings import Settings
from sigil.serving import ServerThread
from sigil.transport import wire
from sigil.transport.certificates import ServerCredentials, fingerprint
from sigil.transport.limits import Budget, Limits, Reason, Rejection
from sigil.transport.metrics import Metrics
from sigil.transport.rounds import OpenRound, RoundOutcome
from sigil.transport.session import Scheduler, ServedHalf, Status
from sigil.transport.stream import Stream
from sigil.transport.wire import Wire

log = logging.getLogger("sigil.transport")

Result = TypeVar("Result")

_CODES = {
    Reason.TICKET: grpc.StatusCode.UNAUTHENTICATED,
    Reason.CERTIFICATE: grpc.StatusCode.PERMISSION_DENIED,
    Reason.DEADLINE: grpc.StatusCode.DEADLINE_EXCEEDED,
    Reason.STREAMS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.STEPS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.RECONNECTS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.CLOSED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.SUPERSEDED: grpc.StatusCode.ABORTED,
    Reason.INTERNAL: grpc.StatusCode.INTERNAL,
}

_OPTIONS = [
    *wire.GRPC_OPTIONS,
    # Two services on one port would share its clients between them at random.
    ("grpc.so_reuseport", 0),
    # Pings find connections that ended without a word.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    # A connection that does not finish its handshake, or has no stream, is closed.
    ("grpc.server_handshake_timeout_ms", 20_000),
    ("grpc.max_connection_idle_ms", 300_000),
]


_MINUTE = 60.0
# A client that is held up waits this long for each refusal …
_PAUSE = 1.0
# … unless this many streams of all clients wait already: more would be a burden themselves.
_HELD = 256


class RefusalDelay:
    """Holds back the refusals of those who had more than `per_minute` of them in the last minute.

    A refused stream that waits for its answer still counts as open, so that a client which greets in a loop
    gets no more than its few streams in each pause, and the others their share of the server's time.
    """

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = max(1, int(per_minute))
        self._clock = clock
        self._refused: dict[str, deque[float]] = {}
        self._held = 0

    def spent(self, holder: str) -> bool:
        """Note a refusal to this holder of a certificate; true if it was one too many."""
        now = self._clock()
        times = self._refused.setdefault(holder, deque(maxlen=self._per_minute))
        spent = len(times) == self._per_minute and now - times[0] < _MINUTE
        times.append(now)
        return spent

    async def wait(self, holder: str) -> None:
        """Return when a refusal may be sent to this holder."""
        if not self.spent(holder) or self._held >= _HELD:
            return
        self._held += 1
        try:
            await asyncio.sleep(_PAUSE)
        finally:
            self._held -= 1


class SplitService(ServerThread):
    """A gRPC server that trains the server halves of all who hold a ticket.

    `address` is "host:port", port 0 for any free one; after
    :meth:`start`, :attr:`address` tells it. `wire` is the number format of activations and cut gradients:
    "float32" (as computed, equal bit for bit to a training in one process) or "bfloat16" (half the bytes).
    The training's server observers must be mergeable: each client's session gets copies of them, and those of
    the clients that finish are merged in order when the round ends.
    """

    def __init__(
        self,
        training: Training,
        *,
        credentials: ServerCredentials,
        address: str = "127.0.0.1:0",
        limits: Limits | None = None,
        metrics: Metrics | None = None,
        wire: Wire = "float32",
    ) -> None:
        super().__init__("sigil-service")
        _check_mode(training.settings)
        if not all(observer.mergeable for observer in training.server_observers):
            raise ConfigError(
                "An observer follows the clients one after another, but here they train at once."
            )
        self.metrics = metrics or Metrics()
        limits = limits or Limits()
        self._served = ServedHalf(
            training=training,
            limits=limits,
            wire=wire,
            metrics=self.metrics,
            budget=Budget(limits.bytes_in_flight, changed=self.metrics.in_flight.set),
            scheduler=Scheduler(),
        )
        _check_budget(self._served)
        self._credentials = credentials
        self._wanted = address
        self._address: str | None = None
        self._round: OpenRound | None = None
        self._streams: Counter[str] = Counter()
        self._delay = RefusalDelay(limits.refusals_per_minute)
        self._ready: Future[None] = Future()

    @property
    def address(self) -> str:
        """Where the service listens, "host:port"."""
        if self._address is None:
            raise NetworkError("The split service has no address before it is started.")
        return self._address

    @property
    def initial_state(self) -> State:
        """The server half before the first round, as the seed makes it."""
        half = self._served.training.halves.server
        return {name: value.detach().clone() for name, value in half.state_dict().items()}

    def start(self) -> Self:
        """Listen; returns when clients can connect."""
        super().start()
        self._ready.result()
        return self

    def __enter__(self) -> Self:
        return self.start()

    def open_round(
        self, number: int, server_state: State, *, lr: float, clients: Mapping[int, str]
    ) -> dict[int, str]:
        """Begin a round and return a ticket for each client: index → hexadecimal text.

        `clients` maps the index of each client that takes part to the fingerprint of its certificate. A
        round that is still open is abandoned.
        """
        if not clients:
            raise NetworkError("A round needs at least one client.")
        expected = self._served.training.settings.federation.clients
        if strangers := sorted(client for client in clients if not 0 <= client < expected):
            raise ConfigError(
                f"Client {strangers[0]} is none of the {expected} clients of the settings, from 0 on."
            )
        return self._call(self._open(number, server_state, lr, dict(clients)))

    def wait_round(self, *, timeout: float | None = None, minimum: int = 1) -> RoundOutcome:
        """Wait until every client of the round is done or given up, and close it.

        After `timeout` seconds (none: no limit) the round goes on without those that are not done. With
        fewer than `minimum` finished clients it is an error. How long a client that lost its connection is
        waited for is :attr:`Limits.return_seconds`.
        """
        outcome = self._call(self._wait(timeout))
        if len(outcome.finished) < minimum:
            raise NetworkError(
                f"Only {len(outcome.finished)} of {len(outcome.clients)} clients finished round "
                f"{outcome.round}, but at least {minimum} must; start again when more are there."
            )
        return outcome

    def progress(self) -> dict[int, tuple[Status, int]]:
        """Where every client of the open round stands, and how many images it has gone through.

        Nothing if none is open.
        """
        current = self._round
        return {} if current is None else {i: (s.status, s.images) for i, s in current.sessions.items()}

    def give_up(self, client: int) -> None:
        """Go on without a client of the open round that has not finished, whether it ever came or not."""
        self._call(self._give_up(client))

    async def _give_up(self, client: int) -> None:
        if self._round is not None:
            await self._round.sessions[client].end()

    async def _open(self, number: int, state: State, lr: float, clients: dict[int, str]) -> dict[int, str]:
        await self._close()
        state = {name: value.detach().clone() for name, value in state.items()}
        self._round = OpenRound(number, state, lr=lr, clients=clients, served=self._served)
        self.metrics.round.set(number)
        return self._round.issue()

    async def _wait(self, timeout: float | None) -> RoundOutcome:
        current = self._round
        if current is None:
            raise NetworkError("There is no open round to wait for; open one first.")
        await current.wait(timeout)
        await self._close()
        observers = self._served.training.server_observers
        for session in current.sessions.values():
            if session.status is Status.FINISHED:
                for observer, part in zip(observers, session.observers, strict=True):
                    observer.merge(part.collect())
        return current.outcome()

    async def _close(self) -> None:
        """Close the open round, if there is one, with all its streams."""
        current, self._round = self._round, None
        if current is not None:
            for session in current.sessions.values():
                await session.end()

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        if not self._thread.is_alive():
            work.close()
            raise NetworkError("The split service is not running; start it first.")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _serve(self) -> None:
        try:
            await self._listen()
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _listen(self) -> None:
        # Room to be told of one stream too many; what a connection opens beyond that waits at its own end.
        at_once = ("grpc.max_concurrent_streams", 2 * int(self._served.limits.streams_per_client) + 2)
        server = grpc.aio.server(options=[*_OPTIONS, at_once])
        handler = grpc.stream_stream_rpc_method_handler(self._stream)
        _, service, method = wire.METHOD.split("/")
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        mine = self._credentials
        secure = grpc.ssl_server_credentials(
            [(mine.key, mine.certificate)], root_certificates=mine.authority, require_client_auth=True
        )
        try:
            port = server.add_secure_port(self._wanted, secure)
        except RuntimeError:
            port = 0
        if port == 0:
            self._ready.set_exception(
                NetworkError(f"The service cannot listen on {self._wanted}; choose another address or port.")
            )
            return
        await server.start()
        self._address = f"{self._wanted.rpartition(':')[0]}:{port}"
        self._ready.set_result(None)
        await self._stopping.wait()
        await server.stop(grace=0.2)
        # What gRPC has under way must end by itself: cancelled with the loop, it would print tracebacks.
        if left := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(left, timeout=1.0)
        self._served.scheduler.close()

    async def _stream(self, requests: object, context: Any) -> None:
        """One stream; nothing but a reason and a sentence of ours ever goes out with its end."""
        (certificate,) = context.auth_context()["x509_pem_cert"]
        holder = fingerprint(certificate)
        try:
            # A client that does not even read why it was refused still has that stream open.
            with self._admitted(holder):
                stream = Stream(self._served, context, current=lambda: self._round, holder=holder)
                await self._answered(stream.run(), context, holder)
        except Rejection as rejection:
            await self._refuse(context, rejection, holder)

    @contextmanager
    def _admitted(self, holder: str) -> Iterator[None]:
        """Count a stream of this certificate's holder, if there is room for one more."""
        limits = self._served.limits
        if self._streams.total() >= limits.streams or self._streams[holder] >= limits.streams_per_client:
            raise Rejection(Reason.STREAMS, "There are too many streams; close some or come back later.")
        self._streams[holder] += 1
        try:
            yield
        finally:
            self._streams[holder] -= 1
            self._streams += Counter()  # forgets those without any

    async def _answered(self, work: Coroutine[Any, Any, None], context: Any, holder: str) -> None:
        try:
            await work
        except asyncio.CancelledError:
            return  # the connection is gone, or the service stops: there is nobody to tell
        except Rejection as rejection:
            await self._refuse(context, rejection, holder)
        except Exception as error:
            log.error("a stream failed: %s", type(error).__name__, exc_info=error)
            sentence = "The server failed; ask its owner to look at the log."
            await self._refuse(context, Rejection(Reason.INTERNAL, sentence), holder)

    async def _refuse(self, context: Any, rejection: Rejection, holder: str) -> None:
        log.debug("refused a stream: %s: %s", rejection.reason.value, rejection.sentence)
        self.metrics.refused(rejection.reason)
        try:
            await self._delay.wait(holder)
        except asyncio.CancelledError:
            return  # gone before it was told
        code = _CODES.get(rejection.reason, grpc.StatusCode.INVALID_ARGUMENT)
        await context.abort(code, rejection.sentence, ((wire.REASON_KEY, rejection.reason.value),))


def _check_mode(settings: Settings) -> None:
    federation = settings.federation
    if federation.mode != "usfl" or federation.server_halves != "per-client":
        raise ConfigError(
            "Across machines clients train at once and keep their labels, so federation.mode must be usfl "
            "and federation.server_halves per-client."
        )


def _check_budget(served: ServedHalf) -> None:
    largest = 2 * served.samples_per_batch * math.prod(served.shape) * 4
    if largest > served.limits.bytes_in_flight:
        raise ConfigError(
            f"One step may need {largest} bytes, but the limit bytes_in_flight is "
            f"{served.limits.bytes_in_flight}; raise it or lower the batch size."
        )
