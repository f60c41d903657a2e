"""A round over loopback against the same round in one process: equal bit for bit, disturbed or not."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from sigil.errors import NetworkError
from sigil.federation.averaging import State
from sigil.federation.observers import ClientObserver, Step
from sigil.transport import Limits, Reason, Refused, RoundOutcome, RoundUpdate, Status


def assert_equal(got: State, want: State) -> None:
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert torch.equal(got[name], value), name


@dataclass(frozen=True)
class Alone:
    """Client 0's first round, undisturbed, with the bytes that it took."""

    client_start: State
    server_start: State
    update: RoundUpdate
    server_state: State
    traffic: int


@pytest.fixture(scope="module")
def alone(net: Any, make_proxy: Any) -> Alone:
    federation = net.local()
    start, server_start = federation.client_state, federation.server_state
    with net.service() as service:
        proxy = make_proxy(service.address)
        tickets = net.open(service, server_start, clients=1)
        update = net.train(net.task(proxy, tickets[0], start), 0)
        outcome = service.wait_round(timeout=120)
        proxy.close()
    return Alone(start, server_start, update, outcome.server_state(), proxy.passed)


@pytest.mark.parametrize(
    ("model", "precision"),
    [
        ({"name": "vgg11", "width": 4, "cut": "pool2"}, "float32"),
        ({"name": "vgg11", "width": 4, "cut": "pool3"}, "bfloat16"),
        ({"name": "resnet18", "width": 2, "cut": "layer3"}, "float32"),
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
            assert sum(client.images for client in outcome.clients.values()) == result.images
            assert sum(update.images for update in updates.values()) == result.images
            # of every second of six steps
            assert [len(client.injections) for client in outcome.clients.values()] == [3, 3, 3]
    assert_equal(client_state, federation.client_state)
    assert_equal(server_state, federation.server_state)


def test_a_narrow_wire_moves_the_weights_alike_with_fewer_bytes(make_net: Any) -> None:
    # Both ends in float32: where they compute in bfloat16, a narrow wire changes nothing.
    net = make_net(run={"precision": "float32"})
    federation = net.local()
    start = torch.cat([value.flatten().float() for value in federation.client_state.values()])
    moves, sizes = {}, {}
    for wire in ("float32", "bfloat16", "int8"):
        with net.service(wire=wire) as service:
            client_state, outcome, _ = net.round(
                service, federation.client_state, federation.server_state, 1, wire=wire
            )
            assert outcome.finished == [0, 1, 2]
            moves[wire] = torch.cat([value.flatten().float() for value in client_state.values()]) - start
            sizes[wire] = service.metrics.registry.get_sample_value("sigil_sent_bytes_total")
    # Logits are never narrowed.
    for wire, part in {"bfloat16": 0.75, "int8": 0.6}.items():
        assert not torch.equal(moves[wire], moves["float32"])
        assert torch.cosine_similarity(moves[wire], moves["float32"], dim=0) > 0.9
        assert sizes[wire] < part * sizes["float32"]


def assert_as_undisturbed(update: RoundUpdate, outcome: RoundOutcome, alone: Alone) -> None:
    assert outcome.clients[0].status is Status.FINISHED
    assert_equal(update.client_state, alone.update.client_state)
    assert_equal(outcome.server_state(), alone.server_state)
    assert (update.loss, update.images, update.steps) == (
        alone.update.loss,
        alone.update.images,
        alone.update.steps,
    )
    assert outcome.clients[0].images == alone.update.images


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.77, 0.95])
def test_a_cut_connection_changes_nothing(
    net: Any, service: Any, proxy: Any, alone: Alone, share: float
) -> None:
    tickets = net.open(service, alone.server_start, clients=1)
    proxy.cut_after(int(share * alone.traffic))
    update = net.train(net.task(proxy, tickets[0], alone.client_start), 0)
    outcome = service.wait_round(timeout=120)
    assert proxy.connections == 2
    assert service.metrics.registry.get_sample_value("sigil_reconnects_total") == (
        1 if share > 0.1 else 0
    )  # the first cut hits the handshake
    assert service.metrics.rejections()[Reason.INTERNAL] == 0
    assert_as_undisturbed(update, outcome, alone)


