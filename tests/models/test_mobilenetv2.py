"""MobileNetV2 row by row against the paper's table, and its published parameter count."""

from __future__ import annotations

import math

import pytest
import torch

from sigil import models

# Row, shape of the output, dimension: the table of MobileNetV2 in appendix A of the paper.
TABLE = [
    ("conv1", (32, 64, 64), 131_072),
    ("group1", (16, 64, 64), 65_536),
    ("group2", (24, 32, 32), 24_576),
    ("group3", (32, 16, 16), 8_192),
    ("group4", (64, 8, 8), 4_096),
    ("group5", (96, 8, 8), 6_144),
    ("group6", (160, 4, 4), 2_560),
    ("group7", (320, 4, 4), 5_120),
    ("conv2", (1280, 4, 4), 20_480),
    ("avgpool", (1280, 1, 1), 1_280),
    ("flatten", (1280,), 1_280),
    ("fc", (200,), 200),
]


@pytest.fixture(scope="module")
def outputs() -> dict[str, torch.Tensor]:
    """What each row of the model at its standard width makes of two images."""
    model = models.build("mobilenetv2", classes=200, seed=0).eval()
    activation = torch.zeros(2, 3, 64, 64)
    made = {}
    with torch.no_grad():
        for row, module in model.named_children():
            activation = made[row] = module(activation)
    return made


@pytest.mark.parametrize(("row", "shape", "dimension"), TABLE)
def test_row_has_the_shape_of_the_table(
    outputs: dict[str, torch.Tensor], row: str, shape: tuple[int, ...], dimension: int
) -> None:
    assert outputs[row].shape == (2, *shape)
    assert math.prod(outputs[row].shape[1:]) == dimension


def test_rows_are_those_of_the_table_in_order(outputs: dict[str, torch.Tensor]) -> None:
    assert list(outputs) == [row for row, _, _ in TABLE]
    assert models.cut_points("mobilenetv2") == [row for row, _, _ in TABLE][:-1]


def test_published_parameter_count() -> None:
    """MobileNetV2 with 1,000 classes is known to have 3,504,872 parameters."""
    model = models.build("mobilenetv2", classes=1000, seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) == 3_504_872


def test_the_default_cut_is_that_of_the_paper() -> None:
    assert models.default_cut("mobilenetv2") == "group6"


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
