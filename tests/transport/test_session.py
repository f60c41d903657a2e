"""A session computes what a server in the same process computes, and forgets when told to."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from sigil.federation.from_settings import fresh_optimizer
from sigil.federation.messages import Activation, LogitGradient
from sigil.federation.precision import Precision
from sigil.federation.server import Server
from sigil.injector import Injector
from sigil.transport import Limits, Metrics
from sigil.transport.limits import Budget, Reason, Rejection
from sigil.transport.session import Scheduler, ServedHalf, Session, Status
from sigil.transport.wire import Header, Kind

CPU = Precision(torch.device("cpu"), bfloat16=False)


@pytest.fixture
def served(net: Any) -> ServedHalf:
    return ServedHalf(
        training=replace(net.training(), precision=CPU),
        limits=Limits(),
        wire="float32",
        metrics=Metrics(),
        budget=Budget(Limits().bytes_in_flight),
        scheduler=Scheduler(),
    )


def initial(served: ServedHalf) -> dict[str, torch.Tensor]:
    return served.training.halves.server.state_dict()


def make(served: ServedHalf) -> Session:
    return Session(0, round_number=1, state=initial(served), lr=0.1, served=served)


def batches(served: ServedHalf, steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    random = torch.Generator().manual_seed(0)
    return [
        (
            torch.rand(5, *served.shape, generator=random),
            torch.randint(served.classes, (5,), generator=random),
        )
        for _ in range(steps)
    ]


def loss_gradient(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    outputs = logits.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(outputs, labels), outputs)
    return gradient


def run(session: Session, served: ServedHalf, steps: int) -> list[torch.Tensor]:
    gradients = []
    for activation, labels in batches(served, steps):
        logits = session.forward(activation)
        session.answers += 1
        gradients.append(session.backward(loss_gradient(logits, labels)))
        session.answers += 1
    return gradients


def test_a_session_computes_what_a_server_computes(served: ServedHalf, net: Any) -> None:
    half = copy.deepcopy(served.training.halves.server).train()
    optimizer = fresh_optimizer(half, 0.1, settings=net.settings, precision=CPU)
    injector = Injector(net.key, net.settings.watermark.strength)
    server = Server(half, optimizer, shape=served.shape, precision=CPU, injector=injector)
    session = make(served)
    for got, (activation, labels) in zip(run(session, served, 3), batches(served, 3), strict=True):
        logits = server.forward(Activation(activation)).values
        want = server.backward(LogitGradient(loss_gradient(logits, labels))).values
        assert torch.equal(got, want)
    for name, value in half.state_dict().items():
        assert torch.equal(session.server_state[name], value)
    assert (session.steps, session.images) == (3, 15)
    assert len(session.injections) == 2  # of every second step


def test_a_sessions_server_knows_its_client_and_round(served: ServedHalf) -> None:
    session = Session(2, round_number=7, state=initial(served), lr=0.1, served=served)
    run(session, served, 1)
    server = session._server
    assert server is not None
    assert (server.round, server.client, server.steps) == (7, 2, 1)


def test_a_restarted_session_begins_at_the_rounds_weights(served: ServedHalf) -> None:
    start = {name: value.clone() for name, value in initial(served).items()}
    session = make(served)
    first = run(session, served, 2)
    session.restart()
    assert (session.answers, session.images, session.injections) == (0, 0, [])
    assert all(torch.equal(session.server_state[name], value) for name, value in start.items())
    for again, before in zip(run(session, served, 2), first, strict=True):
        assert torch.equal(again, before)
    assert all(torch.equal(initial(served)[name], value) for name, value in start.items())


def test_sessions_do_not_share_weights(served: ServedHalf) -> None:
    one, other = make(served), make(served)
    run(one, served, 2)
    assert all(torch.equal(value, initial(served)[name]) for name, value in other.server_state.items())


def test_a_finished_session_takes_no_more_steps(served: ServedHalf) -> None:
    session = make(served)
    run(session, served, 1)
    session.finish()
    session.status = Status.FINISHED
    with pytest.raises(Rejection) as rejection:
        session.expect(Header(Kind.ACTIVATION, 1, 0, 2, torch.float32, False, (4, *served.shape)))
    assert rejection.value.reason is Reason.ORDER
