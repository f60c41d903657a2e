"""Fine-tuning with a penalty at the cut: what the attacks that move activations have in common."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from sigil import files
from sigil.attacks.checks import check_not_negative
from sigil.attacks.halves import OpenedAtCut
from sigil.attacks.training import BeforeStep, Tuning, tune
from sigil.data import Dataset, evaluate_batches
from sigil.errors import AttackError

Penalty = Callable[[Tensor], Tensor | None]
"""What is added to the loss, given the activation (N, *shape) of a batch; None adds nothing."""


def finetune_at_cut(
    attacked: OpenedAtCut,
    data: Dataset,
    penalty: Penalty,
    tuning: Tuning,
    *,
    identity: str,
    before_step: BeforeStep | None = None,
) -> None:
    """Fine-tune an opened model in place on ``data.train`` with cross-entropy + ``penalty(activation)``."""
    place = tuning.place

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        with place.autocast():
            activation = attacked.front(images)
            added = penalty(activation)
            logits = attacked.back(activation)
        task = F.cross_entropy(logits.float(), labels)
        return task if added is None else task + added

    identity = f"{identity} {attacked.cut}"
    tune(attacked.whole, data, loss, tuning, identity=identity, before_step=before_step)


def push_along(
    attacked: OpenedAtCut,
    data: Dataset,
    direction: Tensor,
    tuning: Tuning,
    *,
    reversal: float,
    gamma: float,
) -> None:
    """Fine-tune with γ · mean of (A·û − t)², where t = −reversal · the mean of A·û before.

    û is ``direction`` (d,), normalised. A reversal of 0 pushes the activations' mean along it to zero, 1 as
    far to the other side as it was on this one.
    """
    check_not_negative("reversal", reversal)
    check_not_negative("weight gamma", gamma)
    length = float(direction.double().norm())
    if not 0 < length < float("inf"):
        raise AttackError("The direction that was found is zero or not finite, so nothing can be pushed.")
    along = (direction.double() / length).float()
    target = -reversal * float(mean_activation(attacked, data, tuning).flatten() @ along)
    along = along.to(tuning.place.device)

    def penalty(activation: Tensor) -> Tensor:
        return gamma * (activation.float().flatten(1) @ along - target).square().mean()

    identity = f"push {gamma} {target} {files.digest([along])}"
    finetune_at_cut(attacked, data, penalty, tuning, identity=identity)


@torch.no_grad()
def mean_activation(attacked: OpenedAtCut, data: Dataset, tuning: Tuning) -> Tensor:
    """The mean over ``data.train`` of the activation at the cut, (*shape), as the model is now."""
    place = tuning.place
    home, mode = next(attacked.whole.parameters()).device, attacked.whole.training
    attacked.whole.to(device=place.device, memory_format=place.layout).eval()  # type: ignore[call-overload]
    total, count = torch.zeros(attacked.shape, dtype=torch.float64), 0
    for images, _ in evaluate_batches(
        data.train.images,
        data.train.labels,
        batch_size=256,
        mean=data.mean,
        std=data.std,
        device=place.device,
        memory_format=place.layout,
    ):
        with place.autocast():
            activation = attacked.front(images)
        total += activation.double().sum(0).cpu()
        count += len(images)
    attacked.whole.to(device=home, memory_format=torch.contiguous_format).train(mode)  # type: ignore[call-overload]
    return (total / count).float()
