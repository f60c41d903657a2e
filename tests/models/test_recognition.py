"""Client halves are read off the names and shapes of tensors, whatever else there is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from sigil import models
from sigil.models.building import client_halves, tensor_names

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
    counted = {tensor: s for tensor, s in shapes(whole).items() if not tensor.endswith("num_batches_tracked")}
    for held in (shapes(whole), counted):
        found = client_halves(name, held)
        assert [half.cut for half in found] == models.cut_points(name)
        assert {(half.width, half.classes, half.channels) for half in found} == {(width, classes, channels)}


@pytest.mark.parametrize("name", models.names())
def test_a_client_half_ends_at_its_cut(name: str) -> None:
    whole = models.build(name, width=4, classes=5)
    half, server = models.split(whole, models.default_cut(name))
    last = client_halves(name, shapes(half))[-1]
    assert (last.name, last.width, last.part, last.cut) == (name, 4, "client", models.default_cut(name))
    assert not client_halves(name, shapes(server))
    assert all(not client_halves(other, shapes(half)) for other in models.names() if other != name)


def test_the_names_up_to_a_cut_are_those_of_the_half() -> None:
    half, _ = models.split(models.build("resnet18", width=4), "layer2")
    counters = {name for name in half.state_dict() if name.endswith("num_batches_tracked")}
    assert set(tensor_names("resnet18", "layer2")) == half.state_dict().keys() - counters


@pytest.mark.parametrize(
    ("change", "deepest"),
    [
        (lambda s: s.update({"fc.extra": (3,)}), "flatten"),
        (lambda s: s.update({"fc.weight": (10**9, 3)}), "flatten"),
        (lambda s: s.update({"layer3.0.conv1.weight": (1, 1, 3, 3)}), "layer2"),
        (lambda s: s.pop("layer2.0.conv1.weight"), "layer1"),
        (lambda s: s.update({"conv1.weight": (4, 3, 3)}), None),
        (lambda s: s.update({"conv1.weight": (10**9, 3, 3, 3)}), None),
        (lambda s: s.update({"conv1.weight": ()}), None),
        (lambda s: s.clear(), None),
    ],
)
def test_a_half_reaches_as_far_as_everything_fits(
    change: Callable[[Shapes], object], deepest: str | None
) -> None:
    found = shapes(models.build("resnet18", width=4))
    change(found)
    assert [half.cut for half in client_halves("resnet18", found)][-1:] == ([deepest] if deepest else [])
