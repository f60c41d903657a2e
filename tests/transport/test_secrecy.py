"""The key lives in the server's process only: nothing that leaves it holds the seed, a row of M, or b."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sigil.keys.key import Key
from sigil.transport.stream import Stream

SEED = bytes(range(100, 132))
Leaks = Callable[[Key, bytes], list[str]]


def test_the_search_finds_what_it_looks_for(leaks: Leaks) -> None:
    key = Key.generate("ACME", shape=(8, 2, 2), bits=64, seed=SEED)
    planted = b"..".join(
        [b"", key.matrix.numpy().tobytes(), SEED.hex().encode(), key.target.numpy().tobytes()]
    )
    found = leaks(key, planted)
    assert {"seed in hex", "b in float32", "row 0 of M", "row 31 of M"} <= set(found)
    assert leaks(key, np.random.default_rng(0).bytes(100_000)) == []


@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
def test_nothing_that_leaves_the_server_holds_the_key(
    make_net: Any,
    leaks: Leaks,
    wire: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    net = make_net(watermark={"bits": 64, "strength": 1.0})
    key = Key.generate("ACME", shape=net.shape, bits=64, seed=SEED)
    outgoing = bytearray()
    write = Stream._write

    async def recorded(self: Stream, message: bytes) -> None:
        outgoing.extend(message)
        await write(self, message)

    monkeypatch.setattr(Stream, "_write", recorded)
    federation = net.local()
    with caplog.at_level(logging.DEBUG), net.service(net.training(key=key), wire=wire) as service:
        _, outcome, _ = net.round(service, federation.client_state, federation.server_state, 1, wire=wire)
        tickets = net.open(service, outcome.server_state(), 2)
        offender = net.raw(service).send(net.hello(tickets[0], number=2), *net.activation(number=2, step=3))
        offender.refusal()
        said = [offender.call.details(), str(offender.call.trailing_metadata()), service.metrics.text()]
        said += [repr(service), repr(outcome.clients[0].status), str(tickets), caplog.text]
    assert all(len(client.injections) > 0 for client in outcome.clients.values())
    assert len(outgoing) > 10_000
    assert leaks(key, bytes(outgoing)) == []
    assert leaks(key, "\n".join(said).encode()) == []


def test_a_service_with_the_wrong_key_does_not_show_it(make_net: Any, leaks: Leaks) -> None:
    net = make_net()
    key = Key.generate("ACME", shape=(4, 2, 2), bits=64, seed=SEED)
    with pytest.raises(Exception, match="make a key with that shape") as error:
        net.service(net.training(key=key))
    assert leaks(key, str(error.getrepr(showlocals=False)).encode()) == []
