"""MobileNetV2: its published parameter count, and what is its own."""

from __future__ import annotations

import pytest
import torch

from sigil import models


def test_published_parameter_count() -> None:
    """MobileNetV2 with 1,000 classes is known to have 3,504,872 parameters."""
    model = models.build("mobilenetv2", classes=1000, seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) == 3_504_872


@pytest.mark.parametrize(
    ("width", "channels"),
    [
        (64, [64, 32, 48, 64, 128, 192, 320, 640, 2560]),
        (8, [8, 4, 6, 8, 16, 24, 40, 80, 320]),
        (4, [4, 2, 3, 4, 8, 12, 20, 40, 160]),
        (5, [5, 3, 4, 5, 10, 15, 25, 50, 200]),  # 2.5 and 3.75 are rounded
        (1, [1, 1, 1, 1, 2, 3, 5, 10, 40]),  # and nothing falls below 1
    ],
)
def test_channels_follow_the_width(width: int, channels: list[int]) -> None:
    model = models.build("mobilenetv2", width=width, seed=0)
    rows = models.cut_points("mobilenetv2")[: len(channels)]
    assert [models.activation_shape(model, (3, 8, 8), cut=row)[0] for row in rows] == channels


def test_residuals_join_blocks_of_equal_shape_only() -> None:
    """With its projection zeroed, a repeated block is the identity and a widening one gives zero."""
    model = models.build("mobilenetv2", width=4, seed=0).eval()
    first, second = model.get_submodule("group2.0"), model.get_submodule("group2.1")
    for block in (first, second):
        torch.nn.init.zeros_(block.get_submodule("project.conv").weight)
    image = torch.randn(2, 2, 8, 8)
    assert not first(image).any()
    activation = torch.randn(2, 3, 4, 4)
    assert torch.equal(second(activation), activation)
