"""Fine-tuning: train the stolen model a little further on the attacker's own images."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sigil.attacks.checks import check_choice, check_fits
from sigil.attacks.halves import ModelOrHalves, same_kind, whole_copy
from sigil.attacks.training import BATCH_SIZE, Plan, Progress, descend
from sigil.data import Dataset
from sigil.federation.precision import Precision, choose
from sigil.federation.seeds import generator

Kind = Literal["all", "last", "reset-all", "reset-last"]
STEPS = 100


def finetune(
    model: ModelOrHalves,
    data: Dataset,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    lr: float = 0.01,
    kind: Kind = "all",
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
    precision: Precision | None = None,
    progress: Progress | None = None,
    checkpoint: Path | None = None,
) -> ModelOrHalves:
    """Train a copy of the model further on ``data.train``, with cross-entropy and nothing else.

    For a number of ``steps`` or of ``epochs``; 100 steps, the longer of the paper's two, if neither is
    given. The four classic kinds:

    - ``all``: all layers,
    - ``last``: only the last linear layer (so the client half and its mark stay as they are),
    - ``reset-all``: the last layer is drawn anew, then all layers are trained,
    - ``reset-last``: the last layer is drawn anew, then only it is trained.

    The paper gives no rate. Its fine-tuning costs one point of accuracy within 50 steps, which the last rate
    of the training, 1e-4, could not do in so few: the default is 0.01, a hundred times that and a tenth of
    the training's highest. A larger one removes more of everything. SGD with momentum 0.9 and weight decay
    5e-4, as in the training.
    """
    check_choice("kind of fine-tuning", kind, ("all", "last", "reset-all", "reset-last"))
    if steps is None and epochs is None:
        steps = STEPS
    plan = Plan(lr, steps=steps, epochs=epochs, batch_size=batch_size, seed=seed)
    attacked = whole_copy(model)
    check_fits(attacked, data)
    place = precision or choose()
    last = [layer for layer in attacked.modules() if isinstance(layer, nn.Linear)][-1]
    if kind.startswith("reset"):
        _draw_anew(last, seed)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        with place.autocast():
            logits = attacked(images)
        return F.cross_entropy(logits.float(), labels)

    descend(
        attacked,
        data,
        loss,
        plan,
        precision=place,
        only=last if kind.endswith("last") else None,
        progress=progress,
        checkpoint=checkpoint,
        identity=f"finetune {kind}",
    )
    return same_kind(attacked, model)


@torch.no_grad()
def _draw_anew(layer: nn.Linear, seed: int) -> None:
    """Weights and biases U(−1/√inputs, 1/√inputs), as in a fresh model."""
    bound = 1 / math.sqrt(layer.in_features)
    stream = generator(seed, "attack", "last layer")
    for value in (layer.weight, layer.bias):
        value.copy_(torch.empty(value.shape).uniform_(-bound, bound, generator=stream))
