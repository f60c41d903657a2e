"""What somebody who knows of alignment would try next, each a change of a finished model at its cut."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sigil import attacks, models
from sigil.attacks.halves import Halves
from sigil.attacks.permute import disguise, disguise_spaces, spaces_at
from sigil.models.spec import channel_topology
from sigil.models.topology import weight_of
from sigil.seeds import generator


@dataclass(frozen=True)
class Disguised:
    """A changed model: its part up to the cut and the rest, which together compute what they did before."""

    client: nn.Module
    server: nn.Module


class Remix(nn.Module):
    """A layer behind the cut that makes new channels of old ones: (n, C, …) -> (n, C′, …), by a matrix."""

    matrix: Tensor

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.register_buffer("matrix", matrix)

    def forward(self, activation: Tensor) -> Tensor:
        return torch.einsum("dc,nc...->nd...", self.matrix, activation)


def permuted(halves: Halves, *, seed: int, scale: float = 0.5) -> Disguised:
    """All channels reordered and scaled: the attack that alignment was made for."""
    return Disguised(*attacks.permute(halves, seed=seed, scale=scale))


def everywhere(halves: Halves, *, seed: int) -> Disguised:
    """No layer of a ResNet-18 keeps its order, scale or sign: neither the stages nor what is inside blocks.

    Half of the filters inside each block change sign together with their batch norm.
    """
    changed = halves
    for cut in models.cut_points("resnet18"):
        changed = attacks.permute(changed, cut=cut, seed=seed)
    whole = models.join(*changed)
    random = generator(seed, "inside blocks")
    for block in (f"layer{stage}.{index}" for stage in (1, 2, 3, 4) for index in (0, 1)):
        norm = whole.get_submodule(f"{block}.bn1")
        assert isinstance(norm, nn.BatchNorm2d)
        size = norm.num_features
        order = torch.randperm(size, generator=random)
        scale = torch.exp(0.5 * torch.randn(size, generator=random, dtype=torch.float64))
        disguise_spaces(whole, [block], order=order, scale=scale)
        negated = torch.rand(size, generator=random) < 0.5
        for values in (whole.get_submodule(f"{block}.conv1").weight, norm.weight, norm.running_mean):
            assert isinstance(values, Tensor)
            values.data[negated] *= -1
    assert halves[0].spec.cut is not None
    return Disguised(*models.split(whole, halves[0].spec.cut))


def half_permuted(halves: Halves, *, seed: int) -> Disguised:
    """Every other channel keeps its place and scale."""
    client_half = halves[0]
    assert client_half.spec.cut is not None
    whole = models.join(*halves)
    order = torch.arange(sum(spaces_at(whole, client_half.spec.cut).values()))
    moved = order[::2]
    order[::2] = moved[torch.randperm(len(moved), generator=generator(seed, "half permuted"))]
    disguise(whole, client_half.spec.cut, order=order, scale=torch.ones(len(order)).double())
    return Disguised(*models.split(whole, client_half.spec.cut))


@torch.no_grad()
def copied(halves: Halves, *, share: float, seed: int) -> Disguised:
    """A share of the channels give way to copies of others, which then do half of the work; all permuted.

    The channels given up are those that the next layers weigh least.
    """
    cut = halves[0].spec.cut
    assert cut is not None
    whole = models.join(*halves)
    spaces = spaces_at(whole, cut)
    links = channel_topology(whole.spec).links
    weights = [weight_of(whole, link.layer) for link in links if spaces.keys() & link.reads]
    importance = sum((weight.transpose(0, 1).flatten(1).norm(dim=1) for weight in weights), torch.zeros(()))
    ranked = importance.argsort()
    count = round(share * len(ranked))
    order = torch.arange(len(ranked))
    kept = ranked[count:]
    chosen = torch.randperm(len(kept), generator=generator(seed, "copied"))[:count]
    order[ranked[:count]] = kept[chosen]
    disguise(whole, cut, order=order, scale=torch.ones(len(order)).double())
    copies = torch.bincount(order, minlength=len(order))[order]
    for weight in weights:
        weight /= copies.view(1, -1, *[1] * (weight.ndim - 2))
    return permuted(models.split(whole, cut), seed=seed)


def widened(halves: Halves, *, share: float, seed: int) -> Disguised:
    """More channels than before: some are split into two, each at a scale of its own, in a new order.

    The next layer adds them up again, so that the model computes the same.
    """
    channels = _channels(halves)
    random = generator(seed, "widened")
    extra = torch.randint(channels, (round(share * channels),), generator=random)
    order = torch.cat([torch.arange(channels), extra])
    order = order[torch.randperm(len(order), generator=random)]
    scale = torch.exp(0.5 * torch.randn(len(order), generator=random))
    matrix = torch.zeros(len(order), channels)
    matrix[torch.arange(len(order)), order] = scale
    return _remixed(halves, matrix)


def mixed(halves: Halves, *, degrees: float, seed: int) -> Disguised:
    """Pairs of channels are rotated into each other, and the next layer rotates them back; then permuted."""
    channels = _channels(halves)
    pairs = torch.randperm(channels, generator=generator(seed, "mixed"))[: channels // 2 * 2].view(-1, 2)
    angle = math.radians(degrees)
    matrix = torch.eye(channels)
    first, second = pairs[:, 0], pairs[:, 1]
    matrix[first, first] = matrix[second, second] = math.cos(angle)
    matrix[first, second], matrix[second, first] = math.sin(angle), -math.sin(angle)
    shuffled = torch.randperm(channels, generator=generator(seed, "mixed order"))
    return _remixed(halves, matrix[shuffled])


def _remixed(halves: Halves, matrix: Tensor) -> Disguised:
    """Channels made of channels behind the client half, and made back in front of the server half."""
    client_half, server_half = halves
    inverse = torch.linalg.pinv(matrix.double()).float()
    return Disguised(nn.Sequential(client_half, Remix(matrix)), nn.Sequential(Remix(inverse), server_half))


def _channels(halves: Halves) -> int:
    shape = halves[0].input_shape
    assert shape is not None
    return models.activation_shape(halves[0], shape)[0]


DISGUISES: dict[str, Callable[[Halves, int], Disguised]] = {
    "half of the channels": lambda halves, seed: half_permuted(halves, seed=seed),
    "scales over decades": lambda halves, seed: permuted(halves, seed=seed, scale=3.0),
    "every layer": lambda halves, seed: everywhere(halves, seed=seed),
    "25 % replaced by copies": lambda halves, seed: copied(halves, share=0.25, seed=seed),
    "50 % replaced by copies": lambda halves, seed: copied(halves, share=0.5, seed=seed),
    "25 % more channels": lambda halves, seed: widened(halves, share=0.25, seed=seed),
    "mixed by 10 degrees": lambda halves, seed: mixed(halves, degrees=10, seed=seed),
    "mixed by 45 degrees": lambda halves, seed: mixed(halves, degrees=45, seed=seed),
}
