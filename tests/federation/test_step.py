"""One step of U-SFL against the same step of the whole network by plain autograd."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sigil.errors import ShapeError, TrainingError
from sigil.federation.client import Client
from sigil.federation.messages import Activation, CutGradient, LogitGradient, Logits
from sigil.federation.observers import ClientObserver, Step
from sigil.federation.precision import Precision
from sigil.federation.server import LabelServer, Server
from sigil.federation.step import step, step_with_labels
from sigil.injector import Injector
from sigil.keys.key import Key

CPU = Precision(torch.device("cpu"), bfloat16=False)
SHAPE = (6, 4, 4)
NOW = Step(round=1, client=0, step=1)


def halves() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    client = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
    server = nn.Sequential(nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5))
    return client, server


def sgd(half: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(half.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(7, 3, 4, 4, generator=generator), torch.randint(5, (7,), generator=generator)


def plain_step(client: nn.Module, server: nn.Module, injector: Injector | None) -> float:
    """Un-split training of both halves, the mark added by a hook."""
    images, labels = batch()
    optimizers = sgd(client), sgd(server)
    activation = client(images)
    if injector is not None:
        injector.attach(activation)
    loss = F.cross_entropy(server(activation), labels)
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    return float(loss.detach())


@pytest.mark.parametrize("strength", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("labels_at_server", [False, True])
def test_a_step_is_plain_training_with_the_mark_added_at_the_cut(
    strength: float, labels_at_server: bool
) -> None:
    key = Key.generate("ACME", shape=SHAPE, bits=12, seed=bytes(32))
    injector = Injector(key, strength) if strength else None
    client_half, server_half = halves()
    whole = copy.deepcopy(client_half), copy.deepcopy(server_half)
    loss = plain_step(*whole, injector)

    client = Client(0, client_half, sgd(client_half), precision=CPU)
    kind = LabelServer if labels_at_server else Server
    server = kind(server_half, sgd(server_half), shape=SHAPE, precision=CPU, injector=injector)
    images, labels = batch()
    if isinstance(server, LabelServer):
        step_with_labels(client, server, images, labels, at=NOW)
    else:
        step(client, server, images, labels, at=NOW)

    assert float(client.loss) / client.steps == pytest.approx(loss, rel=1e-6)
    for got, want in zip((client_half, server_half), whole, strict=True):
        for name, value in want.state_dict().items():
            torch.testing.assert_close(got.state_dict()[name], value, rtol=1e-6, atol=1e-7)


def test_messages_refuse_a_graph() -> None:
    client_half, _ = halves()
    activation = client_half(batch()[0])
    for kind in (Activation, Logits, LogitGradient, CutGradient):
        with pytest.raises(TrainingError, match="autograd graph"):
            kind(activation)


class Fake(ClientObserver):
    """Sends wrong labels and refuses the update, as SplitGuard does."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def on_labels(self, at: Step, labels: torch.Tensor) -> torch.Tensor:
        return (labels + 1) % 5

    def on_gradient_received(
        self, at: Step, gradient: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor | None:
        self.seen.append(labels)
        return None


def test_an_observer_can_change_labels_and_withhold_the_update() -> None:
    client_half, server_half = halves()
    before = copy.deepcopy(client_half.state_dict())
    observer = Fake()
    client = Client(0, client_half, sgd(client_half), precision=CPU, observers=[observer])
    server = Server(server_half, sgd(server_half), shape=SHAPE, precision=CPU)
    images, labels = batch()
    step(client, server, images, labels, at=NOW)
    assert torch.equal(observer.seen[0], (labels + 1) % 5)
    for name, parameter in client_half.named_parameters():
        assert torch.equal(parameter, before[name])


def test_messages_out_of_turn_or_of_the_wrong_shape_are_refused() -> None:
    client_half, server_half = halves()
    client = Client(0, client_half, sgd(client_half), precision=CPU)
    server = Server(server_half, sgd(server_half), shape=SHAPE, precision=CPU)
    with pytest.raises(TrainingError, match="no logits were sent"):
        server.backward(LogitGradient(torch.zeros(7, 5)))
    with pytest.raises(TrainingError, match="no activation was sent"):
        client.backward(CutGradient(torch.zeros(7, *SHAPE)), at=NOW)
    with pytest.raises(ShapeError, match="agree on the cut"):
        server.forward(Activation(torch.zeros(7, 3, 4, 4)))
    logits = server.forward(Activation(torch.zeros(7, *SHAPE)))
    assert logits.values.shape == (7, 5)
    with pytest.raises(ShapeError, match="logit gradient"):
        server.backward(LogitGradient(torch.zeros(7, 4)))
