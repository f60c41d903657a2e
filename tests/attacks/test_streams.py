"""The description of the streams, against what the architectures really are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sigil import models
from sigil.attacks.streams import disguise, stream_at, streams
from sigil.errors import ModelError


@pytest.mark.parametrize("name", models.names())
def test_every_cut_is_on_exactly_one_stream(name: str) -> None:
    model = models.build(name, width=4, seed=0)
    found = [cut for stream in streams(model) for cut in stream.cuts]
    assert sorted(found) == sorted(models.cut_points(name))


@pytest.mark.parametrize("name", models.names())
def test_touched_layers_have_the_streams_channels(name: str) -> None:
    model = models.build(name, width=4, seed=0)
    for stream in streams(model):
        for touch in stream.touches:
            layer = model.get_submodule(touch.layer)
            stop = sum(stream.slices) if touch.stop is None else touch.stop
            if isinstance(layer, nn.Linear):
                sizes = {"read": layer.in_features}
            elif isinstance(layer, nn.Conv2d):
                outputs = layer.out_channels
                sizes = {"write": outputs, "read": layer.in_channels, "depthwise": outputs}
            else:
                assert isinstance(layer, nn.BatchNorm2d)
                sizes = {"norm": layer.num_features}
            assert stop - touch.start == sizes[touch.role], touch


def test_an_unknown_cut_is_one_sentence() -> None:
    with pytest.raises(ModelError, match="layer9"):
        stream_at(models.build("resnet18", width=4, seed=0), "layer9")


def test_order_and_scale_are_what_the_activation_shows() -> None:
    model = models.build("resnet18", width=4, classes=3, seed=0).eval()
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    before = models.split(model, "layer1")[0](images)
    order, scale = torch.tensor([2, 0, 3, 1]), torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=torch.float64)
    disguise(model, stream_at(model, "layer1"), "layer1", order=order, scale=scale)
    after = models.split(model, "layer1")[0](images)
    torch.testing.assert_close(after, before[:, order] * scale.float().view(-1, 1, 1), rtol=1e-4, atol=1e-5)
