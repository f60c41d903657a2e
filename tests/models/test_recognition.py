"""The architecture is read off the weights, and only where they fit entirely."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sigil import models
from sigil.models.recognition import recognise

Shapes = dict[str, tuple[int, ...]]


def shapes(module: nn.Module) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("name", models.names())
@pytest.mark.parametrize(("width", "classes", "channels"), [(8, 10, 3), (4, 7, 1), (12, 200, 3)])
def test_width_classes_and_channels_are_in_the_weights(
    name: str, width: int, classes: int, channels: int
) -> None:
    with torch.device("meta"):
        whole = models.build(name, width=width, classes=classes, channels=channels)
    assert recognise(shapes(whole)) == whole.spec
    counted = {tensor: s for tensor, s in shapes(whole).items() if not tensor.endswith("num_batches_tracked")}
    assert recognise(counted) == whole.spec


@pytest.mark.parametrize("name", models.names())
def test_a_client_half_is_recognised_at_its_cut(name: str) -> None:
    whole = models.build(name, width=4, classes=5)
    half, server = models.split(whole, models.default_cut(name))
    found = recognise(shapes(half))
    assert found is not None
    assert (found.name, found.width, found.part, found.cut) == (name, 4, "client", models.default_cut(name))
    assert recognise(shapes(server)) is None


def test_a_shallower_half_is_cut_where_it_ends() -> None:
    half, _ = models.split(models.build("resnet18", width=4), "layer2")
    found = recognise(shapes(half))
    assert found is not None
    assert found.cut == "layer2"


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.update({"fc.extra": (3,)}),
        lambda s: s.update({"layer3.0.conv1.weight": (1, 1, 3, 3)}),
        lambda s: s.update({"conv1.weight": (4, 3, 3)}),
        lambda s: s.update({"conv1.weight": (10**9, 3, 3, 3)}),
        lambda s: s.update({"conv1.weight": ()}),
        lambda s: s.clear(),
    ],
)
def test_what_does_not_fit_entirely_is_not_recognised(change: object) -> None:
    found = shapes(models.build("resnet18", width=4))
    change(found)  # type: ignore[operator]
    assert recognise(found) is None
