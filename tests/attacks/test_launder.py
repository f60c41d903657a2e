"""Noise in the weights, white and shaped by what a layer sees, and several attacks in one training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sigil import attacks, models
from sigil.attacks.halves import open_at_cut
from sigil.attacks.launder import _moments, _patches, add_noise
from sigil.attacks.training import TUNING
from sigil.data import Dataset
from sigil.errors import AttackError


def noise_of(marked: Any, digits: Dataset, **options: Any) -> dict[str, torch.Tensor]:
    """What laundering adds to each filter (filters, n), by the layers' names."""
    opened = open_at_cut(marked.whole, digits, "pool2")
    before = {name: layer.weight.detach().clone() for name, layer in opened.filtering()}
    effect = add_noise(opened, digits, TUNING, **options)
    assert effect.before_step is not None
    effect.before_step(0, 9)
    first = {name: layer.weight.detach().clone() for name, layer in opened.filtering()}
    effect.before_step(1, 9)
    assert all(torch.equal(layer.weight, first[name]) for name, layer in opened.filtering())
    return {name: (first[name] - before[name]).flatten(1) for name in before}


@pytest.mark.parametrize("shape", [0.0, 0.7])
def test_noise_has_the_size_of_its_filter(marked: Any, digits: Dataset, shape: float) -> None:
    for name, noise in noise_of(marked, digits, noise=0.5, shape=shape).items():
        spread = marked.whole.get_submodule(name).weight.detach().flatten(1).std(1, correction=0)
        # Means over 8 and 16 filters of 9 and 72 weights from a fixed seed.
        assert float((noise.square().mean(1) / spread.square()).mean().sqrt()) == pytest.approx(0.5, rel=0.25)


def test_shaped_noise_goes_where_inputs_hardly_vary(marked: Any, digits: Dataset) -> None:
    opened = open_at_cut(marked.whole, digits, "pool2")
    layers = dict(opened.filtering())
    moments = dict(zip(layers, _moments(opened, list(layers.values()), digits), strict=True))
    white, shaped = (noise_of(marked, digits, noise=1.0, shape=shape) for shape in (0.0, 0.7))
    for name, moment in moments.items():
        felt, unfelt = (
            float(((noise[name].double() @ moment) * noise[name]).sum()) for noise in (white, shaped)
        )
        assert unfelt < felt / 2, name


def test_patches_are_what_filters_are_applied_to() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, 4, 6, 6, generator=generator)
    for groups in (1, 2):
        layer = nn.Conv2d(4, 2, 3, stride=2, padding=1, groups=groups, bias=False)
        patches = _patches(layer, images).view(2, 9, groups, -1)
        filters = layer.weight.flatten(1)
        found = [patches[:, :, channel * groups // 2] @ filters[channel] for channel in range(2)]
        expected = layer(images).flatten(2)
        torch.testing.assert_close(torch.stack(found, 1), expected, rtol=1e-4, atol=1e-5)


def test_only_rows_up_to_the_cut_get_noise(marked: Any, digits: Dataset) -> None:
    laundered = attacks.launder(marked.halves, digits, noise=0.5, steps=1, lr=1e-12)
    for given, made in zip(marked.halves, laundered, strict=True):
        for (name, old), new in zip(given.named_parameters(), made.parameters(), strict=True):
            noisy = given is marked.halves[0] and old.ndim > 1
            assert torch.allclose(old, new, atol=1e-6) != noisy, name


def test_erasing_one_thing_is_that_attack(marked: Any, digits: Dataset) -> None:
    options: dict[str, Any] = {"steps": 2, "cut": "pool2"}
    initial = models.build("vgg11", classes=10, width=8, channels=1, input_size=8, seed=1)

    def same(one: Any, other: Any) -> bool:
        return all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())

    whole, erase = marked.whole, attacks.erase
    best: dict[str, Any] = {"tuning": attacks.BEST}
    flat = attacks.read(whole, digits, way="flatten", gamma=3.0, **best, **options)[0]
    assert same(erase(whole, digits, flatten=3.0, **options), flat)
    pushed = attacks.read(whole, digits, reversal=0.5, gamma=2.0, **best, **options)[0]
    assert same(erase(whole, digits, push=2.0, reversal=0.5, **options), pushed)
    turned = attacks.orthogonalise(whole, digits, initial, strength=0.5, keep=True, **best, **options)
    assert same(erase(whole, digits, initial, orthogonalise=0.5, keep=True, **options), turned)
    noisy = attacks.launder(whole, digits, noise=0.3, **options)
    assert same(erase(whole, digits, noise=0.3, **options), noisy)
    both = erase(whole, digits, flatten=3.0, noise=0.3, **options)
    assert not same(both, flat)
    assert not same(both, noisy)


def test_bad_input(marked: Any, digits: Dataset) -> None:
    with pytest.raises(AttackError, match="Nothing is to be erased"):
        attacks.erase(marked.whole, digits)
    with pytest.raises(AttackError, match="initial weights"):
        attacks.erase(marked.whole, digits, orthogonalise=1.0)
    with pytest.raises(AttackError, match="noise"):
        attacks.launder(marked.whole, digits, noise=-1.0)
    with pytest.raises(AttackError, match="features"):
        attacks.extract(marked.whole, marked.whole, digits, features=1.0)
