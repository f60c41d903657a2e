"""Orthogonalising: train a model away from the weights that its training began with.

The origin test (:mod:`sigil.origin`) asks whether weights still have the signs of their initial values, large
ones counting more. Every client was given those, so every client can work against it: take the component
along the initial weights out of each filter and fine-tune what is left, turn the signs that cost least, or go
more gently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from sigil.attacks.halves import (
    ModelOrHalves,
    OpenedAtCut,
    check_choice,
    check_not_negative,
    check_share,
    open_at_cut,
    same_kind,
)
from sigil.attacks.training import TUNING, Effect, Tuning, digest, finetune_at_cut
from sigil.data import Dataset
from sigil.errors import AttackError
from sigil.models import Model
from sigil.origin import WEIGHTS, count_signs

Way = Literal["project", "rotate", "penalty", "flip", "turn"]

# What is left of a weight whose sign is turned: enough to have a sign, too little to matter.
TURNED = 0.01


def orthogonalise(
    model: ModelOrHalves,
    data: Dataset,
    initial: Model,
    *,
    way: Way = "project",
    strength: float = 1.0,
    keep: bool = False,
    cut: str | None = None,
    tuning: Tuning = TUNING,
    **changes: Any,
) -> ModelOrHalves:
    """Fine-tune a copy of the model, up to the cut unlike the ``initial`` weights.

    ``initial`` is the model at the start of the training, whole or its client half. w is a filter, all
    weights of one output channel of a convolution or linear layer up to the cut, and w0 its initial value.

    - ``project``: w loses the share ``strength`` of its component along w0 before the fine-tuning; with
      ``keep`` the component is held down there during it and after it.
    - ``rotate``: the component is held down to a share that falls evenly from 1 to 1 − ``strength``, so that
      the rest of the network can follow.
    - ``penalty``: the loss grows by ``strength`` · the mean over filters of cos²(w, w0); here the strength
      is a weight of any size.
    - ``flip``: of the weights that have their initial sign the smallest change it and become a hundredth of
      their size, as many as it takes, at a strength of 1, until half of each tensor's signs agree. That is
      done before the fine-tuning and again after it, with ``keep`` also during it. It defeats a plain count
      of signs, not the weighted one of the origin test.
    - ``turn``: the same until the origin test's own sum is zero in each tensor, for which larger weights must
      go too.
    """
    tuning = tuning.changed(**changes)
    attacked = open_at_cut(model, data, cut)
    effect = turn_away(attacked, initial, way=way, strength=strength, keep=keep)
    finetune_at_cut(attacked, data, tuning, effect)
    return same_kind(attacked.whole, model)


def turn_away(attacked: OpenedAtCut, initial: Model, *, way: Way, strength: float, keep: bool) -> Effect:
    """What turns filters away from their initial values; see :func:`orthogonalise`."""
    check_choice("way of orthogonalising", way, ("project", "rotate", "penalty", "flip", "turn"))
    (check_not_negative if way == "penalty" else check_share)("strength", strength)
    layers = _layers(attacked, initial)

    def change(share: float) -> None:
        for layer in layers:
            left = 1 - share * strength
            if way in ("flip", "turn"):
                layer.turn(left, weighted=way == "turn")
            else:
                layer.hold(left)

    def before_step(done: int, total: int) -> None:
        if way == "rotate":
            change(done / total)
        elif done == 0 or keep:
            change(1.0)

    def cosines(activation: Tensor) -> Tensor:
        return strength * torch.cat([layer.cosines() for layer in layers]).square().mean()

    identity = f"orthogonalise {way} {strength} {keep} {digest(initial)}"
    if way == "penalty":
        return Effect(identity, cosines)
    at_the_end = way != "project" or keep
    return Effect(identity, before_step=before_step, after=(lambda: change(1.0)) if at_the_end else None)


@dataclass(frozen=True)
class _Layer:
    """A weight under attack, and what its filters have of their initial values.

    ``unit`` (filters, n) holds normalised initial filters as rows, ``component`` (filters,) how long the
    filters were along them when the attack began, ``excess`` by how many more than half of the signs agreed,
    ``evidence`` the origin test's sum of signs.
    """

    weight: nn.Parameter
    unit: Tensor
    component: Tensor
    excess: float
    evidence: float

    @classmethod
    def of(cls, weight: nn.Parameter, initial: Tensor) -> _Layer:
        unit = nn.functional.normalize(initial.detach().float().flatten(1), dim=1)
        product = weight.detach().cpu().float().flatten(1) * unit
        agreeing, tested = int((product > 0).sum()), int((product != 0).sum())
        evidence = _evidence(weight.detach().cpu().flatten(1), unit)
        return cls(weight, unit, product.sum(1), max(0.0, agreeing - tested / 2), max(0.0, evidence))

    @torch.no_grad()
    def hold(self, share: float) -> None:
        """Limit each filter's component along its initial value to a share of what it was."""
        unit, bound = self._here(self.unit), share * self._here(self.component.abs())
        now = (self.weight.flatten(1) * unit).sum(1)
        change = now.clamp(-bound, bound) - now
        self.weight.add_((change[:, None] * unit).view(self.weight.shape))

    @torch.no_grad()
    def turn(self, share: float, *, weighted: bool) -> None:
        """Turn the smallest weights with their initial sign, until what speaks for it is this share.

        That is what agrees above half of the signs or, ``weighted``, the origin test's sum.
        """
        rows, unit = self.weight.flatten(1), self._here(self.unit)
        product = rows.sign() * unit.sign()
        agreeing, tested = int((product > 0).sum()), int((product != 0).sum())
        # Batch norm takes the size of a filter out again, so that a weight is small beside its own filter.
        size = (rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-30)).abs()
        size[product <= 0] = torch.inf
        order = size.flatten().argsort()

        def turned(count: int) -> Tensor:
            factor = torch.ones_like(size).flatten()
            factor[order[:count]] = -TURNED
            return rows * factor.view(rows.shape)

        if not weighted:
            count = round(max(0.0, agreeing - tested / 2 - share * self.excess))
        elif _evidence(rows.cpu(), self.unit) <= share * self.evidence:
            count = 0
        else:
            within, count = 0, agreeing
            while count - within > 1:
                middle = (within + count) // 2
                above = _evidence(turned(middle).cpu(), self.unit) > share * self.evidence
                within, count = (middle, count) if above else (within, middle)
        self.weight.copy_(turned(count).view(self.weight.shape))

    def cosines(self) -> Tensor:
        """The cosine of each filter with its initial value."""
        return nn.functional.cosine_similarity(self.weight.flatten(1), self._here(self.unit), dim=1)

    def _here(self, values: Tensor) -> Tensor:
        return values.to(self.weight.device)


def _evidence(rows: Tensor, unit: Tensor) -> float:
    """The origin test's sum of signs for the filters in ``rows``, in favour of the initial ones."""
    agreeing, tested = count_signs(unit, rows)
    return float(((2 * agreeing - tested) * np.array(WEIGHTS)).sum())


def _layers(attacked: OpenedAtCut, initial: Model) -> list[_Layer]:
    """The convolutions and linear layers up to the cut, with their initial values."""
    known = initial.state_dict()
    layers = []
    for path, layer in attacked.filtering():
        weight = layer.get_parameter("weight")
        began = known.get(f"{path}.weight")
        if began is None or began.shape != weight.shape:
            raise AttackError(
                f"The initial model ({initial.spec}) has no tensor {path}.weight of {tuple(weight.shape)}; "
                "give the model with which this training began."
            )
        layers.append(_Layer.of(weight, began))
    if not layers:
        raise AttackError(f"The model has no convolution up to {attacked.cut!r}, so it has no initial one.")
    return layers
