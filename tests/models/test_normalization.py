"""Batch norm and ReLU in one module are what they are in two."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from sigil.models.normalization import BatchNormReLU


@pytest.mark.parametrize("training", [True, False])
def test_equals_batch_norm_then_relu(training: bool) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(3)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    norm.running_mean.normal_()
    fused = BatchNormReLU(3)
    fused.load_state_dict(norm.state_dict())
    two = nn.Sequential(copy.deepcopy(norm), nn.ReLU()).train(training)
    fused.train(training)

    inputs = [torch.randn(4, 3, 5, 5, requires_grad=True)]
    inputs.append(inputs[0].detach().clone().requires_grad_())
    upstream = torch.randn(4, 3, 5, 5)
    outputs = [two(inputs[0]), fused(inputs[1])]
    for output in outputs:
        output.backward(upstream)

    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(inputs[0].grad, inputs[1].grad)
    assert torch.equal(two[0].weight.grad, fused.weight.grad)
    assert torch.equal(two[0].running_mean, fused.running_mean)


def test_keys_are_those_of_a_batch_norm() -> None:
    assert set(BatchNormReLU(2).state_dict()) == set(nn.BatchNorm2d(2).state_dict())


def test_the_input_is_untouched() -> None:
    given = torch.randn(2, 3, 4, 4)
    before = given.clone()
    BatchNormReLU(3)(given)
    assert torch.equal(given, before)
