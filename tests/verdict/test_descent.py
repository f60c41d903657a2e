"""Descent of whole client halves: as they are, disguised, and of strangers."""

from __future__ import annotations

import copy
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from harness.luck import Margin
from sigil import attacks, models
from sigil.attacks.permute import disguise_spaces
from sigil.keys.key import Key
from sigil.models import Model
from sigil.models.spec import channel_topology
from sigil.models.topology import LOGITS, weight_of
from sigil.origin import WEIGHTS
from sigil.verdict.descent import origin_of, restored_origin


def key_of(seed: int, **options: object) -> Key:
    return Key.generate("ACME", shape=(32, 8, 8), bits=8, seed=bytes([seed]) * 32, **options)  # type: ignore[arg-type]


def model(seed: int, name: str = "resnet18") -> Model:
    return models.build(name, classes=10, width=8, input_size=(32, 32), seed=seed)


def descendant(key: Key, *, noise: float = 1.0, name: str = "resnet18") -> Model:
    """A whole model whose client half began with the key's weights and moved."""
    whole = model(1, name)
    key.initialise(whole)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in whole.parameters():
            if parameter.ndim >= 2:
                step = torch.randn(parameter.shape, generator=generator)
                parameter += noise * parameter.std() * step
    return whole


def half(whole: Model, cut: str = "layer3") -> Model:
    return models.split(whole, cut)[0]


@torch.no_grad()
def flipped(half: Model) -> Model:
    """Every second filter and its batch norm's scale change sign together: the same function."""
    for conv, norm in (
        ("conv1", "bn1"),
        ("layer1.0.conv1", "layer1.0.bn1"),
        ("layer2.1.conv2", "layer2.1.bn2"),
    ):
        half.get_submodule(conv).weight[::2] *= -1  # type: ignore[index,operator]
        half.get_submodule(norm).weight[::2] *= -1  # type: ignore[index,operator]
    return half


def test_a_descendant_is_recognised_as_it_is(margin: Margin) -> None:
    key = key_of(1)
    found = origin_of(half(descendant(key)), key)
    assert found is not None
    assert not found.restored
    margin("log10 p", found.log10_p, below=-500)
    stranger = origin_of(half(descendant(key)), key_of(2))
    assert stranger is not None
    margin("log10 p of another key", stranger.log10_p, above=-6)


def test_a_key_without_initial_weights_has_no_origin() -> None:
    assert origin_of(half(model(0)), key_of(1, initialiser=None)) is None
    assert origin_of(nn.ReLU(), key_of(1)) is None


@pytest.mark.parametrize("name", ["resnet18", "vgg11", "mobilenetv2", "densenet121"])
def test_reordered_and_scaled_channels_are_put_back(name: str, margin: Margin) -> None:
    key = key_of(1)
    cut = models.default_cut(name)
    suspect = half(attacks.permute(descendant(key, noise=0.5, name=name), cut=cut, seed=4, scale=0.5), cut)
    found = restored_origin(suspect, key)
    assert found is not None
    margin("log10 p", found.log10_p, below=-40)
    stranger = restored_origin(suspect, key_of(2))
    assert stranger is not None
    margin("log10 p of another key", stranger.log10_p, above=-6)


def test_signs_that_change_with_their_batch_norm_are_put_back(margin: Margin) -> None:
    key = key_of(1)
    suspect = flipped(half(attacks.permute(descendant(key), seed=4)))
    found = restored_origin(suspect, key)
    assert found is not None
    margin("log10 p", found.log10_p, below=-100)


def test_the_order_found_for_strangers_leaves_the_null_where_it_is(margin: Margin) -> None:
    """Matching is free to fit the compared entries, and the held-out ones know nothing of it."""
    stranger = half(model(7))
    found = [restored_origin(stranger, key_of(seed)) for seed in range(40)]
    scores = []
    for one in found:
        assert one is not None
        tested, agreeing = np.array(one.tested), np.array(one.agreeing)
        q = np.array(WEIGHTS)
        scores.append(float((q * (2 * agreeing - tested)).sum() / math.sqrt((q**2 * tested).sum())))
    margin("mean score", abs(float(np.mean(scores))), below=4 / math.sqrt(40))
    margin("deviation of scores", float(np.std(scores)), above=0.6, below=1.5)


