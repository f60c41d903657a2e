"""Permutation: reorder and scale the channels at the cut, and undo it in the layers behind."""

from __future__ import annotations

import torch
from torch import Tensor

from sigil.attacks.checks import check_not_negative
from sigil.attacks.streams import Stream, disguise, stream_at
from sigil.attacks.subject import Subject, cut_of, same_kind, whole_copy
from sigil.federation.seeds import generator


def permute(
    model: Subject,
    *,
    cut: str | None = None,
    seed: int = 0,
    permutation: bool = True,
    scale: float = 0.5,
) -> Subject:
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
    stream = stream_at(attacked, place)
    order, factors = _draw(stream, stream.cuts[place].slices, seed, permutation, scale)
    disguise(attacked, stream, place, order=order, scale=factors)
    return same_kind(attacked, model)


def _draw(stream: Stream, slices: int, seed: int, permutation: bool, sigma: float) -> tuple[Tensor, Tensor]:
    """An order and scales for the first so many slices of the stream; later channels stay as they are."""
    random = generator(seed, "attack", "permute")
    order = torch.arange(sum(stream.slices))
    factors = torch.ones(len(order), dtype=torch.float64)
    start = 0
    for size in stream.slices[:slices]:
        shuffled = torch.randperm(size, generator=random)
        normal = torch.randn(size, generator=random, dtype=torch.float64)
        if permutation:
            order[start : start + size] = start + shuffled
        if not stream.bounded:
            factors[start : start + size] = torch.exp(sigma * normal)
        start += size
    return order, factors
