"""An order and a scale, carried through the layers that share the channels."""

from __future__ import annotations

import pytest
import torch

from sigil import models
from sigil.attacks.permute import disguise, spaces_at
from sigil.errors import AttackError, ModelError


def test_an_unknown_cut_is_one_sentence() -> None:
    with pytest.raises(ModelError, match="layer9"):
        spaces_at(models.build("resnet18", width=4, seed=0), "layer9")


def test_spaces_are_in_the_order_of_the_activation() -> None:
    assert spaces_at(models.build("resnet18", width=4, seed=0), "layer3") == {"layer3": 16}
    dense = spaces_at(models.build("densenet121", width=8, seed=0), "block1")
    assert list(dense.items())[:2] == [("conv_initial", 8), ("block1.0", 4)]
    assert sum(dense.values()) == 32


def test_order_and_scale_are_what_the_activation_shows() -> None:
    model = models.build("resnet18", width=4, classes=3, seed=0).eval()
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    before = models.split(model, "layer1")[0](images)
    order, scale = torch.tensor([2, 0, 3, 1]), torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=torch.float64)
    disguise(model, "layer1", order=order, scale=scale)
    after = models.split(model, "layer1")[0](images)
    torch.testing.assert_close(after, before[:, order] * scale.float().view(-1, 1, 1), rtol=1e-4, atol=1e-5)


def test_channels_behind_relu6_cannot_be_scaled() -> None:
    model = models.build("mobilenetv2", width=4, classes=3, seed=0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(AttackError, match=r"^The channels of 'conv1' have passed ReLU6.*\.$"):
        disguise(model, "conv1", order=torch.arange(4), scale=torch.full((4,), 2.0, dtype=torch.float64))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
