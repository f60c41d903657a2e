"""Permutation: reorder and scale the channels at the cut, and undo it in the layers behind."""

from __future__ import annotations

import torch
from torch import Tensor

from sigil.attacks.channels import disguise, spaces_at
from sigil.attacks.checks import check_not_negative
from sigil.attacks.halves import ModelOrHalves, cut_of, same_kind, whole_copy
from sigil.models import Model
from sigil.models.spec import channel_topology
from sigil.seeds import generator


def permute(
    model: ModelOrHalves,
    *,
    cut: str | None = None,
    seed: int = 0,
    permutation: bool = True,
    scale: float = 0.5,
) -> ModelOrHalves:
    """Reorder the channels at the cut at random and scale each by a random positive number.

    Every layer that writes to these channels or reads from them changes with them (all blocks of a residual
    stage, every layer of a dense block), so the copy computes the same function as the model while its
    activation at the cut looks different: the paper's first limitation.

    ``scale`` is the deviation σ of the scales' logarithm, exp(σ·N(0, 1)); 0 scales nothing. The default of
    0.5, most scales between 0.4 and 2.7, is the trial's that showed the attack. ``permutation=False`` only
    scales. ``cut`` is none where the halves meet, or for a whole model the paper's cut.

    Two places are narrower. Behind ReLU6 (``mobilenetv2`` at ``conv1``, ``conv2``, ``avgpool`` and
    ``flatten``) a scale would move the bound, so channels are only reordered. In ``densenet121`` a channel
    must stay among those of the layer that writes it, because earlier layers cannot read it.

    A client half alone cannot be disguised: the layer behind the cut must change too.
    """
    check_not_negative("deviation of the scales", scale)
    place = cut_of(model, cut)
    attacked = whole_copy(model)
    order, factors = _draw(attacked, place, seed, permutation, scale)
    disguise(attacked, place, order=order, scale=factors)
    return same_kind(attacked, model)


def _draw(model: Model, cut: str, seed: int, permutation: bool, sigma: float) -> tuple[Tensor, Tensor]:
    """An order and scales for the channels at a cut, (C,) each, as far as their spaces allow."""
    bounded = channel_topology(model.spec).bounded
    random = generator(seed, "attack", "permute")
    orders, factors, start = [], [], 0
    for space, size in spaces_at(model, cut).items():
        shuffled = torch.randperm(size, generator=random)
        normal = torch.randn(size, generator=random, dtype=torch.float64)
        orders.append(start + (shuffled if permutation else torch.arange(size)))
        factors.append(torch.ones_like(normal) if space in bounded else torch.exp(sigma * normal))
        start += size
    return torch.cat(orders), torch.cat(factors)