def test_what_is_not_finite_is_left_out_and_the_rest_is_compared() -> None:
    """One number used to end the comparison; a rectifier makes zero of a bias of −∞."""
    key = key_of(1)
    suspect = half(attacks.permute(descendant(key), seed=4))
    whole = restored_origin(suspect, key)
    with torch.no_grad():
        suspect.get_submodule("bn1").bias[3] = -torch.inf  # type: ignore[index,operator]
        suspect.get_submodule("conv1").weight[0, 0, 0, 0] = torch.nan  # type: ignore[index,operator]
    damaged = restored_origin(suspect, key)
    assert whole is not None
    assert damaged is not None
    assert damaged.log10_p < 0.95 * whole.log10_p
    assert whole.log10_p < -100


@pytest.mark.parametrize("name", ["resnet18", "vgg11", "mobilenetv2", "densenet121"])
def test_orders_and_scales_of_all_layers_make_no_difference(name: str) -> None:
    """The same signs are tested and agree, whatever the scales: they go over 2^±100."""
    key = key_of(1)
    plain = descendant(key, noise=0.5, name=name)
    cut = models.default_cut(name)
    found = [
        restored_origin(half(disguised(plain, sigma=sigma, seed=5), cut), key) for sigma in (0.0, 3.0, 14.0)
    ]
    assert found[0] is not None
    assert found[0] == found[1] == found[2]
    assert found[0].log10_p < -500


@torch.no_grad()
def disguised(whole: Model, *, sigma: float, seed: int) -> Model:
    """All channels of all layers in another order, each times exp(σ·N(0, 1)), filters before norms too."""
    whole, random = copy.deepcopy(whole).double(), torch.Generator().manual_seed(seed)
    topology = channel_topology(whole.spec)
    sizes = topology.sizes(whole)

    def factors(size: int) -> torch.Tensor:
        return torch.exp(sigma * torch.randn(size, generator=random, dtype=torch.float64))

    for space in dict.fromkeys(link.writes for link in topology.links if link.writes != LOGITS):
        order = torch.randperm(sizes[space], generator=random)
        scale = torch.ones(len(order)).double() if space in topology.bounded else factors(len(order))
        disguise_spaces(whole, [space], order=order, scale=scale)
    for link in topology.links:
        if link.after is not None:
            scale, norm = factors(sizes[link.writes]), whole.get_submodule(link.after)
            weight_of(whole, link.layer).mul_(scale.view(-1, 1, 1, 1))
            norm.running_mean.mul_(scale)  # type: ignore[operator,union-attr]
            norm.running_var.mul_(scale.square())  # type: ignore[operator,union-attr]
    return whole


def test_the_key_draws_what_is_held_out() -> None:
    shape = (32, 32, 3, 3)
    held = key_of(1).held_out("conv1.weight", shape)
    assert held.dtype == torch.bool
    assert tuple(held.shape) == shape
    assert abs(float(held.float().mean()) - 1 / 8) < 0.02
    assert torch.equal(held, key_of(1).held_out("conv1.weight", shape))
    assert not torch.equal(held, key_of(2).held_out("conv1.weight", shape))
    # One in eight of the first key's are the second's too, as for independent draws.
    both = held & key_of(2).held_out("conv1.weight", shape)
    assert abs(float(both.float().mean()) - 1 / 64) < 0.01


def test_a_half_inside_something_larger_is_found() -> None:
    key = key_of(1)
    found = origin_of(nn.Sequential(half(descendant(key)), nn.ReLU()), key)
    assert found is not None
    assert found.log10_p < -500


def test_an_origin_takes_few_bytes_per_weight() -> None:
    """It took 65 in the process that asks, and so 39 GB at width 1024; measured now: 15."""
    code = """
import resource, sys, torch
from sigil import models
from sigil.keys.key import Key
from sigil.verdict.descent import restored_origin
torch.set_num_threads(1)
def half(width, cut):
    return models.split(models.build("resnet18", classes=10, width=width, seed=0), cut)[0].eval()
key = Key.generate("ACME", shape=(8,), bits=4, seed=bytes(32))
restored_origin(half(4, "layer1"), key)
wide = half(64, "layer3")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert restored_origin(wide, key) is not None
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
unit = 1 if sys.platform == "darwin" else 1024
print((after - before) * unit / sum(weight.numel() for weight in wide.parameters()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 30
