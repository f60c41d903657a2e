"""Erasing: everything that takes a proof away, all at once, in one fine-tuning.

One attack after the other makes the second undo part of the first, and pays for fine-tuning twice. In one
training the model as it was is the teacher of all.
"""

from __future__ import annotations

from typing import Any

from sigil.attacks.halves import ModelOrHalves, open_at_cut, same_kind
from sigil.attacks.launder import add_noise
from sigil.attacks.orthogonalise import Way, turn_away
from sigil.attacks.read import find_in_mean
from sigil.attacks.training import BEST, Effect, Tuning, finetune_at_cut
from sigil.data import Dataset
from sigil.errors import AttackError
from sigil.models import Model


def erase(
    model: ModelOrHalves,
    data: Dataset,
    initial: Model | None = None,
    *,
    flatten: float = 0.0,
    push: float = 0.0,
    reversal: float = 0.0,
    orthogonalise: float = 0.0,
    way: Way = "project",
    keep: bool = False,
    noise: float = 0.0,
    shape: float = 0.7,
    cut: str | None = None,
    tuning: Tuning = BEST,
    **changes: Any,
) -> ModelOrHalves:
    """Fine-tune a copy of the model with any set of attacks at the same time; what is 0 is left out.

    - ``flatten`` and ``push`` (with ``reversal``): the weights γ of both ways of :func:`~sigil.attacks.read`,
    - ``orthogonalise`` (with ``way`` and ``keep``): the strength of :func:`~sigil.attacks.orthogonalise`, for
      which the ``initial`` weights are needed,
    - ``noise`` (with ``shape``): that of :func:`~sigil.attacks.launder`.
    """
    tuning = tuning.changed(**changes)
    attacked = open_at_cut(model, data, cut)
    effects: list[Effect] = []
    if noise:
        effects.append(add_noise(attacked, data, tuning, noise=noise, shape=shape))
    if orthogonalise:
        if initial is None:
            raise AttackError("Orthogonalising takes the initial weights, which were not given; give them.")
        effects.append(turn_away(attacked, initial, way=way, strength=orthogonalise, keep=keep))
    if flatten:
        effects.append(find_in_mean(attacked, data, tuning, way="flatten", gamma=flatten)[0])
    if push:
        effects.append(find_in_mean(attacked, data, tuning, way="push", reversal=reversal, gamma=push)[0])
    if not effects:
        raise AttackError("Nothing is to be erased; give flatten, push, orthogonalise or noise above 0.")
    finetune_at_cut(attacked, data, tuning, *effects)
    return same_kind(attacked.whole, model)
