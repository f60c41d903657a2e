"""VGG11: its published parameter count, and what is its own."""

from __future__ import annotations

import pytest
import torch

from sigil import models


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
