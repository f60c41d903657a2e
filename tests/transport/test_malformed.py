"""Thousands of malformed messages against a live service, while an honest client trains on.

``SIGIL_MALFORMED=10000`` in the environment sends so many; the suite sends fewer.
"""

from __future__ import annotations

import os
import pickle
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch

from sigil.transport import Limits, Reason, Status, certificates, wire
from sigil.transport.wire import Header, Kind

COUNT = int(os.environ.get("SIGIL_MALFORMED", "1500"))
STRANGERS = 40  # of them come with a certificate of another authority, or without TLS
OVERSIZED = 20

ANY = frozenset(Reason) - {Reason.INTERNAL}


class Bomb:
    """Unpickled, it would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.path,)


@dataclass
class Attacker:
    """Draws malformed streams: lists of messages, with the reasons that are right for them."""

    net: Any
    random: np.random.Generator
    tickets: dict[int, str]
    stolen: str
    bomb: bytes

    def stream(self) -> tuple[list[bytes], frozenset[Any]]:
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
        return kinds[self.random.integers(len(kinds))]()

    def noise(self) -> tuple[list[bytes], frozenset[Any]]:
        return [self.random.bytes(int(self.random.integers(0, 3000)))], frozenset({Reason.MALFORMED})

    def pickled(self) -> tuple[list[bytes], frozenset[Any]]:
        return [self.bomb], frozenset({Reason.MALFORMED})

    def damaged_hello(self) -> tuple[list[bytes], frozenset[Any]]:
        _, hello = self.hello()
        return [self.damage(hello)], ANY

    def wrong_ticket(self) -> tuple[list[bytes], frozenset[Any]]:
        client = int(self.random.integers(0, 5))
        ticket = self.random.bytes(32)
        hello = wire.hello(ticket, round_number=1, client=client, answers=0)
        return [hello], frozenset({Reason.TICKET})

    def stolen_ticket(self) -> tuple[list[bytes], frozenset[Any]]:
        return [self.net.hello(self.stolen)], frozenset({Reason.CERTIFICATE})

    def no_hello(self) -> tuple[list[bytes], frozenset[Any]]:
        return self.net.activation(), frozenset({Reason.MALFORMED})

    def damaged_header(self) -> tuple[list[bytes], frozenset[Any]]:
        client, hello = self.hello()
        header, *chunks = self.net.activation(client=client)
        damaged = bytearray(header)
        damaged[self.random.integers(20)] ^= 1 << self.random.integers(8)
        return [hello, bytes(damaged), *chunks], ANY

    def wrong_dtype(self) -> tuple[list[bytes], frozenset[Any]]:
        client, hello = self.hello()
        header, *chunks = self.net.activation(client=client)
        code = int(self.random.choice([0, *range(3, 256)]))
        return [hello, header[:7] + bytes([code]) + header[8:], *chunks], frozenset({Reason.DTYPE})

    def wrong_shape(self) -> tuple[list[bytes], frozenset[Any]]:
        client, hello = self.hello()
        shape = tuple(int(n) for n in self.random.integers(18, 2**31, size=4))
        header = Header(Kind.ACTIVATION, 1, client, 1, torch.float32, False, shape)
        if header.size >= 2**64:
            packed = bytearray(Header(Kind.ACTIVATION, 1, client, 1, torch.float32, False, (4,)).pack())
            struct.pack_into("<BH4IQ", packed, 21, 4, 0, *shape, header.size % 2**64)
            return [hello, bytes(packed)], frozenset({Reason.SIZE})
        return [hello, header.pack()], frozenset({Reason.SHAPE})

    def wrong_order(self) -> tuple[list[bytes], frozenset[Any]]:
        client, hello = self.hello()
        kind = int(self.random.integers(3))
        if kind == 0:
            messages = self.net.activation(client=client, step=int(self.random.integers(2, 2**32)))
        elif kind == 1:
            messages = self.net.gradient(client=client)
        else:
            messages = [Header(Kind.FINISH, 1, client, int(self.random.integers(0, 5))).pack()]
        return [hello, *messages], frozenset({Reason.ORDER})

    def wrong_chunk(self) -> tuple[list[bytes], frozenset[Any]]:
        client, hello = self.hello()
        header, chunk = self.net.activation(client=client)
        length = int(self.random.choice([0, len(chunk) - 1, len(chunk) + 1, 100_000]))
        return [hello, header, bytes(length)], frozenset({Reason.SIZE})

    def truncated(self) -> tuple[list[bytes], frozenset[Any]]:
        client, hello = self.hello()
        header, _ = self.net.activation(client=client)
        return [[hello], [hello, header]][self.random.integers(2)], frozenset({Reason.TRUNCATED})

    def not_finite(self) -> tuple[list[bytes], frozenset[Any]]:
        client, hello = self.hello()
        header, chunk = self.net.activation(client=client)
        values = np.frombuffer(chunk, "<f4").copy()
        values[self.random.integers(len(values))] = self.random.choice([np.nan, np.inf, -np.inf])
        return [hello, header, values.tobytes()], frozenset({Reason.VALUES})

    def replayed(self) -> tuple[list[bytes], frozenset[Any]]:
        client, hello = self.hello()
        step = self.net.activation(client=client)
        return [hello, *step, *step], frozenset({Reason.ORDER})

    def pickled_payload(self) -> tuple[list[bytes], frozenset[Any]]:
        client, hello = self.hello()
        header, _ = self.net.activation(client=client)
        return [hello, header, self.bomb], frozenset({Reason.SIZE})

    def hello(self) -> tuple[int, bytes]:
        """A good beginning, with a ticket that was not used yet."""
        client, ticket = self.tickets.popitem()
        return client, self.net.hello(ticket, client=client)

    def damage(self, message: bytes) -> bytes:
        """Cut off, extended, or with one of the first bits changed that mean something."""
        kind = int(self.random.integers(3))
        if kind == 0:
            return message[: self.random.integers(len(message))]
        if kind == 1:
            return message + self.random.bytes(int(self.random.integers(1, 50)))
        changed = bytearray(message)
        # Not the number of answers: any is a good greeting for a session that has given none.
        changed[self.random.choice([*range(16), *range(20, len(message))])] ^= 1 << self.random.integers(8)
        return bytes(changed)


def refusal(call: Any) -> Reason | grpc.StatusCode:
    try:
        for _ in call:
            pass
    except grpc.RpcError:
        pass
    for name, value in call.trailing_metadata() or ():
        if name == wire.REASON_KEY:
            return Reason(value)
    return call.code()


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def strange_connection(address: str, *, folder: Path, plain: bool) -> bytes:
    """What the service says to a certificate of another authority, or to somebody without TLS."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=5) as line:
        if plain:
            line.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(200))
            return _everything(line)
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        bundle = certificates.bundle_folder(folder, 0)
        context.load_cert_chain(bundle / "client.pem", bundle / "client.key")
        with context.wrap_socket(line) as secure:
            return _everything(secure)


