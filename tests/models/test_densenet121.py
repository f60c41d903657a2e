"""DenseNet-121 row by row against the paper's table, and its published parameter count."""

from __future__ import annotations

import math

import pytest
import torch

from sigil import models

# Row, shape of the output, dimension: the table of DenseNet-121 in appendix A of the paper.
TABLE = [
    ("conv_initial", (64, 32, 32), 65_536),
    ("pool0", (64, 16, 16), 16_384),
    ("block1", (256, 16, 16), 65_536),
    ("trans1", (128, 8, 8), 8_192),
    ("block2", (512, 8, 8), 32_768),
    ("trans2", (256, 4, 4), 4_096),
    ("block3", (1024, 4, 4), 16_384),
    ("trans3", (512, 2, 2), 2_048),
    ("block4", (1024, 2, 2), 4_096),
    ("norm_final", (1024, 2, 2), 4_096),
    ("avgpool", (1024, 1, 1), 1_024),
    ("flatten", (1024,), 1_024),
    ("fc", (200,), 200),
]


@pytest.fixture(scope="module")
def outputs() -> dict[str, torch.Tensor]:
    """What each row of the model at its standard width makes of two images."""
    model = models.build("densenet121", classes=200, seed=0).eval()
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
    assert models.cut_points("densenet121") == [row for row, _, _ in TABLE][:-1]


def test_published_parameter_count() -> None:
    """DenseNet-121 with 1,000 classes is known to have 7,978,856 parameters."""
    model = models.build("densenet121", classes=1000, seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) == 7_978_856


def test_the_default_cut_is_that_of_the_paper() -> None:
    assert models.default_cut("densenet121") == "trans3"


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
