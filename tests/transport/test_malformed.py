"""Malformed messages against a live service, while an honest client trains on.

``benchmarks/malformed.py`` sends ten thousand to a service in a process of its own; here are fewer.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch

from harness.hostile_streams import Attacker, HostileStream, send, turned_away
from harness.replay import replay
from harness.waiting import until
from sigil.federation.from_settings import scheduled_rate
from sigil.federation.settings import make
from sigil.transport import Limits, Reason, Status, certificates, wire
from sigil.transport.wire import Kind

COUNT = 1500
OVERSIZED = 20
STRANGERS = 40


class Bomb:
    """Unpickled, it would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.path,)


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


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
        refusals_per_minute=100_000,  # answered at once, however many
        streams_per_client=64,
        streams=128,
        hello_seconds=120.0,
        step_seconds=120.0,
        return_seconds=None,
        bytes_in_flight=1 << 20,
    )
    # Each hostile stream comes from a client of its own; the honest one carries the whole mark as in `net`.
    sections = net.settings.model_dump()
    sections["federation"]["clients"] = len(clients)
    sections["watermark"]["scheme"] = "paper"
    outcomes: Counter[str] = Counter()
    with net.service(net.training(settings=make(sections)), limits=limits) as service:
        tickets = service.open_round(1, server_start, lr=scheduled_rate(net.settings, 1), clients=clients)
        attacker = Attacker(
            np.random.default_rng(0),
            {index: ticket for index, ticket in tickets.items() if index},
            shape=net.shape,
            classes=net.dataset.classes,
            stolen=tickets[0],
            bomb=pickle.dumps(Bomb(mark)),
        )
        streams = [attacker.draw() for _ in range(COUNT - OVERSIZED)]
        streams += [attacker.oversized() for _ in range(OVERSIZED)]
        channel = net.channel(service, bad)

        def attack(stream: HostileStream) -> tuple[HostileStream, Any]:
            return stream, send(channel, stream.messages)

        sizes = []
        with ThreadPoolExecutor(9) as pool:
            training = pool.submit(net.train, net.task(service, tickets[0], client_start), 0)
            for start in range(0, len(streams), 200):
                for stream, answer in pool.map(attack, streams[start : start + 200]):
                    assert answer in stream.expected, (stream, answer)
                    outcomes[str(answer)] += 1
                sizes.append(resident())
            update = training.result()
        foreign = certificates.bundle_folder(make_net().folder, 0)
        for index in range(STRANGERS):
            assert turned_away(service.address, bundle=foreign if index % 2 else None)
        channel.close()
        counted = service.metrics.rejections()
        assert sum(counted.values()) == COUNT
        assert counted[Reason.INTERNAL] == 0
        until(lambda: service._streams.total() == 0)  # a stream ends after its client has its answer
        assert service.metrics.registry.get_sample_value("sigil_in_flight_bytes") == 0
        outcome = service.wait_round(timeout=0.1)

    assert not mark.exists()
    assert outcome.finished == [0]
    assert {client.status for index, client in outcome.clients.items() if index} <= {
        Status.EXPELLED,
        Status.LOST,
    }
    # The honest client's round is that of a training in one process.
    local = replay(net.settings, net.dataset, key=net.key, participants=[[0]])
    for ours, theirs in (
        (update.client_state, local.client_state),
        (outcome.server_state(), local.server_state),
    ):
        assert all(torch.equal(ours[name], value) for name, value in theirs.items())
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
