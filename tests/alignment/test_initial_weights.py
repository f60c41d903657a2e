"""Channels traced back to initial weights: all architectures and cuts, hidden layers, signs, strangers."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from sigil import attacks, models
from sigil.alignment.initial_weights import search_known
from sigil.attacks.permute import disguise, disguise_spaces, spaces_at
from sigil.errors import AlignmentError
from sigil.models import Model

CONVOLUTIONAL = [
    (name, cut) for name in models.names() for cut in models.cut_points(name) if cut != "flatten"
]
LINEAR = [
    ("resnet18", "conv1"),
    ("mobilenetv2", "group3"),
    ("densenet121", "block2"),
    ("densenet121", "trans1"),
]


def build(name: str, *, seed: int = 0, width: int = 8) -> Model:
    return models.build(name, classes=10, width=width, input_size=(32, 32), seed=seed).eval()


@torch.no_grad()
def trained(initial: Model, *, change: float = 1.0) -> Model:
    """A stand-in for training: every weight moves by noise as large as itself, norms move a little."""
    random = torch.Generator().manual_seed(1)
    model = copy.deepcopy(initial)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            noise = torch.randn(layer.weight.shape, generator=random)
            layer.weight.add_(change * layer.weight.std() * noise)
        elif isinstance(layer, nn.BatchNorm2d):
            assert layer.running_mean is not None
            assert layer.running_var is not None
            for values, size in ((layer.weight, 0.2), (layer.bias, 0.2), (layer.running_mean, 0.1)):
                values.add_(size * torch.randn(values.shape, generator=random))
            layer.running_var.mul_(torch.rand(layer.bias.shape, generator=random) + 0.5)
    return model


def images() -> torch.Tensor:
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def puts_back(suspect: Model, original: Model, initial: Model) -> float:
    """The share of channels that, traced back, are the original's up to a positive scale."""
    match = search_known(suspect, initial).result()
    assert match.believed
    assert match.signs is not None
    signs = torch.from_numpy(match.signs).view(-1, 1, 1)
    wanted, found = original(images()), suspect(images())[:, match.order] * signs
    wanted, found = (values.transpose(0, 1).flatten(1).double() for values in (wanted, found))
    cosines = nn.functional.cosine_similarity(wanted, found, dim=1)
    # A channel that is zero for these images has no direction.
    return float((cosines > 0.999)[wanted.norm(dim=1) > 0].double().mean())


@pytest.mark.parametrize(("name", "cut"), CONVOLUTIONAL)
def test_order_and_scale_are_found_at_every_cut(name: str, cut: str) -> None:
    initial = build(name)
    model = trained(initial, change=0.5)
    disguised = attacks.permute(model, cut=cut, seed=3)
    suspect, original, began = (models.split(some, cut)[0] for some in (disguised, model, initial))
    assert puts_back(suspect, original, began) == 1.0


@pytest.mark.parametrize("name", models.names())
def test_layers_before_the_cut_may_be_reordered_too(name: str) -> None:
    initial = build(name)
    model = trained(initial)
    cut = models.default_cut(name)
    disguised = model
    for place in models.cut_points(name):
        disguised = attacks.permute(disguised, cut=place, seed=4)
    suspect, original = models.split(disguised, cut)[0], models.split(model, cut)[0]
    assert puts_back(suspect, original, initial) == 1.0


def test_channels_inside_a_block_may_be_reordered_too() -> None:
    initial = build("resnet18")
    model = trained(initial)
    disguised = copy.deepcopy(model)
    random = torch.Generator().manual_seed(5)
    for block in ("layer1.0", "layer2.1", "layer3.0", "layer3.1"):
        size = disguised.get_submodule(f"{block}.conv1").out_channels
        assert isinstance(size, int)
        order = torch.randperm(size, generator=random)
        scale = torch.rand(size, generator=random).double() + 0.5
        disguise_spaces(disguised, [block], order=order, scale=scale)
    disguised = attacks.permute(disguised, cut="layer3", seed=3)
    torch.testing.assert_close(disguised(images()), model(images()), rtol=1e-3, atol=1e-3)
    suspect, original = models.split(disguised, "layer3")[0], models.split(model, "layer3")[0]
    assert puts_back(suspect, original, initial) == 1.0


