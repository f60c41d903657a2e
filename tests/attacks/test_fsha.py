"""The hijacking server: its parts against autograd, its reconstructions, and what detectors say of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from harness.luck import Margin
from sigil import data
from sigil.attacks.fsha import FSHA
from sigil.detectors import Detector, GradientScrutinizer, SplitGuard
from sigil.errors import AttackError
from sigil.federation import Activation, Client, LogitGradient, Server, Step, step
from sigil.federation.precision import Precision

CPU = Precision(torch.device("cpu"), bfloat16=False)
SHAPE = (16, 4, 4)
STEPS = 300


@dataclass
class Digits:
    """The attacker's images, and the client's, of which it has none."""

    public: Tensor
    private: Tensor
    labels: Tensor


@pytest.fixture(scope="module")
def digits() -> Digits:
    found = data.load("digits")
    images = (torch.tensor(np.asarray(found.train.images)).float() / 255 - found.mean[0]) / found.std[0]
    half = len(images) // 2
    return Digits(images[:half], images[half:], torch.tensor(found.train.labels[half:]))


def client_half() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 16, 4, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU())


def server_half() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10))


def adam(half: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(half.parameters(), lr=3e-3, fused=True)


@dataclass
class Training:
    client: nn.Module
    server: Server
    attacker: FSHA
    detectors: list[Detector]
    loss: float


def train(digits: Digits, *, hijacked: bool) -> Training:
    """The same client, with a server that trains what was agreed or one that does not."""
    attacker = FSHA(digits.public, SHAPE, width=16, lr=3e-3, discriminator_lr=3e-3)
    arguments: dict[str, Any] = {"shape": SHAPE, "precision": CPU}
    half = server_half()
    server = (
        attacker.server(half, adam(half), **arguments) if hijacked else Server(half, adam(half), **arguments)
    )
    detectors: list[Detector] = [SplitGuard(10), GradientScrutinizer()]
    own = client_half()
    client = Client(0, own, adam(own), precision=CPU, observers=detectors)
    random = torch.Generator().manual_seed(1)
    for number in range(1, STEPS + 1):
        chosen = torch.randint(len(digits.labels), (32,), generator=random)
        at = Step(round=1, client=0, step=number)
        step(client, server, digits.private[chosen], digits.labels[chosen], at=at)
    return Training(own, server, attacker, detectors, float(client.loss) / client.steps)


@pytest.fixture(scope="module")
def hijacked(digits: Digits) -> Training:
    return train(digits, hijacked=True)


@pytest.fixture(scope="module")
def honest(digits: Digits) -> Training:
    return train(digits, hijacked=False)


@torch.no_grad()
def test_the_attacker_sees_the_clients_images(hijacked: Training, digits: Digits, margin: Margin) -> None:
    images = digits.private[:256]
    seen = hijacked.attacker.decode(hijacked.client(images))
    error = float((seen - images).square().mean())
    guess = float((digits.public.mean(0) - images).square().mean())
    margin("error, of the mean image's", error / guess, below=0.65)
    # Each reconstruction is nearer to its own image than to 255 others: by chance one in 256.
    nearest = torch.cdist(seen.flatten(1), images.flatten(1)).argmin(1)
    margin("recognised", float((nearest == torch.arange(256)).float().mean()), above=0.3)


def test_the_client_sees_a_loss_that_falls_like_in_an_honest_training(
    hijacked: Training, honest: Training, margin: Margin
) -> None:
    margin("loss, of a guess", hijacked.loss / np.log(10), below=0.6)
    margin("loss, of an honest one", hijacked.loss / honest.loss, above=1.0)


def test_detectors_tell_the_hijacker_from_an_honest_server(
    hijacked: Training, honest: Training, margin: Margin
) -> None:
    for caught, cleared in zip(hijacked.detectors, honest.detectors, strict=True):
        assert caught.alarm, caught.curves["score"]
        assert not cleared.alarm, cleared.curves["score"]
        assert caught.score is not None
        assert cleared.score is not None
        margin(f"{type(caught).__name__} of the hijacker", caught.score, below=caught.threshold)
        margin(f"{type(cleared).__name__} of an honest server", cleared.score, above=cleared.threshold)


def linear_attacker(weight: Tensor, **options: Any) -> FSHA:
    """An attacker whose discriminator is D(z) = w·z, so that all gradients are known."""
    attacker = FSHA(torch.rand(8, 1, 8, 8), (1, 4, 4), width=4, **options)
    linear = nn.Linear(16, 1, bias=False)
    linear.weight.data = weight.clone()
    attacker.discriminator = nn.Sequential(nn.Flatten(), linear)
    return attacker


def test_the_gradient_penalty_has_one_norm_per_channel_unless_told_otherwise() -> None:
    """Slopes of 3 and 4 in two channels: (3 − 1)² and (4 − 1)², or over all axes (5 − 1)²."""
    features = torch.rand(6, 2, 2, 2)
    for over, wanted in (("channel", (4 + 9) / 2), ("all", 16.0)):
        attacker = FSHA(torch.rand(8, 1, 4, 4), (2, 2, 2), width=4, penalty_over=over)  # type: ignore[arg-type]
        linear = nn.Linear(8, 1, bias=False)
        linear.weight.data = torch.tensor([[3.0, 0, 0, 0, 4.0, 0, 0, 0]])
        attacker.discriminator = nn.Sequential(nn.Flatten(), linear)
        assert attacker.gradient_penalty(features, features).item() == pytest.approx(wanted)


def test_the_gradient_penalty_of_a_linear_discriminator_is_that_of_its_slope() -> None:
    weight = torch.zeros(1, 16)
    weight[0, :2] = torch.tensor([3.0, 4.0])
    attacker = linear_attacker(weight)
    penalty = attacker.gradient_penalty(torch.rand(6, 1, 4, 4), torch.rand(6, 1, 4, 4))
    assert penalty.item() == pytest.approx((5 - 1) ** 2)
    penalty.backward()  # the discriminator learns from it: d (|w| − 1)² / dw = 2 (|w| − 1) w/|w|
    slope = attacker.discriminator[1].weight.grad
    assert slope[0, :2].tolist() == pytest.approx([2 * 4 * 3 / 5, 2 * 4 * 4 / 5], rel=1e-5)


def test_what_goes_back_is_the_gradient_of_minus_the_mean_opinion() -> None:
    weight = torch.arange(16.0)[None]
    gradient = linear_attacker(weight).client_gradient(torch.rand(5, 1, 4, 4))
    torch.testing.assert_close(gradient, (-weight / 5).view(1, 1, 4, 4).expand(5, 1, 4, 4))


def test_strength_sets_the_norm_of_what_goes_back() -> None:
    honest = torch.randn(5, 1, 4, 4)
    attacker = linear_attacker(torch.ones(1, 16), strength=0.1)
    returned = attacker.hijack(torch.rand(5, 1, 4, 4), honest)
    assert float(returned.norm()) == pytest.approx(0.1 * float(honest.norm()), rel=1e-5)
    attacker.strength = None
    assert float(attacker.hijack(torch.rand(5, 1, 4, 4), honest).norm()) == pytest.approx(
        attacker.discriminator[1].weight.norm().item() / 5**0.5, rel=0.05
    )


def test_the_discriminator_learns_to_tell_public_from_private(digits: Digits) -> None:
    attacker = FSHA(digits.public, SHAPE, width=8, discriminator_lr=3e-3)
    private = torch.rand(32, *SHAPE, generator=torch.Generator().manual_seed(0))
    for _ in range(60):
        attacker.hijack(private, private)
    with torch.no_grad():
        public = attacker.encoder(digits.public[:32])
        assert attacker.discriminator(public).mean() > attacker.discriminator(private).mean() + 0.1


def test_its_server_answers_like_an_honest_one_but_for_the_gradient() -> None:
    activation, gradient = torch.rand(4, *SHAPE), torch.randn(4, 10)
    answers = []
    for hijacks in (False, True):
        half = server_half()
        attacker = FSHA(torch.rand(8, 1, 8, 8), SHAPE, width=4)
        make = attacker.server if hijacks else Server
        server = make(half, torch.optim.SGD(half.parameters(), lr=0.1), shape=SHAPE, precision=CPU)
        logits = server.forward(Activation(activation)).values
        returned = server.backward(LogitGradient(gradient)).values
        answers.append((logits, half.state_dict(), returned))
    (logits, state, honest), (same_logits, same_state, hijacking) = answers
    torch.testing.assert_close(logits, same_logits)
    torch.testing.assert_close(state, same_state)
    assert hijacking.shape == honest.shape
    assert not torch.allclose(hijacking, honest, rtol=0.1)


def test_the_same_seed_gives_the_same_attack_and_leaves_the_global_stream_alone() -> None:
    public, activation = torch.rand(8, 1, 8, 8), torch.rand(4, *SHAPE)
    before = torch.get_rng_state()
    one, same, other = (FSHA(public, SHAPE, width=4, seed=seed) for seed in (3, 3, 4))
    gradients = [attacker.hijack(activation, activation) for attacker in (one, same, other)]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(gradients[0], gradients[1])
    assert not torch.equal(gradients[0], gradients[2])


@pytest.mark.parametrize("shape", [(16, 3, 3), (16, 8, 4), (256,)])
def test_a_cut_that_it_cannot_map_is_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(AttackError, match=r"\(8, 1, 8, 8\)"):
        FSHA(torch.rand(8, 1, 8, 8), shape)
