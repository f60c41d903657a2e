"""Over a live service: starving, combination and repetition are refused or counted; honest clients pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sigil.errors import ConfigError
from sigil.federation.messages import Activation, LogitGradient
from sigil.federation.precision import Precision
from sigil.keys.key import Key
from sigil.transport import Reason, Refused, RemoteServer
from sigil.transport.owner import NetworkSettings, RemoteTrainer
from sigil.transport.session import Status

CPU = Precision(torch.device("cpu"), bfloat16=False)


@contextmanager
def connected(net: Any, service: Any) -> Iterator[RemoteServer]:
    """Client 0 in the first round, free to send what it likes."""
    ticket = net.open(service, service.initial_state, clients=1)[0]
    remote = RemoteServer(
        service.address,
        ticket=ticket,
        round_number=1,
        client=0,
        classes=10,
        credentials=net.credentials(0),
        precision=CPU,
    )
    yield remote
    remote.close()


def batch(net: Any, seed: int = 0, samples: int = 16) -> Tensor:
    return torch.rand(samples, *net.shape, generator=torch.Generator().manual_seed(seed))


def gradient(logits: Tensor, labels: Tensor | None = None) -> Tensor:
    outputs = logits.clone().requires_grad_()
    labels = torch.arange(len(logits)) % 10 if labels is None else labels
    (values,) = torch.autograd.grad(F.cross_entropy(outputs, labels), outputs)
    return values


def step(remote: RemoteServer, activation: Tensor, factor: float = 1.0) -> Tensor:
    logits = remote.forward(Activation(activation)).values
    return remote.backward(LogitGradient(factor * gradient(logits))).values


@pytest.mark.parametrize("factor", [1e-36, 1e-26, 1e-3, 1e4, 1e12])
def test_a_client_that_scales_its_gradients_is_out_and_told_why(
    net: Any, service: Any, factor: float
) -> None:
    with connected(net, service) as remote:
        step(remote, batch(net))
        with pytest.raises(
            Refused, match=r"\(loss\): The logit gradient is not one of the agreed loss"
        ) as refused:
            step(remote, batch(net, 1), factor)
    assert refused.value.reason is Reason.LOSS
    assert service.metrics.rejections()[Reason.LOSS] == 1
    outcome = service.wait_round(timeout=120, minimum=0)
    assert (outcome.clients[0].status, outcome.clients[0].reason) == (Status.EXPELLED, Reason.LOSS)


@pytest.mark.parametrize("factor", [1e-26, 1e-3, 1e4])
def test_where_the_loss_cannot_be_judged_scaling_changes_nothing(
    make_net: Callable[..., Any], factor: float
) -> None:
    # bfloat16 rounds a factor's multiple of a gradient otherwise than the gradient.
    net = make_net(federation={"loss": "any"}, run={"precision": "float32"})
    answers = []
    for scale in (1.0, factor):
        with net.service() as service, connected(net, service) as remote:
            answers.append(step(remote, batch(net), scale).double() / scale)
    torch.testing.assert_close(answers[1], answers[0], rtol=1e-3, atol=1e-7)


def test_one_sample_with_every_label_is_refused_or_counted(make_net: Callable[..., Any]) -> None:
    counting = make_net()
    copies = batch(counting)
    copies[1:10] = copies[0]
    with counting.service() as service, connected(counting, service) as remote:
        step(remote, copies)
        remote.finish()
        outcome = service.wait_round(timeout=120)
        assert outcome.clients[0].repeated == 9
        assert "sigil_repeated_activations_total 9.0" in service.metrics.text()

    refusing = make_net(federation={"repeated_activations": "refuse"})
    with refusing.service() as service, connected(refusing, service) as remote:
        with pytest.raises(Refused, match=r"\(repeated\): 9 of the 16 samples"):
            step(remote, copies)
        assert service.metrics.rejections()[Reason.REPEATED] == 1


def test_a_batch_can_be_asked_again_only_as_the_next_epoch(make_net: Callable[..., Any]) -> None:
    net = make_net(federation={"repeated_activations": "refuse", "local_epochs": 2})
    with net.service() as service, connected(net, service) as remote:
        step(remote, batch(net))
        step(remote, batch(net))
        with pytest.raises(Refused, match=r"\(repeated\): 16 of the 16 samples"):
            step(remote, batch(net))


@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
@pytest.mark.parametrize("agreed", [{}, {"label_smoothing": 0.1}, {"loss_reduction": "sum"}])
def test_honest_clients_pass(make_net: Callable[..., Any], wire: str, agreed: dict[str, Any]) -> None:
    net = make_net(federation={**agreed, "repeated_activations": "refuse"})
    with net.service(wire=wire) as service:
        local = net.local()
        _, outcome, _ = net.round(service, local.client_state, service.initial_state, 1, wire=wire)
        assert outcome.finished == [0, 1, 2]
        assert not any(service.metrics.rejections().values())


def test_shares_across_machines_are_those_of_one_process(make_net: Callable[..., Any]) -> None:
    net = make_net(federation={"clients": 4, "rounds": 1})
    secret = Key.generate("ACME", shape=net.shape, bits=16, seed=bytes(range(32)), scheme="shares")
    net = replace(net, key=secret)
    local = net.local()
    start = {name: value.clone() for name, value in local.client_state.items()}
    with net.service() as service:
        averaged, _, _ = net.round(service, start, service.initial_state, 1)
    local.run_round()
    for name, value in local.client_state.items():
        assert torch.equal(averaged[name], value)
    whole = replace(net, key=Key.generate("ACME", shape=net.shape, bits=16, seed=bytes(range(32)))).local()
    whole.run_round()
    assert any(not torch.equal(whole.client_state[name], value) for name, value in averaged.items())


def test_a_roster_that_does_not_fit_the_shares_is_refused(make_net: Callable[..., Any]) -> None:
    net = make_net(federation={"clients": 4, "rounds": 1})
    secret = Key.generate("ACME", shape=net.shape, bits=16, scheme="shares")
    training = replace(net, key=secret).local().training
    some = {client: net.fingerprints[client] for client in (0, 1, 3)}
    network = NetworkSettings(some, credentials=None, listen="127.0.0.1:0", minimum=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"numbered 0 to 3 before the first round"):
        RemoteTrainer(training, messenger=None, network=network)  # type: ignore[arg-type]
    with net.service() as service, pytest.raises(ConfigError, match="Client 7 is none of the 4 clients"):
        service.open_round(1, service.initial_state, lr=0.1, clients={7: net.fingerprints[0]})
