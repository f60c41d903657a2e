"""Layers of a module that share channels, as seen while it computes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from sigil import models
from sigil.alignment.initial_weights import topology_of
from sigil.alignment.own_layers import layers_of, search_own, watched
from sigil.errors import AlignmentError
from sigil.models.topology import IMAGE, HalfTopology

INPUT = (3, 32, 32)


def without_names(topology: HalfTopology) -> tuple[object, ...]:
    """Spaces by the order in which they appear."""
    numbers = {IMAGE: 0}
    for link in topology.links:
        for space in (*link.reads, link.writes):
            numbers.setdefault(space, len(numbers))
    links = [
        (link.layer, [numbers[space] for space in link.reads], numbers[link.writes], link.before, link.after)
        for link in topology.links
    ]
    linear = {numbers[space] for space in topology.linear if space in numbers}
    return links, [numbers[space] for space in topology.at_cut], linear, topology.rectified


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("resnet18", "conv1"),
        ("resnet18", "layer4"),
        ("vgg11", "stage5"),
        ("vgg11", "avgpool"),
        ("mobilenetv2", "group7"),
        ("mobilenetv2", "conv2"),
        ("densenet121", "trans1"),
        ("densenet121", "block2"),
    ],
)
def test_what_is_seen_of_a_known_architecture_is_its_topology(name: str, cut: str) -> None:
    half = models.split(models.build(name, width=8, seed=0), cut)[0].train()
    before = {name: tensor.clone() for name, tensor in half.state_dict().items()}
    assert without_names(watched(half, INPUT)) == without_names(topology_of(half))
    assert half.training, "it is left as it was"
    assert all(torch.equal(before[name], tensor) for name, tensor in half.state_dict().items())


class Odd(nn.Module):
    """Shared, grouped and unused layers, a gate, a pooling that is added to images of another size."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.shared = nn.Conv2d(8, 8, 3, padding=1)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.last = nn.Conv2d(8, 16, 1)
        self.unused = nn.Conv2d(8, 16, 1)
        self.way = "plain"

    def forward(self, images: Tensor) -> Tensor:
        found = torch.relu(self.first(images))
        if self.way == "shared":
            found = self.shared(self.shared(found))
        if self.way == "grouped":
            found = self.grouped(found)
        if self.way == "gated":
            found = found * torch.sigmoid(found.mean((2, 3), keepdim=True))
        if self.way == "flattened":
            return found.flatten(1)
        return self.last(found)


@pytest.mark.parametrize(
    ("way", "seen"),
    [("plain", ["first", "last"]), ("gated", ["first", "last"]), ("shared", None), ("grouped", None)],
)
def test_what_is_not_understood_takes_no_part(way: str, seen: list[str] | None) -> None:
    module = Odd()
    module.way = way
    if seen is None:
        with pytest.raises(AlignmentError, match="cannot be seen"):
            watched(module, INPUT)
    else:
        assert [link.layer for link in watched(module, INPUT).links] == seen


def test_an_answer_without_channels_has_no_order() -> None:
    module = Odd()
    module.way = "flattened"
    with pytest.raises(AlignmentError, match="cannot be seen"):
        search_own(module, copy.deepcopy(module), INPUT)


def test_modules_of_other_origin_have_no_order_in_common() -> None:
    torch.manual_seed(0)
    assert not search_own(Odd(), Odd(), INPUT).result().believed


class Sequence(nn.Module):
    """Equal linear layers on sequences, of which nothing is seen but the order in which they compute."""

    def __init__(self, order: tuple[str, ...]) -> None:
        super().__init__()
        for name in ("one", "two", "three"):
            self.add_module(name, nn.Linear(32, 32))
        self.order = order

    def forward(self, images: Tensor) -> Tensor:
        found = images.flatten(1, 2)
        for name in self.order:
            found = torch.relu(self.get_submodule(name)(found))
        return found.mean(1)


def test_equal_layers_cannot_change_places() -> None:
    """Who could give each layer the name that suits it, of many equal ones, needs no name of its own."""
    first, again, other = (
        layers_of(Sequence(order), INPUT)
        for order in (("one", "two", "three"), ("one", "two", "three"), ("two", "one", "three"))
    )
    assert first == again
    assert first != other
    with pytest.raises(AlignmentError, match="cannot be seen"):
        watched(Sequence(("one",)), INPUT)
