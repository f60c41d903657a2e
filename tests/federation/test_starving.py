"""A client that scales its logit gradients neither starves the mark nor reads it off."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sigil import data
from sigil.errors import LossError, TrainingError
from sigil.federation.client import Client
from sigil.federation.federation import Federation
from sigil.federation.messages import Activation, LogitGradient, Logits
from sigil.federation.observers import ClientObserver, ServerObserver, Step
from sigil.federation.precision import Precision
from sigil.federation.server import Server
from sigil.federation.settings import make
from sigil.injector import Injector
from sigil.keys.key import Key
from sigil.logit_gradients import Loss

CPU = Precision(torch.device("cpu"), bfloat16=False)
SHAPE = (4, 4, 4)
FACTORS = [1e-36, 1e-26, 1e-6, 0.5, 1e4, 1e12]


class Seen(ServerObserver):
    main: Tensor
    final: Tensor

    def on_gradient_sent(self, at: Step, *, activation: Tensor, main: Tensor, final: Tensor) -> None:
        self.main, self.final = main.double(), final.double()


def step(factor: float, *, loss: Loss | None, cap: bool) -> tuple[Seen, nn.Module]:
    """One step of a client that multiplies its logit gradient."""
    torch.manual_seed(0)
    key = Key.generate("ACME", shape=SHAPE, bits=8, seed=bytes(32))
    half = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5))
    seen = Seen()
    server = Server(
        half,
        torch.optim.SGD(half.parameters(), lr=0.0),
        shape=SHAPE,
        precision=CPU,
        injector=Injector(key, 0.1, cap=cap),
        observers=[seen],
        loss=loss,
    )
    logits = server.forward(Activation(torch.rand(16, *SHAPE))).values.requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(logits, torch.arange(16) % 5), logits)
    server.backward(LogitGradient(gradient * factor))
    return seen, half


@pytest.mark.parametrize("factor", FACTORS)
def test_a_scaled_gradient_is_refused_under_the_agreed_loss(factor: float) -> None:
    with pytest.raises(LossError, match="not one of the agreed loss"):
        step(factor, loss=Loss(), cap=True)


def test_an_honest_gradient_passes() -> None:
    seen, _ = step(1.0, loss=Loss(), cap=True)
    assert 0 < float((seen.final - seen.main).norm() / seen.main.norm()) < 0.1001


@pytest.mark.parametrize("factor", FACTORS)
def test_where_any_loss_is_allowed_the_share_of_the_mark_stays(factor: float) -> None:
    usual, _ = step(1.0, loss=Loss("any"), cap=False)
    scaled, _ = step(factor, loss=Loss("any"), cap=False)
    share = (scaled.final - scaled.main).norm() / scaled.main.norm()
    assert float(share) == pytest.approx(0.1, rel=1e-3)
    # What the client has after dividing again is what it would have had without.
    torch.testing.assert_close(scaled.final / factor, usual.final, rtol=1e-3, atol=1e-7)


def test_with_the_cap_a_scaled_gradient_would_starve_the_mark() -> None:
    starved, _ = step(1e4, loss=None, cap=True)
    assert float((starved.final - starved.main).norm() / starved.main.norm()) < 1e-2


@pytest.mark.parametrize("power", [2.0**-60, 2.0**60])
def test_the_servers_own_gradients_are_scaled_back_exactly(power: float) -> None:
    _, usual = step(1.0, loss=None, cap=False)
    _, scaled = step(power, loss=None, cap=False)
    for one, other in zip(usual.parameters(), scaled.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad * power, other.grad)


def federation(**sections: dict[str, Any]) -> Federation:
    values: dict[str, Any] = {
        "model": {"name": "vgg11", "width": 4, "cut": "pool2"},
        "federation": {"clients": 2, "rounds": 1, "local_epochs": 2, "batch_size": 16},
        "optimizer": {"warmup_rounds": 0, "lr": 0.05},
        "run": {"workers": 1, "device": "cpu"},
    }
    for name, section in sections.items():
        values.setdefault(name, {}).update(section)
    key = Key.generate("ACME", shape=(8, 2, 2), bits=8, seed=bytes(32))
    return Federation(make(values), data.load("digits", train_limit=120, test_limit=20), key=key)


@pytest.mark.parametrize("factor", [1e-26, 1e4])
def test_a_federation_stops_with_one_sentence(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Client.loss_gradient

    def scaled(self: Client, logits: Logits, labels: Tensor, *, at: Step) -> LogitGradient:
        return LogitGradient(factor * honest(self, logits, labels, at=at).values)

    monkeypatch.setattr(Client, "loss_gradient", scaled)
    with pytest.raises(TrainingError, match=r"refused client 0 in round 1: The logit gradient is not one"):
        federation().run_round()


@pytest.mark.parametrize(
    "agreed",
    [
        {},
        {"label_smoothing": 0.1},
        {"label_mixing": True},
        {"loss_reduction": "sum"},
        {"loss": "any"},
        {"repeated_activations": "refuse"},
    ],
)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_honest_clients_pass_under_every_agreement(agreed: dict[str, Any], precision: str) -> None:
    result = federation(federation=agreed, run={"precision": precision}).run_round()
    assert result.images == 240


def test_one_image_with_every_label_is_counted_and_refused() -> None:
    class Combine(ClientObserver):
        def on_batch(self, at: Step, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            images[:10] = images[0].clone()
            labels[:10] = torch.arange(10)
            return images, labels

    counted = federation()
    counted.client_observers.append(Combine())
    result = counted.run_round()
    assert set(result.repeated) == {0, 1}
    assert all(count >= 9 * 6 for count in result.repeated.values())
    refused = federation(federation={"repeated_activations": "refuse"})
    refused.client_observers.append(Combine())
    with pytest.raises(TrainingError, match=r"refused client 0 in round 1: .* sent before in this epoch"):
        refused.run_round()
