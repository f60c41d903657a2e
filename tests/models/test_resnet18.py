"""ResNet-18: its published parameter count, and what is its own."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sigil import models
from sigil.models.resnet18 import BatchNormReLU


def test_published_parameter_count() -> None:
    """The small-image ResNet-18 with 10 classes is known to have 11,173,962 parameters."""
    model = models.build("resnet18", classes=10, seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) == 11_173_962


def test_state_dict_keys_are_the_well_known_ones() -> None:
    keys = set(models.build("resnet18", width=2, seed=0).state_dict())
    assert {"conv1.weight", "bn1.weight", "bn1.running_var", "fc.weight", "fc.bias"} <= keys
    assert {"layer1.0.conv1.weight", "layer3.1.bn2.bias", "layer4.0.downsample.0.weight"} <= keys
    assert "layer1.0.downsample.0.weight" not in keys  # no shortcut where nothing changes shape
    assert len(keys) == 122


def test_digits_shrink_to_one_pixel() -> None:
    model = models.build("resnet18", width=8, channels=1, input_size=8, seed=0)
    assert models.activation_shape(model, (1, 8, 8), cut="layer4") == (64, 1, 1)
    logits = model(torch.rand(4, 1, 8, 8))
    assert logits.shape == (4, 10)
    assert logits.isfinite().all()


@pytest.mark.parametrize("size", [8, 7, 1])
def test_the_shortcut_is_a_strided_convolution(size: int) -> None:
    """Picking pixels first gives what a 1×1 convolution of stride 2 gives, gradients included."""
    shortcut = models.build("resnet18", width=4, seed=0).get_submodule("layer2.0.downsample")
    weight = shortcut.get_submodule("0").weight
    activation = torch.randn(3, 4, size, size, requires_grad=True)
    expected = F.conv2d(activation, weight, stride=2)
    upstream = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, (activation, weight), upstream)

    picked = shortcut.get_submodule("0")(shortcut.get_submodule("subsample")(activation))
    torch.testing.assert_close(picked, expected)
    torch.testing.assert_close(torch.autograd.grad(picked, (activation, weight), upstream), gradients)


@pytest.mark.parametrize("training", [True, False])
def test_the_fused_norm_equals_batch_norm_then_relu(training: bool) -> None:
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


def test_its_keys_are_those_of_a_batch_norm() -> None:
    assert set(BatchNormReLU(2).state_dict()) == set(nn.BatchNorm2d(2).state_dict())


def test_its_input_is_untouched() -> None:
    given = torch.randn(2, 3, 4, 4)
    before = given.clone()
    BatchNormReLU(3)(given)
    assert torch.equal(given, before)
