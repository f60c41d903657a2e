"""VGG11 row by row against the paper's table, and its published parameter count."""

from __future__ import annotations

import math

import pytest
import torch

from sigil import models

# Row, shape of the output, dimension: the table of VGG11 in appendix A of the paper.
TABLE = [
    ("stage1", (64, 32, 32), 65_536),
    ("pool1", (64, 16, 16), 16_384),
    ("stage2", (128, 16, 16), 32_768),
    ("pool2", (128, 8, 8), 8_192),
    ("stage3", (256, 8, 8), 16_384),
    ("pool3", (256, 4, 4), 4_096),
    ("stage4", (512, 4, 4), 8_192),
    ("pool4", (512, 2, 2), 2_048),
    ("stage5", (512, 2, 2), 2_048),
    ("pool5", (512, 1, 1), 512),
    ("avgpool", (512, 1, 1), 512),
    ("flatten", (512,), 512),
    ("fc", (10,), 10),
]


@pytest.fixture(scope="module")
def outputs() -> dict[str, torch.Tensor]:
    """What each row of the model at its standard width makes of two images."""
    model = models.build("vgg11", classes=10, seed=0).eval()
    activation = torch.zeros(2, 3, 32, 32)
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
    assert models.cut_points("vgg11") == [row for row, _, _ in TABLE][:-1]


def test_published_parameter_count_of_the_convolutional_part() -> None:
    """VGG11 with batch norm has 9,225,984 parameters before its classifier."""
    model = models.build("vgg11", seed=0)
    counts = {
        row: sum(parameter.numel() for parameter in module.parameters())
        for row, module in model.named_children()
    }
    classifier = counts.pop("fc")
    assert sum(counts.values()) == 9_225_984
    assert classifier == 512 * 512 + 512 + 512 * 10 + 10


def test_the_default_cut_is_that_of_the_paper() -> None:
    assert models.default_cut("vgg11") == "pool4"


def test_average_pooling_is_the_identity_on_the_maps_of_the_table() -> None:
    pool = models.build("vgg11", width=1, seed=0).get_submodule("avgpool")
    activation = torch.randn(3, 512, 1, 1)
    assert torch.equal(pool(activation), activation)


def test_nothing_in_it_is_random() -> None:
    """No dropout: two passes in training mode agree."""
    model = models.build("vgg11", width=2, seed=0)
    images = torch.randn(4, 3, 32, 32)
    assert torch.equal(model(images), model(images))


@pytest.mark.parametrize(("size", "shape"), [(8, (32, 1, 1)), (28, (32, 2, 2)), (64, (32, 4, 4))])
def test_other_sizes_leave_something_at_the_cut(size: int, shape: tuple[int, ...]) -> None:
    model = models.build("vgg11", width=4, seed=0)
    assert models.activation_shape(model, (3, size, size), cut="pool4") == shape
    assert models.activation_shape(model, (3, size, size)) == (10,)