def test_many_cuts_change_nothing(net: Any, service: Any, proxy: Any, alone: Alone) -> None:
    tickets = net.open(service, alone.server_start, clients=1)
    cuts = 0

    def cut(images: int) -> None:
        nonlocal cuts
        cuts += 1
        if cuts <= 5:
            proxy.cut()

    update = net.train(net.task(proxy, tickets[0], alone.client_start), 0, tick=cut)
    outcome = service.wait_round(timeout=120)
    assert service.metrics.registry.get_sample_value("sigil_reconnects_total") == 5
    assert_as_undisturbed(update, outcome, alone)


class Interrupted(Exception):
    """Stands for the end of a client process."""


class Dies(ClientObserver):
    """Ends a client's process, as far as the server can tell, at one step."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_batch(self, at: Step, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if at.step == self.at:
            raise Interrupted
        return images, labels


@pytest.mark.parametrize("at", [2, 6])
def test_a_client_that_lost_everything_replays_its_round(
    net: Any, service: Any, alone: Alone, at: int
) -> None:
    tickets = net.open(service, alone.server_start, clients=1)
    task = net.task(service, tickets[0], alone.client_start)
    with pytest.raises(Interrupted):
        net.train(task, 0, observers=[Dies(at)])
    update = net.train(task, 0)
    outcome = service.wait_round(timeout=120)
    assert service.metrics.registry.get_sample_value("sigil_reconnects_total") == 1
    assert_as_undisturbed(update, outcome, alone)


def test_a_client_that_lost_its_finished_round_may_replay_it(net: Any, service: Any, alone: Alone) -> None:
    tickets = net.open(service, alone.server_start, clients=2)
    task = net.task(service, tickets[0], alone.client_start)
    net.train(task, 0)
    update = net.train(task, 0)
    outcome = service.wait_round(timeout=0.5)
    assert service.metrics.registry.get_sample_value("sigil_reconnects_total") == 1
    assert (outcome.finished, list(outcome.clients)) == ([0], [0, 1])
    assert_as_undisturbed(update, outcome, alone)


def test_a_connection_that_is_cut_for_longer_than_a_step_starts_the_round_over(
    net: Any, make_proxy: Any, alone: Alone
) -> None:
    with net.service(limits=Limits(step_seconds=1.0)) as service:
        proxy = make_proxy(service.address)
        tickets = net.open(service, alone.server_start, clients=1)
        ticks = 0

        def away(images: int) -> None:
            nonlocal ticks
            ticks += 1
            if ticks == 4:
                proxy.down = True
                proxy.cut()
                threading.Timer(2.0, lambda: setattr(proxy, "down", False)).start()

        update = net.train(net.task(proxy, tickets[0], alone.client_start), 0, tick=away)
        outcome = service.wait_round(timeout=120)
        proxy.close()
    assert ticks >= 4 + alone.update.steps
    assert_as_undisturbed(update, outcome, alone)


def test_a_client_that_gives_up_says_where_it_tried(net: Any, alone: Alone) -> None:
    with net.service() as service:
        tickets = net.open(service, alone.server_start, clients=1)
        task = net.task(service, tickets[0], alone.client_start)
    with pytest.raises(NetworkError, match=rf"{task.address} cannot be reached"):
        net.train(task, 0, patience=0.5)


def test_a_ticket_of_an_abandoned_round_is_refused_at_once(
    net: Any, service: Any, proxy: Any, alone: Alone
) -> None:
    old = net.open(service, alone.server_start, clients=1)
    new = net.open(service, alone.server_start, clients=1)
    assert old != new
    with pytest.raises(Refused) as refused:
        net.train(net.task(proxy, old[0], alone.client_start), 0)
    assert refused.value.reason is Reason.TICKET
    assert proxy.connections == 1, "a refusal is not a lost connection, which is tried again"


def test_a_client_whose_training_diverges_is_out_and_told_why(net: Any, service: Any, alone: Alone) -> None:
    tickets = net.open(service, alone.server_start, clients=1)
    broken = {name: value * float("nan") for name, value in alone.client_start.items()}
    with pytest.raises(Refused, match="NaN") as refused:
        net.train(net.task(service, tickets[0], broken), 0)
    assert refused.value.reason is Reason.VALUES
    with pytest.raises(NetworkError, match="Only 0 of 1 clients finished round 1"):
        service.wait_round(timeout=120)


def test_a_bundle_of_another_federation_is_named_as_the_cause(
    net: Any, make_net: Any, service: Any, alone: Alone
) -> None:
    tickets = net.open(service, alone.server_start, clients=1)
    stranger = make_net().credentials(0)
    with pytest.raises(NetworkError, match="not of the federation"):
        net.train(net.task(service, tickets[0], alone.client_start), 0, credentials=stranger)
