"""Hostile streams: what a service must refuse, each with the reasons that are right for it.

The tests and ``benchmarks/malformed.py`` send them to a live service, by the thousand::

    attacker = Attacker(random, tickets, shape=shape, classes=10, stolen=ticket_of_another, bomb=pickled)
    stream = attacker.draw()
    answer = send(channel, stream.messages)         # a Reason, or a bare status of gRPC
    assert answer in stream.expected
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import grpc
import numpy as np
import torch

from sigil.transport import wire
from sigil.transport.limits import Reason
from sigil.transport.wire import Header, Kind

Answer: TypeAlias = Reason | grpc.StatusCode
# Where a bit or a length is changed at random, it depends on which one what is wrong.
ANY: frozenset[Answer] = frozenset(Reason) - {Reason.INTERNAL}


@dataclass(frozen=True)
class HostileStream:
    """One stream: what kind of attack it is, its messages, and the answers that are right for it."""

    kind: str
    messages: Sequence[bytes] = field(repr=False)
    expected: frozenset[Answer]


class Attacker:
    """Somebody with a certificate and tickets of the federation who draws malformed streams.

    `tickets` maps the indices of clients in round 1 to tickets that are the attacker's own; each is used up
    by one stream. `stolen` is the ticket of client 0, who is somebody else. `shape` is that at the cut.
    """

    def __init__(
        self,
        random: np.random.Generator,
        tickets: dict[int, str],
        *,
        shape: tuple[int, ...],
        classes: int,
        stolen: str,
        bomb: bytes,
    ) -> None:
        self._random = random
        self._tickets = tickets
        self._shape = shape
        self._classes = classes
        self._stolen = stolen
        self._bomb = bomb

    def draw(self) -> HostileStream:
        """One stream, of a kind drawn at random."""
        kinds = [
            self.noise,
            self.pickled,
            self.damaged_hello,
            self.wrong_ticket,
            self.stolen_ticket,
            self.no_hello,
            self.damaged_header,
            self.wrong_dtype,
            self.wrong_shape,
            self.wrong_order,
            self.wrong_chunk,
            self.truncated,
            self.not_finite,
            self.replayed,
            self.pickled_payload,
        ]
        return kinds[self._random.integers(len(kinds))]()

    def noise(self) -> HostileStream:
        """Random bytes."""
        return _stream("random bytes", [self._random.bytes(self._below(3000))], Reason.MALFORMED)

    def oversized(self) -> HostileStream:
        """A message that is longer than gRPC may accept; the service never sees it."""
        message = bytes(wire.MAX_MESSAGE_BYTES + 1)
        return _stream("oversized message", [message], grpc.StatusCode.RESOURCE_EXHAUSTED)

    def pickled(self) -> HostileStream:
        """A pickle where the first message belongs."""
        return _stream("pickle", [self._bomb], Reason.MALFORMED)

    def pickled_payload(self) -> HostileStream:
        """A pickle where a tensor belongs."""
        client, hello = self._hello()
        header, _ = self._activation(client)
        return _stream("pickle", [hello, header, self._bomb], Reason.SIZE)

    def damaged_hello(self) -> HostileStream:
        """A greeting cut off, extended, or with one bit changed that means something."""
        _, message = self._hello()
        kind = self._below(3)
        if kind == 0:
            message = message[: self._below(len(message))]
        elif kind == 1:
            message += self._random.bytes(1 + self._below(49))
        else:
            # Not the number of answers: any is a good greeting for a session that has given none.
            place = self._random.choice([*range(16), *range(20, len(message))])
            message = self._flipped(message, int(place))
        return HostileStream("damaged greeting", [message], ANY)

    def wrong_ticket(self) -> HostileStream:
        """A ticket out of thin air."""
        ticket = self._random.bytes(wire.TICKET_BYTES)
        hello = wire.hello(ticket, round_number=1, client=self._below(5), answers=0)
        return _stream("invented ticket", [hello], Reason.TICKET)

    def stolen_ticket(self) -> HostileStream:
        """Somebody else's ticket."""
        hello = wire.hello(bytes.fromhex(self._stolen), round_number=1, client=0, answers=0)
        return _stream("stolen ticket", [hello], Reason.CERTIFICATE)

    def no_hello(self) -> HostileStream:
        """A tensor without a greeting."""
        return _stream("wrong order", self._activation(0), Reason.MALFORMED)

    def damaged_header(self) -> HostileStream:
        """A header with one bit changed."""
        client, hello = self._hello()
        header, *chunks = self._activation(client)
        return HostileStream("damaged header", [hello, self._flipped(header, self._below(20)), *chunks], ANY)

    def wrong_dtype(self) -> HostileStream:
        """A number format that does not exist."""
        client, hello = self._hello()
        header, *chunks = self._activation(client)
        code = int(self._random.choice([0, *range(4, 256)]))
        header = header[:7] + bytes([code]) + header[8:]
        return _stream("wrong dtype", [hello, header, *chunks], Reason.DTYPE)

    def wrong_shape(self) -> HostileStream:
        """A tensor of up to 2¹²⁴ numbers, more than a size of 64 bits can tell."""
        client, hello = self._hello()
        largest = 2 ** (6 + self._below(26))
        shape = tuple(int(n) for n in self._random.integers(largest // 2, largest, size=wire.MAX_AXES))
        header = Header(Kind.ACTIVATION, 1, client, 1, torch.float32, False, shape)
        if header.size < 2**64:
            return _stream("wrong shape", [hello, header.pack()], Reason.SHAPE)
        packed = bytearray(Header(Kind.ACTIVATION, 1, client, 1, torch.float32, False, (4,)).pack())
        struct.pack_into("<BH4IQ", packed, 21, 4, 0, *shape, header.size % 2**64)
        return _stream("wrong shape", [hello, bytes(packed)], Reason.SIZE)

    def wrong_order(self) -> HostileStream:
        """A step too far, a gradient before its activation, or an end before the beginning."""
        client, hello = self._hello()
        kind = self._below(3)
        if kind == 0:
            messages = self._activation(client, step=2 + self._below(2**32 - 2))
        elif kind == 1:
            values = torch.zeros(4, self._classes)
            messages = list(wire.frame(Kind.LOGIT_GRADIENT, values, round_number=1, client=client, step=1))
        else:
            messages = [Header(Kind.FINISH, 1, client, self._below(5)).pack()]
        return _stream("wrong order", [hello, *messages], Reason.ORDER)

    def replayed(self) -> HostileStream:
        """The same step twice."""
        client, hello = self._hello()
        step = self._activation(client)
        return _stream("replayed step", [hello, *step, *step], Reason.ORDER)

    def wrong_chunk(self) -> HostileStream:
        """Another number of bytes than was announced."""
        client, hello = self._hello()
        header, chunk = self._activation(client)
        length = int(self._random.choice([0, len(chunk) - 1, len(chunk) + 1, 100_000]))
        return _stream("wrong length", [hello, header, bytes(length)], Reason.SIZE)

    def truncated(self) -> HostileStream:
        """A stream that ends in the middle."""
        client, hello = self._hello()
        header, _ = self._activation(client)
        return _stream("truncated", [hello, header][: 1 + self._below(2)], Reason.TRUNCATED)

    def not_finite(self) -> HostileStream:
        """NaN or infinity in a tensor."""
        client, hello = self._hello()
        header, chunk = self._activation(client)
        values = np.frombuffer(chunk, "<f4").copy()
        values[self._below(len(values))] = self._random.choice([np.nan, np.inf, -np.inf])
        return _stream("NaN or infinity", [hello, header, values.tobytes()], Reason.VALUES)

    def _hello(self) -> tuple[int, bytes]:
        """A good beginning, with a ticket that was not used yet."""
        client, ticket = self._tickets.popitem()
        return client, wire.hello(bytes.fromhex(ticket), round_number=1, client=client, answers=0)

    def _activation(self, client: int, *, step: int = 1) -> list[bytes]:
        """A header and one chunk that the service accepts at step 1."""
        values = torch.from_numpy(self._random.random((4, *self._shape), np.float32))
        return list(wire.frame(Kind.ACTIVATION, values, round_number=1, client=client, step=step))

    def _flipped(self, message: bytes, place: int) -> bytes:
        changed = bytearray(message)
        changed[place] ^= 1 << self._below(8)
        return bytes(changed)

    def _below(self, limit: int) -> int:
        return int(self._random.integers(limit))


def send(channel: grpc.Channel, messages: Sequence[bytes]) -> Answer:
    """Open a stream, say this, and return how the service ended it: its reason, or a bare status."""
    call = channel.stream_stream(wire.METHOD)(iter(messages))
    try:
        for _ in call:
            pass
    except grpc.RpcError:
        pass
    for name, value in call.trailing_metadata() or ():
        if name == wire.REASON_KEY:
            return Reason(value)
    code: grpc.StatusCode = call.code()
    return code


def turned_away(address: str, *, bundle: Path | None) -> bool:
    """Whether the service hangs up on a stranger without a word of its own.

    The stranger has the certificate of another federation in `bundle`, or (none) does not speak TLS.
    """
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=60) as line:
        if bundle is None:
            line.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(200))
            return _ends(line)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        context.load_cert_chain(bundle / "client.pem", bundle / "client.key")
        with context.wrap_socket(line) as secure:
            return _ends(secure)


def _ends(line: socket.socket) -> bool:
    try:
        return line.recv(1) == b""
    except ssl.SSLError as error:
        return "ALERT" in str(error.reason)
    except ConnectionError:
        return True


def _stream(kind: str, messages: Sequence[bytes], *expected: Answer) -> HostileStream:
    return HostileStream(kind, messages, frozenset(expected))
