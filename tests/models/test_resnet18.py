"""ResNet-18: its published parameter count, and what is its own."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from sigil import models


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
