"""Reading: find the mark in the finished model's own mean activation, without any gradient.

The mark shifts the mean activation along carriers that are rough over positions. Natural mean maps are
smooth, so what is left of the mean map after each channel's own mean is mostly mark.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from sigil.attacks.halves import (
    ModelOrHalves,
    OpenedAtCut,
    check_choice,
    check_not_negative,
    open_at_cut,
    same_kind,
)
from sigil.attacks.training import (
    TUNING,
    Effect,
    Tuning,
    finetune_at_cut,
    mean_activation,
    push_along,
)
from sigil.data import Dataset
from sigil.errors import AttackError

Way = Literal["push", "flatten", "equalise"]


def read(
    model: ModelOrHalves,
    data: Dataset,
    *,
    way: Way = "push",
    reversal: float = 0.0,
    gamma: float = 10.0,
    cut: str | None = None,
    tuning: Tuning = TUNING,
    **changes: Any,
) -> tuple[ModelOrHalves, Tensor]:
    """Fine-tune a copy of the model until its mean activation map no longer shows the mark.

    With m the mean map over ``data.train`` minus each channel's mean over positions, and γ = ``gamma``, the
    fine-tuning lowers cross-entropy and, by ``way``,

    - ``push``: γ · mean of (A·û − t)², û = −m/‖m‖ and t = −``reversal`` · (the mean of A·û before); a
      reversal of 0 pushes the mean along m to zero, 1 mirrors it;
    - ``flatten``: γ ‖m‖² / Var A, with m and the variance those of each batch; it needs no direction;
    - ``equalise``: the same with the other part of the mean map, the channels' means minus their mean, for
      a mark that lies there.

    The penalties of the last two are pure numbers, and the whole mean map goes: at a weight of 1 flattening
    costs far more accuracy than pushing. Returns the attacked model and −m (d, 1), the direction as it was
    read in the model given, for :func:`~sigil.attacks.overlap`.
    """
    tuning = tuning.changed(**changes)
    attacked = open_at_cut(model, data, cut)
    effect, direction = find_in_mean(attacked, data, tuning, way=way, reversal=reversal, gamma=gamma)
    finetune_at_cut(attacked, data, tuning, effect)
    return same_kind(attacked.whole, model), direction[:, None]


def find_in_mean(
    attacked: OpenedAtCut, data: Dataset, tuning: Tuning, *, way: Way, reversal: float = 0.0, gamma: float
) -> tuple[Effect, Tensor]:
    """What pushes the mark out of the mean map, and −m (d,) as it is now; see :func:`read`."""
    check_choice("way of reading", way, ("push", "flatten", "equalise"))
    check_not_negative("weight gamma", gamma)
    if len(attacked.shape) < 2 or math.prod(attacked.shape[1:]) < 2:
        raise AttackError(
            f"The model cut at {attacked.cut!r} has activations of {attacked.shape}, which are not maps with "
            "positions, so there is no mean map to read; attack at an earlier cut."
        )
    seen = mean_activation(attacked, data, tuning)
    direction = -over_positions(seen).flatten()
    if way == "push":
        return push_along(attacked, data, direction, tuning, reversal=reversal, gamma=gamma), direction
    return _level(way, gamma), direction


def over_positions(mean: Tensor) -> Tensor:
    """A mean map (C, …) minus each channel's mean over its positions."""
    return mean - mean.flatten(1).mean(1).view(-1, *[1] * (mean.ndim - 1))


def over_channels(mean: Tensor) -> Tensor:
    """Each channel's mean minus the mean of all, at every position of a mean map (C, …)."""
    return mean - over_positions(mean) - mean.mean()


def _level(way: Way, gamma: float) -> Effect:
    part = over_positions if way == "flatten" else over_channels

    def penalty(activation: Tensor) -> Tensor:
        values = activation.float()
        mean = values.mean(0)
        # A ratio, so that shrinking all activations gains nothing.
        spread = (values - mean).square().sum() / len(values)
        return gamma * part(mean).square().sum() / spread.clamp(min=torch.finfo(torch.float32).tiny)

    return Effect(f"{way} {gamma}", penalty)
