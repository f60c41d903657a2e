"""Noise on incoming gradients: how much, for whom, and the same again after an interruption."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sigil.attacks import NoiseInjection
from sigil.data import Dataset
from sigil.errors import AttackError
from sigil.federation.federation import Federation
from sigil.federation.observers import Step
from sigil.federation.settings import make

LABELS = torch.zeros(64, dtype=torch.long)


def gradient() -> Tensor:
    return 1e-4 * torch.randn(64, 8, 4, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("reading", "power"), [("power", 30.0), ("amplitude", 900.0)])
def test_the_noise_has_the_power_that_was_asked_for(reading: Any, power: float) -> None:
    sent = gradient()
    received = NoiseInjection(1 / 30, reading=reading).on_gradient_received(Step(1, 0, 1), sent, LABELS)
    noise = received - sent
    assert float(noise.square().sum() / sent.square().sum()) == pytest.approx(power, rel=0.05)
    assert abs(float(noise.mean())) < 4 * float(noise.std()) / noise.numel() ** 0.5
    cosine = float((noise * sent).sum() / (noise.norm() * sent.norm()))
    assert abs(cosine) < 0.05
    assert torch.equal(sent, gradient())


def test_noise_depends_on_seed_round_client_and_step_alone() -> None:
    def noisy(at: Step, seed: int = 0) -> Tensor:
        return NoiseInjection(0.1, seed=seed).on_gradient_received(at, gradient(), LABELS)

    first = noisy(Step(1, 2, 3))
    assert torch.equal(first, noisy(Step(1, 2, 3)))
    others = [
        noisy(Step(2, 2, 3)),
        noisy(Step(1, 1, 3)),
        noisy(Step(1, 2, 4)),
        noisy(Step(1, 2, 3), 1),
    ]
    assert not any(torch.equal(first, other) for other in others)


def test_layout_and_dtype_stay_and_do_not_matter() -> None:
    at = Step(1, 0, 1)
    plain = NoiseInjection(1.0).on_gradient_received(at, gradient(), LABELS)
    sent = gradient().to(memory_format=torch.channels_last)
    last = NoiseInjection(1.0).on_gradient_received(at, sent, LABELS)
    assert last.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(plain, last)
    half = NoiseInjection(1.0).on_gradient_received(at, gradient().bfloat16(), LABELS)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), plain, rtol=0.02, atol=2e-6)


def test_only_the_chosen_clients_and_nothing_without_a_signal() -> None:
    observer = NoiseInjection(0.1, clients=[1])
    sent = gradient()
    assert observer.on_gradient_received(Step(1, 0, 1), sent, LABELS) is sent
    assert not torch.equal(observer.on_gradient_received(Step(1, 1, 1), sent, LABELS), sent)
    silent = torch.zeros_like(sent)
    assert torch.equal(observer.on_gradient_received(Step(1, 1, 1), silent, LABELS), silent)


def test_a_training_goes_on_with_the_same_noise(digits: Dataset) -> None:
    settings = make(
        {
            "model": {"name": "vgg11", "width": 4, "cut": "pool2"},
            "federation": {"clients": 2, "rounds": 2, "local_epochs": 1, "batch_size": 48},
            "optimizer": {"warmup_rounds": 0, "lr": 0.01},
            "watermark": {"strength": 0},
            "run": {"workers": 1},
        }
    )

    def federation(noise: bool = True) -> Federation:
        return Federation(settings, digits, client_observers=[NoiseInjection(0.1)] if noise else [])

    whole, first, second, clean = federation(), federation(), federation(), federation(noise=False)
    whole.run_round()
    whole.run_round()
    first.run_round()
    second.load(1, first.client_state, first.server_state)
    second.run_round()
    clean.run_round()
    assert all(torch.equal(value, second.client_state[name]) for name, value in whole.client_state.items())
    assert not torch.equal(clean.client_state["stage1.0.weight"], first.client_state["stage1.0.weight"])


@pytest.mark.parametrize("snr", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_ratios(snr: float) -> None:
    with pytest.raises(AttackError, match="signal-to-noise"):
        NoiseInjection(snr)


def test_a_bad_reading() -> None:
    bad: Any = "decibel"
    with pytest.raises(AttackError, match="decibel"):
        NoiseInjection(1.0, reading=bad)
