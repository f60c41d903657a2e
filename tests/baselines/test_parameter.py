from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from harness.luck import Margin
from sigil.baselines import ParameterMark
from sigil.errors import ConfigError
from sigil.federation.observers import Step

NOW = Step(1, 0, 1)


def half() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3))


def test_the_added_gradient_is_autograd_of_the_loss() -> None:
    network, mark = half(), ParameterMark(bits=20, weight=0.3)
    kernel = network[3].weight
    kernel.grad = torch.full_like(kernel, 0.25)
    mark.on_update(NOW, network)
    matrix, target = mark._secret(kernel)
    leaf = kernel.detach().clone().requires_grad_()
    logits = matrix @ leaf.mean(0).flatten()
    loss = 0.3 * F.binary_cross_entropy_with_logits(logits, target, reduction="sum")
    (want,) = torch.autograd.grad(loss, leaf)
    torch.testing.assert_close(kernel.grad - 0.25, want, rtol=1e-4, atol=1e-7)


def test_descent_embeds_the_bits_and_another_seed_reads_noise(margin: Margin) -> None:
    network, mark = half(), ParameterMark(bits=50)
    kernel = network[3].weight
    before = mark.verify(network).wsr
    for _ in range(300):
        kernel.grad = torch.zeros_like(kernel)
        mark.on_update(NOW, network)
        with torch.no_grad():
            kernel -= 2.0 * kernel.grad
    margin("before", before, below=0.9)
    assert mark.verify(network).wsr == 1.0
    assert mark.verify(network).trials == 50
    margin("another seed", ParameterMark(seed=1).verify(network).wsr, below=0.75)


def test_depthwise_convolutions_are_passed_over() -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=8))
    network[0].weight.grad = torch.zeros_like(network[0].weight)
    ParameterMark(bits=4).on_update(NOW, network)
    assert float(network[0].weight.grad.abs().sum()) > 0


def test_impossible_marks_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs a convolution"):
        ParameterMark().verify(nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="no gradient"):
        ParameterMark().on_update(NOW, half())
    with pytest.raises(ConfigError, match="The number of bits is 0"):
        ParameterMark(bits=0)
