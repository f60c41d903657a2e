"""Fine-tuning: train the stolen model a little further on the attacker's own images."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import nn

from sigil.attacks.halves import ModelOrHalves, check_choice, open_at_cut, same_kind
from sigil.attacks.training import BATCH_SIZE, Effect, Tuning, finetune_at_cut
from sigil.data import Dataset
from sigil.seeds import generator

Kind = Literal["all", "last", "reset-all", "reset-last"]
FINETUNE = Tuning(0.01, steps=100, batch_size=BATCH_SIZE, optimizer="sgd")


def finetune(
    model: ModelOrHalves,
    data: Dataset,
    *,
    kind: Kind = "all",
    tuning: Tuning = FINETUNE,
    **changes: Any,
) -> ModelOrHalves:
    """Train a copy of the model further on ``data.train``, and do nothing else.

    For 100 steps, the longer of the paper's two, unless ``tuning``, or single ``changes`` of it such as
    ``steps`` and ``lr``, say otherwise. The four classic kinds:

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
    tuning = tuning.changed(**changes)
    attacked = open_at_cut(model, data)
    last = [layer for layer in attacked.whole.modules() if isinstance(layer, nn.Linear)][-1]
    if kind.startswith("reset"):
        _draw_anew(last, tuning.seed)
    only = last if kind.endswith("last") else None
    finetune_at_cut(attacked, data, tuning, Effect(f"finetune {kind}"), only=only)
    return same_kind(attacked.whole, model)


@torch.no_grad()
def _draw_anew(layer: nn.Linear, seed: int) -> None:
    """Weights and biases U(−1/√inputs, 1/√inputs), as in a fresh model."""
    bound = 1 / math.sqrt(layer.in_features)
    stream = generator(seed, "attack", "last layer")
    for value in (layer.weight, layer.bias):
        value.copy_(torch.empty(value.shape).uniform_(-bound, bound, generator=stream))