@pytest.mark.parametrize(("name", "cut"), LINEAR)
def test_channels_without_a_rectifier_may_change_sign(name: str, cut: str) -> None:
    initial = build(name)
    model = trained(initial, change=0.5)
    disguised = copy.deepcopy(model)
    sizes = list(spaces_at(disguised, cut).values())
    signs = torch.ones(sum(sizes), dtype=torch.float64)
    # What enters a dense block has been rectified, at least in the first one.
    signs[sizes[0] if name == "densenet121" and cut == "block2" else 0 :: 2] = -1
    disguise(disguised, cut, order=torch.arange(len(signs)), scale=signs)
    torch.testing.assert_close(disguised(images()), model(images()), rtol=1e-3, atol=1e-3)
    disguised = attacks.permute(disguised, cut=cut, seed=3)
    suspect, original = models.split(disguised, cut)[0], models.split(model, cut)[0]
    assert puts_back(suspect, original, initial) == 1.0
    signs_found = search_known(suspect, initial).result().signs
    assert signs_found is not None
    assert (signs_found < 0).any()


def test_filters_may_change_sign_with_their_batch_norm() -> None:
    initial = build("resnet18")
    model = trained(initial)
    disguised = copy.deepcopy(model)
    with torch.no_grad():
        for conv, norm in (
            ("conv1", "bn1"),
            ("layer2.0.conv1", "layer2.0.bn1"),
            ("layer3.1.conv2", "layer3.1.bn2"),
        ):
            norm_layer = disguised.get_submodule(norm)
            assert isinstance(norm_layer, nn.BatchNorm2d)
            assert norm_layer.running_mean is not None
            for values in (disguised.get_submodule(conv).weight, norm_layer.weight, norm_layer.running_mean):
                assert isinstance(values, torch.Tensor)
                values[::2] *= -1
    torch.testing.assert_close(disguised(images()), model(images()), rtol=1e-3, atol=1e-3)
    disguised = attacks.permute(disguised, cut="layer3", seed=3)
    suspect, original = models.split(disguised, "layer3")[0], models.split(model, "layer3")[0]
    assert puts_back(suspect, original, initial) == 1.0
    signs = search_known(suspect, initial).result().signs
    assert signs is not None
    assert (signs > 0).all()


@pytest.mark.parametrize("name", models.names())
def test_a_model_of_other_origin_is_not_believed(name: str) -> None:
    stranger = models.split(trained(build(name, seed=9)), models.default_cut(name))[0]
    found = search_known(stranger, build(name)).result()
    assert not found.believed
    assert found.agreement < 0.3
    assert found.sure < len(found.order) / 2


def test_an_undisguised_model_keeps_its_order() -> None:
    initial = build("vgg11")
    half = models.split(trained(initial), "stage4")[0]
    found = search_known(half, initial).result()
    np.testing.assert_array_equal(found.order, np.arange(64))
    assert found.sure == 64
    assert 0.6 < found.agreement < 0.8  # noise as large as the weights: 1/√2


def test_copies_of_channels_find_no_place() -> None:
    initial = build("vgg11")
    half = models.split(trained(initial), "stage4")[0]
    with torch.no_grad():
        layer = half.get_submodule("stage4.3")
        assert isinstance(layer.weight, torch.Tensor)
        layer.weight[:8] = layer.weight[8:16].clone()
    found = search_known(half, initial).result()
    assert (found.order < 0).sum() >= 8
    kept = np.arange(16, 64)
    np.testing.assert_array_equal(found.order[kept], kept)


@pytest.mark.parametrize(
    ("other", "cut"), [(("vgg11", 8), None), (("resnet18", 4), "layer3"), (("resnet18", 8), "layer2")]
)
def test_initial_weights_of_another_model_are_one_sentence(other: tuple[str, int], cut: str | None) -> None:
    half = models.split(build("resnet18"), "layer3")[0]
    initial = build(other[0], width=other[1])
    if cut is not None:
        initial = models.split(initial, cut)[0]
    with pytest.raises(AlignmentError, match=r"^The initial weights are those of the .*\.$"):
        search_known(half, initial).result()