def _everything(line: socket.socket) -> bytes:
    content = b""
    try:
        while data := line.recv(4096):
            content += data
    except ssl.SSLError as error:
        return content + str(error.reason).encode()
    except OSError:
        pass
    return content


def test_every_malformed_message_is_rejected_with_a_reason_and_harms_nobody(
    make_net: Any, tmp_path: Path
) -> None:
    net = make_net(federation={"local_epochs": 6})
    honest, bad = net.credentials(0), net.credentials(1)
    mark = tmp_path / "exploded"
    federation = net.local()
    client_start, server_start = federation.client_state, federation.server_state
    clients = {0: honest.fingerprint} | dict.fromkeys(range(1, COUNT + 1), bad.fingerprint)
    limits = Limits(
        streams_per_client=64,
        streams=128,
        hello_seconds=120.0,
        step_seconds=120.0,
        return_seconds=None,
        bytes_in_flight=1 << 20,
    )
    outcomes: Counter[str] = Counter()
    with net.service(limits=limits) as service:
        tickets = service.open_round(1, server_start, lr=federation._learning_rate(1), clients=clients)
        own = {index: ticket for index, ticket in tickets.items() if index}
        attacker = Attacker(
            net, np.random.default_rng(0), own, stolen=tickets[0], bomb=pickle.dumps(Bomb(mark))
        )
        streams = [attacker.stream() for _ in range(COUNT - STRANGERS - OVERSIZED)]
        streams += [
            ([bytes(wire.MAX_MESSAGE_BYTES + 1)], frozenset({grpc.StatusCode.RESOURCE_EXHAUSTED}))
        ] * 20
        channel = net.channel(service, bad)

        def attack(stream: tuple[list[bytes], frozenset[Any]]) -> tuple[Any, frozenset[Any]]:
            messages, expected = stream
            return refusal(channel.stream_stream(wire.METHOD)(iter(messages))), expected

        sizes = []
        with ThreadPoolExecutor(9) as pool:
            training = pool.submit(net.train, net.task(service, tickets[0], client_start), 0)
            for start in range(0, len(streams), 200):
                for given, expected in pool.map(attack, streams[start : start + 200]):
                    assert given in expected, (given, expected)
                    outcomes[str(given)] += 1
                sizes.append(resident())
            update = training.result()
        foreign = make_net().folder
        for index in range(STRANGERS):
            answer = strange_connection(service.address, folder=foreign, plain=index % 2 == 0)
            assert answer == b"" or b"ALERT" in answer, answer
        channel.close()
        counted = service.metrics.rejections()
        assert sum(outcomes.values()) == COUNT - STRANGERS
        assert sum(counted.values()) == COUNT - STRANGERS
        assert counted[Reason.INTERNAL] == 0
        assert service._engine.streams.total() == 0
        assert service._engine.budget.used == 0
        outcome = service.wait_round(timeout=0.1)

    assert not mark.exists()
    assert outcome.finished == [0]
    assert {outcome.clients[index].status for index in outcome.missing} <= {Status.EXPELLED, Status.LOST}
    # The honest client's round is that of a training in one process.
    local = net.local()
    local.parts, local.seat.parts = local.parts[:1], local.parts[:1]
    local.run_round()
    for name, value in local.client_state.items():
        assert torch.equal(update.client_state[name], value), name
    for name, value in local.server_state.items():
        assert torch.equal(outcome.server_state()[name], value), name
    # Nothing is left behind: the second half of the messages takes no more memory than noise does.
    assert sizes[-1] - sizes[len(sizes) // 2] < 32 * 2**20, sizes
    assert len(outcomes) >= 9, outcomes


def test_what_a_bomb_would_do_is_seen(tmp_path: Path) -> None:
    mark = tmp_path / "exploded"
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists()


@pytest.mark.parametrize("size", [wire.MAX_MESSAGE_BYTES + 1, 8 << 20])
def test_an_oversized_message_in_a_round_ends_the_stream_and_not_the_round(
    net: Any, service: Any, size: int
) -> None:
    tickets = net.open(service, service.initial_state, clients=1)
    stream = net.raw(service).send(net.hello(tickets[0]), bytes(size))
    assert stream.refusal() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert net.raw(service).send(net.hello(tickets[0])).receive().kind is Kind.WELCOME
