"""A client's end: a round with its own half, its own data, and the server half at the end of a stream.

:class:`RemoteServer` has the same two methods as :class:`sigil.federation.Server`. A connection that breaks
is opened again, and the exchange goes on where it stopped: the client says how many answers it has, the
server how many it gave, and the one that is missing is sent again. Nothing is computed twice, so the result
is the same bit for bit. If the server has meanwhile given up the step, :class:`RoundRestarted` is raised,
and :func:`train_round` begins the round again from its first step.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, TypeVar

import grpc
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sigil.errors import NetworkError
from sigil.federation.averaging import State
from sigil.federation.from_settings import Training
from sigil.federation.messages import Activation, CutGradient, LogitGradient, Logits
from sigil.federation.precision import Precision
from sigil.federation.trainer import Tick, train_client
from sigil.transport import wire
from sigil.transport.certificates import SERVER_NAME, ClientCredentials
from sigil.transport.limits import Reason, Refused, Rejection
from sigil.transport.wire import TICKET_BYTES, Header, Kind, Wire

_MAX_RESTARTS: Final = 10
_OPTIONS: Final = [
    *wire.GRPC_OPTIONS,
    ("grpc.ssl_target_name_override", SERVER_NAME),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Each attempt to come back is ours, at our pace.
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
]
_LONGEST_PAUSE: Final = 2.0
# After these, coming back makes sense; after all others the server has made up its mind.
_PASSING: Final = (Reason.DEADLINE, Reason.STREAMS)

Result = TypeVar("Result")


@dataclass(frozen=True)
class RoundTask:
    """What the owner asks of a client: train these weights for one round, with this ticket."""

    round: int
    address: str
    ticket: str = field(repr=False)
    lr: float
    client_state: State = field(repr=False)
    wire: Wire = "float32"


@dataclass(frozen=True)
class RoundUpdate:
    """What a client has to show for a round: its half, and its own count of images, steps and mean loss."""

    client_state: State
    images: int
    steps: int
    loss: float


def train_round(
    task: RoundTask,
    training: Training,
    client: int,
    *,
    credentials: ClientCredentials,
    indices: npt.NDArray[np.int64] | None = None,
    patience: float = 60.0,
    tick: Tick | None = None,
) -> RoundUpdate:
    """Train one round of the client's own `training`, with the server half behind `task.address`.

    It trains on its part of the agreed partition, or on the images `indices` of its data.
    Broken connections are opened again for up to `patience` seconds each, and the round goes on where it
    was; if the server has given the step up meanwhile, the round is trained again from its start, before
    the eyes of the observers. Either way the result is the same bit for bit.
    :class:`sigil.transport.Refused` means that this ticket is good for nothing any more.
    """
    half, dataset = training.halves.client, training.dataset
    remote = RemoteServer(
        task.address,
        ticket=task.ticket,
        round_number=task.round,
        client=client,
        classes=dataset.classes,
        credentials=credentials,
        precision=training.precision,
        wire=task.wire,
        patience=patience,
    )

    def train() -> RoundUpdate:
        try:
            half.load_state_dict(task.client_state)
        except RuntimeError:
            raise NetworkError(
                f"The half that the owner sent does not fit images of {tuple(dataset.shape)} at the cut "
                f"{training.halves.cut}; use the release of Sigil and the kind of data that the owner names."
            ) from None
        half.train()
        result = train_client(
            training,
            client,
            remote,
            indices=training.parts[client] if indices is None else indices,
            round_number=task.round,
            lr=task.lr,
            tick=tick,
        )
        remote.finish()
        state = {name: value.detach().clone() for name, value in half.state_dict().items()}
        loss = result.loss / max(1, result.steps)
        return RoundUpdate(state, images=result.images, steps=result.steps, loss=loss)

    try:
        for _ in range(_MAX_RESTARTS):
            try:
                with torch.random.fork_rng(devices=[]):
                    return train()
            except RoundRestarted:
                continue
    finally:
        remote.close()
    raise NetworkError(
        f"Round {task.round} was begun {_MAX_RESTARTS} times and never ended; the connection to "
        f"{task.address} is too bad, or the server's step_seconds too short for this machine."
    )


class RoundRestarted(Exception):
    """The server holds nothing of this round any more; it must begin again from the first step."""


@dataclass(eq=False)
class RemoteServer:
    """The server half on somebody else's machine.

    `address` is "host:port" of the split service, `ticket` the text that the owner sent for this `client`
    in this round. A lost connection is tried again for `patience` seconds.
    """

    address: str
    _: KW_ONLY
    ticket: str = field(repr=False)
    round_number: int
    client: int
    classes: int
    credentials: ClientCredentials
    precision: Precision
    wire: Wire = "float32"
    patience: float = 60.0

    def __post_init__(self) -> None:
        self._ticket = parse_ticket(self.ticket)
        self._answers = 0
        self._shape: tuple[int, ...] = ()
        self._line: _Line | None = None
        self._told = False

    def forward(self, message: Activation) -> Logits:
        """Send the activation, (N, *shape at the cut), and receive the logits, (N, classes)."""
        self._shape = tuple(message.values.shape)
        return Logits(self._exchange(Kind.ACTIVATION, message.values, Kind.LOGITS))

    def backward(self, message: LogitGradient) -> CutGradient:
        """Send the gradient of the loss, (N, classes), and receive that at the cut, (N, *shape)."""
        values = self._exchange(Kind.LOGIT_GRADIENT, message.values, Kind.CUT_GRADIENT)
        return CutGradient(values)

    def finish(self) -> None:
        """Tell the server that the round is complete, and wait until it agrees."""
        try:
            self._persist(self._say_finish)
        except Refused as refusal:
            # The confirmation was lost and the round is over: the owner knows whether it counts.
            if not (self._told and refusal.reason is Reason.CLOSED):
                raise

    def close(self) -> None:
        """Hang up."""
        if self._line is not None:
            self._line.close()
            self._line = None

    def _exchange(self, kind: Kind, values: Tensor, answer: Kind) -> Tensor:
        received = self._persist(lambda line: self._say(line, kind, values, answer))
        self._answers += 1
        return received.to(self.precision.device)

    def _say(self, line: _Line, kind: Kind, values: Tensor, answer: Kind) -> Tensor:
        step = self._answers // 2 + 1
        if line.given == self._answers:  # else the server has it, and its answer is on the way
            messages = wire.frame(
                kind,
                values,
                round_number=self.round_number,
                client=self.client,
                step=step,
                wire=self.wire,
            )
            line.send(messages)
        header = wire.unpack(line.receive())
        shape = self._shape if answer is Kind.CUT_GRADIENT else (self._shape[0], self.classes)
        # The server is trusted with the training, but not with this machine's memory.
        if (header.kind, header.step, header.shape) != (answer, step, shape):
            raise Rejection(Reason.ORDER, "The server's answer does not belong to what was sent.")
        assembly = wire.Assembly(header, widen=not self.precision.bfloat16)
        while not assembly.complete:
            assembly.add(line.receive())
        line.given = self._answers + 1
        return assembly.tensor()

    def _say_finish(self, line: _Line) -> None:
        line.send(iter((Header(Kind.FINISH, self.round_number, self.client, self._answers // 2).pack(),)))
        self._told = True
        if wire.unpack(line.receive()).kind is not Kind.FINISHED:
            raise Rejection(Reason.ORDER, "The server did not confirm the end of the round.")

    def _persist(self, talk: Callable[[_Line], Result]) -> Result:
        """Do this on the stream, and on a new one as long as the old ones break."""
        last = time.monotonic() + self.patience
        pause = 0.1
        while True:
            try:
                if self._line is None:
                    self._connect()
                assert self._line is not None
                return talk(self._line)
            except grpc.RpcError as error:
                self.close()
                _raise_if_final(error)
                if time.monotonic() + pause > last:
                    raise NetworkError(
                        f"The server at {self.address} cannot be reached ({_details(error)}); check the "
                        "address and the certificates, and that the server runs."
                    ) from None
            except Rejection as rejection:
                self.close()
                raise NetworkError(
                    f"The server at {self.address} does not follow the protocol: {rejection.sentence}"
                ) from None
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _connect(self) -> None:
        line = _Line(self.address, self.credentials)
        self._line = line
        greeting = wire.hello(
            self._ticket, round_number=self.round_number, client=self.client, answers=self._answers
        )
        line.send(iter((greeting,)))
        welcome = wire.unpack(line.receive())
        if welcome.kind is not Kind.WELCOME or welcome.step not in (0, self._answers, self._answers + 1):
            raise Rejection(Reason.ORDER, "The server did not say where to go on.")
        line.given = welcome.step
        if self._answers and not welcome.step:
            self._answers = 0
            raise RoundRestarted


def parse_ticket(ticket: str) -> bytes:
    """The bytes of a ticket that came as text."""
    try:
        value = bytes.fromhex(ticket)
    except ValueError:
        value = b""
    if len(value) != TICKET_BYTES:
        raise NetworkError(
            f"The ticket is not {TICKET_BYTES} bytes in hexadecimal; use the one that the server sent."
        )
    return value


class _Line:
    """One stream: messages out, messages in; `given` is how many answers the server has given."""

    def __init__(self, address: str, credentials: ClientCredentials) -> None:
        secure = grpc.ssl_channel_credentials(credentials.authority, credentials.key, credentials.certificate)
        self.given = 0
        self._out: queue.SimpleQueue[Iterator[bytes] | None] = queue.SimpleQueue()
        self._channel = grpc.secure_channel(address, secure, options=_OPTIONS)
        self._call = self._channel.stream_stream(wire.METHOD)(self._messages())

    def send(self, messages: Iterator[bytes]) -> None:
        """Send these after all that were given before; packing them happens as the network takes them."""
        self._out.put(messages)

    def receive(self) -> bytes:
        """The next message; `grpc.RpcError` if there will be none."""
        message = next(self._call, None)
        if message is None:
            raise grpc.RpcError
        return bytes(message)

    def close(self) -> None:
        self._out.put(None)
        self._call.cancel()
        self._channel.close()

    def _messages(self) -> Iterator[bytes]:
        for messages in iter(self._out.get, None):
            yield from messages


def _raise_if_final(error: grpc.RpcError) -> None:
    """Tell a refusal from a broken connection: the former comes with a reason."""
    if not isinstance(error, grpc.Call):
        return
    for name, value in error.trailing_metadata() or ():
        if name == wire.REASON_KEY and value in {reason.value for reason in Reason}:
            reason = Reason(value)
            if reason not in _PASSING:
                raise Refused(reason, error.details() or "") from None
    details = (error.details() or "").lower()
    if "handshake failed" in details and "certificate" in details:
        raise NetworkError(
            "The server's certificate is not of the federation that this client's bundle is for; use the "
            "bundle that this server's owner made."
        ) from None


def _details(error: grpc.RpcError) -> str:
    text = error.details() if isinstance(error, grpc.Call) else None
    return (text or "the stream ended").rstrip(".")
