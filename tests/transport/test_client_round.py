"""A round over loopback against the same round in one process: equal bit for bit, disturbed or not."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from sigil.errors import ConfigError, NetworkError
from sigil.federation.aggregation import State
from sigil.federation.observers import ClientObserver, Moment
from sigil.transport import Limits, Reason, Refused, Status


def assert_equal(got: State, want: State) -> None:
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert torch.equal(got[name], value), name


@pytest.fixture(scope="module")
def alone(net: Any) -> Any:
    """Client 0's round 1, undisturbed: its update and its server half."""
    federation = net.local()
    with net.service() as service:
        tickets = service.open_round(
            1, federation.server_state, lr=federation._learning_rate(1), clients={0: net.fingerprints[0]}
        )
        update = net.train(net.task(service, tickets[0], federation.client_state), 0)
        outcome = service.wait_round(timeout=30)
    return federation, update, outcome.server_state()


@pytest.mark.parametrize(
    ("model", "precision"),
    [
        ({"name": "resnet18", "width": 4, "cut": "layer2"}, "float32"),
        ({"name": "resnet18", "width": 4, "cut": "layer1"}, "bfloat16"),
        ({"name": "vgg11", "width": 4, "cut": "pool3"}, "float32"),
    ],
)
def test_two_rounds_of_three_clients_equal_a_training_in_one_process(
    make_net: Any, model: dict[str, Any], precision: str
) -> None:
    net = make_net(model=model, run={"precision": precision})
    federation = net.local()
    client_state, server_state = federation.client_state, federation.server_state
    with net.service() as service:
        for number in (1, 2):
            result = federation.run_round()
            client_state, outcome, updates = net.round(service, client_state, server_state, number)
            server_state = outcome.server_state()
            assert outcome.finished == [0, 1, 2]
            assert outcome.images == result.images == sum(update.images for update in updates.values())
            assert len(outcome.injections) == 3 * 4  # every second of eight steps
    assert_equal(client_state, federation.client_state)
    assert_equal(server_state, federation.server_state)


def test_a_narrow_wire_trains_nearly_the_same(make_net: Any, net: Any) -> None:
    federation = net.local()
    states = {}
    for wire in ("float32", "bfloat16"):
        with net.service(wire=wire) as service:
            client_state, outcome, _ = net.round(
                service, federation.client_state, federation.server_state, 1, wire=wire
            )
            assert outcome.finished == [0, 1, 2]
            states[wire] = torch.cat([value.flatten().float() for value in client_state.values()])
            sent = service.metrics.sent._value.get()
            states[wire + " bytes"] = sent
    difference = (states["float32"] - states["bfloat16"]).norm() / states["float32"].norm()
    assert 0 < difference < 0.05
    assert states["bfloat16 bytes"] < 0.7 * states["float32 bytes"]


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.77, 0.99])
def test_a_cut_connection_changes_nothing(net: Any, service: Any, proxy: Any, alone: Any, share: float) -> None:
    federation, undisturbed, server_state = alone
    tickets = service.open_round(
        1, federation.server_state, lr=federation._learning_rate(1), clients={0: net.fingerprints[0]}
    )
    proxy.cut_after(int(share * 150_000))  # of about 150,000 bytes in both directions
    update = net.train(net.task(proxy, tickets[0], federation.client_state), 0)
    outcome = service.wait_round(timeout=30)
    assert proxy.connections == 2
    assert outcome.clients[0].status is Status.FINISHED
    assert outcome.clients[0].reconnects == (1 if share > 0.1 else 0)  # the first cut hits the handshake
    assert_equal(update.client_state, undisturbed.client_state)
    assert_equal(outcome.server_state(), server_state)
    assert update.loss == undisturbed.loss
