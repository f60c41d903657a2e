"""Which layers share channels, against what the architectures really are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import nn

from sigil import models
from sigil.errors import ModelError
from sigil.models.spec import architecture, channel_topology
from sigil.models.topology import IMAGE, LOGITS, Topology

WIDTHS = [(name, width) for name in models.names() for width in (1, 4, 7)]


def described(name: str, width: int) -> tuple[models.Model, Topology, dict[str, int]]:
    model = models.build(name, classes=5, width=width, seed=0)
    topology = channel_topology(model.spec)
    return model, topology, {IMAGE: 3, **topology.sizes(model)}


@pytest.mark.parametrize(("name", "width"), WIDTHS)
def test_every_cut_shows_the_channels_that_the_topology_says(name: str, width: int) -> None:
    model, topology, sizes = described(name, width)
    assert list(topology.cuts) == models.cut_points(name)
    for cut, spaces in topology.cuts.items():
        shape = models.activation_shape(model, (3, 32, 32), cut=cut)
        assert sum(sizes[space] for space in spaces) == shape[0], cut


@pytest.mark.parametrize(("name", "width"), WIDTHS)
def test_every_layer_is_on_the_topology_with_the_channels_it_has(name: str, width: int) -> None:
    model, topology, sizes = described(name, width)
    found = set()
    for link in topology.links:
        layer = model.get_submodule(link.layer)
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        found.add(link.layer)
        inputs, outputs = sum(sizes[space] for space in link.reads), sizes[link.writes]
        if isinstance(layer, nn.Linear):
            assert (layer.in_features, layer.out_features) == (inputs, outputs), link
        elif not link.reads:
            assert layer.groups == layer.in_channels == layer.out_channels == outputs, link
        else:
            assert (layer.groups, layer.in_channels, layer.out_channels) == (1, inputs, outputs), link
        for norm, channels in ((link.before, inputs), (link.after, outputs)):
            if norm is not None:
                assert model.get_submodule(norm).num_features == channels, link
                found.add(norm)
    kinds = (nn.Conv2d, nn.Linear, nn.BatchNorm2d)
    assert found == {path for path, layer in model.named_modules() if isinstance(layer, kinds)}
    assert {link.writes for link in topology.links} >= topology.linear | topology.bounded
    assert topology.links[0].reads == (IMAGE,)
    assert topology.links[-1].writes == LOGITS


def test_a_cut_before_the_batch_norm_leaves_the_channels_linear() -> None:
    topology = channel_topology(models.build("resnet18", width=4, seed=0).spec)
    early = topology.client_half("conv1", ("conv1",))
    assert [(link.layer, link.after) for link in early.links] == [("conv1", None)]
    assert early.linear == {"layer1"}
    later = topology.client_half("bn1", ("conv1", "bn1"))
    assert later.links[0].after == "bn1"
    assert not later.linear
    assert not later.rectified


def test_a_cut_behind_the_last_norm_is_rectified() -> None:
    model = models.build("densenet121", width=4, seed=0)
    topology = channel_topology(model.spec)
    for cut, rectified in (("block4", False), ("norm_final", True), ("avgpool", True)):
        rows = [name for name, _ in models.split(model, cut)[0].named_children()]
        half = topology.client_half(cut, rows)
        assert half.rectified is rectified, cut
        assert half.links[-1].layer == "block4.15.conv2"


@pytest.mark.parametrize("name", ["resnet50", "", "densenet"])
def test_an_unknown_architecture_is_one_sentence(name: str) -> None:
    with pytest.raises(ModelError, match="there is no architecture"):
        architecture(name).topology(8)
    spec = models.build("resnet18", width=4, seed=0).spec
    with pytest.raises(ModelError, match="there is no architecture"):
        channel_topology(replace(spec, name=name))


@pytest.mark.parametrize("name", models.names())
def test_what_a_cut_shows_depends_on_nothing_outside_its_half(name: str) -> None:
    model, topology, _ = described(name, 4)
    for cut, spaces in topology.cuts.items():
        rows = [row for row, _ in models.split(model, cut)[0].named_children()]
        half = topology.client_half(cut, rows)
        assert set(spaces) <= {link.writes for link in half.links}
        assert all(link.layer.partition(".")[0] in rows for link in half.links)
