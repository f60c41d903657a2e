"""DenseNet-121: its published parameter count, and what is its own."""

from __future__ import annotations

import pytest
import torch

from sigil import models


def test_published_parameter_count() -> None:
    """DenseNet-121 with 1,000 classes is known to have 7,978,856 parameters."""
    model = models.build("densenet121", classes=1000, seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) == 7_978_856


@pytest.mark.parametrize(("width", "growth"), [(64, 32), (16, 8), (5, 2), (1, 1)])
def test_growth_is_half_the_width(width: int, growth: int) -> None:
    model = models.build("densenet121", width=width, seed=0)
    block = model.get_submodule("block1")
    assert models.activation_shape(block, (width, 2, 2)) == (width + 6 * growth, 2, 2)


def test_a_dense_layer_keeps_what_came_in() -> None:
    layer = models.build("densenet121", width=4, seed=0).get_submodule("block1.0")
    activation = torch.randn(2, 4, 5, 5)
    assert torch.equal(layer(activation)[:, :4], activation)


@pytest.mark.parametrize("size", [8, 28])
def test_small_images_leave_something_at_the_cut(size: int) -> None:
    model = models.build("densenet121", width=4, seed=0)
    assert models.activation_shape(model, (3, size, size), cut="trans3") == (32, 1, 1)
