"""Disguises that change no answer of a model: what they do to a whole model of Sigil's, and to its graph.

The tests and ``benchmarks/disguises.py`` compose them at random and ask whether the verdict stays the same::

    case = marked("resnet18")
    copy = scaled(reordered(case.whole, random), random, sigma=3.0)
    verify(models.split(copy, case.key.fields.cut)[0], case.key, case.inputs, ...)
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, interpolate

from sigil import models
from sigil.attacks.channels import disguise_spaces, spaces_at
from sigil.keys.key import Key
from sigil.models import Model
from sigil.models.spec import channel_topology
from sigil.models.topology import LOGITS, weight_of

INPUT = (3, 16, 16)
CUTS = {"resnet18": "layer3", "vgg11": "stage4", "mobilenetv2": "group4", "densenet121": "block2"}

Disguise = Callable[["Case", Model, torch.Generator], Model]


@dataclass(frozen=True)
class Case:
    """A model that carries a key's mark and began with its weights, and the inputs to read it on."""

    key: Key
    whole: Model
    inputs: Tensor

    @property
    def cut(self) -> str:
        """Where the mark is."""
        assert self.key.fields.cut is not None
        return self.key.fields.cut


def pictures(count: int, *, seed: int) -> Tensor:
    """Smooth noise, to which channels respond differently."""
    coarse = torch.randn(count, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
    return interpolate(coarse, size=INPUT[1:], mode="bilinear")


def marked(name: str, *, width: int = 8, bits: int = 50, steps: int = 40) -> Case:
    """A model that began with a key's weights and was pushed towards its mark on pictures and noise."""
    cut = CUTS[name]
    whole = models.build(name, classes=4, width=width, input_size=INPUT[1:], seed=0).eval()
    client, server = models.split(whole, cut)
    key = Key.generate(
        "ACME",
        shape=models.activation_shape(client, INPUT),
        bits=bits,
        seed=bytes(32),
        model=name,
        width=width,
        cut=cut,
        input_shape=INPUT,
    )
    key.initialise(client)
    with torch.no_grad():
        for part in client.modules():
            if isinstance(part, nn.BatchNorm2d):  # statistics as a training leaves them
                part.train()
        client(pictures(256, seed=1))
    client.eval()
    shown = torch.cat(
        [pictures(64, seed=5), torch.randn(64, *INPUT, generator=torch.Generator().manual_seed(6))]
    )
    for _ in range(steps):
        projection = client(shown).flatten(1) @ key.matrix
        loss = binary_cross_entropy_with_logits(projection, key.target.expand_as(projection))
        gradients = torch.autograd.grad(loss, list(client.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(client.parameters(), gradients, strict=True):
                parameter.sub_(0.005 * gradient.sign())
    return Case(key, models.join(client, server).eval(), pictures(300, seed=3))


@torch.no_grad()
def _moved(whole: Model, scale: Callable[[int], Tensor], order: Callable[[int], Tensor]) -> Model:
    whole = copy.deepcopy(whole)
    topology = channel_topology(whole.spec)
    sizes = topology.sizes(whole)
    for space in dict.fromkeys(link.writes for link in topology.links if link.writes != LOGITS):
        size = sizes[space]
        factors = torch.ones(size).double() if space in topology.bounded else scale(size)
        disguise_spaces(whole, [space], order=order(size), scale=factors)
    return whole


def reordered(case: Case, whole: Model, random: torch.Generator) -> Model:
    """The channels of every layer in another order."""
    return _moved(
        whole, lambda size: torch.ones(size).double(), lambda size: torch.randperm(size, generator=random)
    )


def scaled(case: Case, whole: Model, random: torch.Generator, *, sigma: float = 0.5) -> Model:
    """Each channel of every layer times exp(σ·N(0, 1)), where no upper bound is in the way."""
    return _moved(
        whole,
        lambda size: torch.exp(sigma * torch.randn(size, generator=random, dtype=torch.float64)),
        torch.arange,
    )


def scaled_widely(case: Case, whole: Model, random: torch.Generator) -> Model:
    """The same with σ = 3."""
    return scaled(case, whole, random, sigma=3.0)


@torch.no_grad()
def shrunk(case: Case, whole: Model, random: torch.Generator) -> Model:
    """Four of five filters times 2^-110, and their batch norms with them."""
    whole = copy.deepcopy(whole)
    for link in channel_topology(whole.spec).links:
        if link.after is None:
            continue
        weight, norm = weight_of(whole, link.layer), whole.get_submodule(link.after)
        bias = whole.get_submodule(link.layer).bias
        small = torch.rand(len(weight), generator=random) < 0.8
        factor = torch.where(small, 2.0**-110, 1.0).double()
        assert isinstance(norm, nn.BatchNorm2d)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        variance = norm.running_var.double()
        weight.copy_(weight.double() * factor.view(-1, 1, 1, 1))
        norm.running_mean.mul_(factor)
        if isinstance(bias, Tensor):
            bias.mul_(factor)
        norm.running_var.copy_(variance * factor.square())
        epsilon = ((variance * factor.square() + norm.eps) / (variance + norm.eps)).sqrt() / factor
        norm.weight.copy_(norm.weight.double() * epsilon)
    return whole


@torch.no_grad()
def turned(case: Case, whole: Model, random: torch.Generator) -> Model:
    """Half of the filters change sign together with their batch norm."""
    whole = copy.deepcopy(whole)
    for link in channel_topology(whole.spec).links:
        if link.after is None:
            continue
        weight, norm = weight_of(whole, link.layer), whole.get_submodule(link.after)
        negated = torch.rand(len(weight), generator=random) < 0.5
        assert isinstance(norm, nn.BatchNorm2d)
        assert norm.running_mean is not None
        for values in (weight, whole.get_submodule(link.layer).bias, norm.weight, norm.running_mean):
            if isinstance(values, Tensor):
                values[negated] *= -1
    return whole


@torch.no_grad()
def silenced(case: Case, whole: Model, random: torch.Generator) -> Model:
    """One bias in front of a rectifier is −∞: that channel, which is worth least, is zero from now on."""
    whole = copy.deepcopy(whole)
    links = [link for link in channel_topology(whole.spec).links if link.after is not None]
    link = links[int(torch.randint(len(links) // 2, (), generator=random))]
    norm = whole.get_submodule(link.after or "")
    assert isinstance(norm, nn.BatchNorm2d)
    norm.bias[int(norm.weight.abs().argmin())] = -torch.inf
    return whole


@torch.no_grad()
def overflowing(case: Case, whole: Model, random: torch.Generator) -> Model:
    """A channel at the cut so large that noise overflows and the inputs of the task do not."""
    whole = copy.deepcopy(whole)
    spaces = spaces_at(whole, case.cut)
    if channel_topology(whole.spec).bounded & spaces.keys():
        return whole
    activation = models.split(whole, case.cut)[0].eval()(case.inputs)
    sizes = activation.abs().amax((0, 2, 3))
    channel = int(sizes.argmax())
    scale = torch.ones(len(sizes)).double()
    scale[channel] = 3.3e38 / float(sizes[channel])
    disguise_spaces(whole, list(spaces), order=torch.arange(len(sizes)), scale=scale)
    return whole


DISGUISES: dict[str, Disguise] = {
    "reordered": reordered,
    "scaled": scaled,
    "scaled widely": scaled_widely,
    "shrunk": shrunk,
    "turned": turned,
    "silenced": silenced,
    "overflowing": overflowing,
}
