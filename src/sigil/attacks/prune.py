"""Pruning: set the smallest weights to zero."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from sigil.attacks.halves import ModelOrHalves, check_choice, check_share, same_kind, whole_copy
from sigil.errors import AttackError

Scope = Literal["layer", "global", "tensor"]
Part = Literal["whole", "client"]


@torch.no_grad()
def prune(
    model: ModelOrHalves,
    ratio: float,
    *,
    scope: Scope = "layer",
    norms: bool = False,
    part: Part = "whole",
) -> ModelOrHalves:
    """Set a share ``ratio`` of the weights of a copy to zero, those of the smallest magnitude.

    Weights and biases of convolutions and linear layers are pruned; with ``norms`` also the scales and
    shifts of batch norms (the running statistics, which are not weights, never are). ``scope`` says which of
    them are ranked together:

    - ``layer``: those of one layer, so every layer loses the same share,
    - ``global``: all of them, so layers with small weights lose more,
    - ``tensor``: each tensor by itself, so a layer's biases lose as large a share as its weights.

    The paper does not say which it means. The default, layer by layer and without norms, is what "pruning
    ratio" means in most papers. The paper's own accuracy at 60 % (52 %) is lower than that usually gives,
    so its reading may have been a harsher one: ``norms=True`` is, because a zero scale silences a channel.
    Nothing is trained or recalibrated afterwards.

    ``part="client"`` prunes only the client half of a pair, the part that an attacker surely has. A client
    half alone may also be given as the model.
    """
    check_share("pruning ratio", ratio)
    ratio = float(ratio)
    check_choice("pruning scope", scope, ("layer", "global", "tensor"))
    check_choice("part to prune", part, ("whole", "client"))
    attacked = whole_copy(model, or_half=True)
    kinds = (nn.Conv2d, nn.Linear, nn.BatchNorm2d) if norms else (nn.Conv2d, nn.Linear)
    layers = {name: layer for name, layer in attacked.named_modules() if isinstance(layer, kinds)}
    if part == "client" and attacked.spec.part == "whole":
        if not isinstance(model, tuple):
            raise AttackError(
                "A whole model does not say where its client half ends; give the two halves to prune one."
            )
        client_rows = {name for name, _ in model[0].named_children()}
        layers = {name: layer for name, layer in layers.items() if name.split(".")[0] in client_rows}
    groups = [list(layer.parameters(recurse=False)) for layer in layers.values()]
    if scope == "tensor":
        groups = [[tensor] for group in groups for tensor in group]
    elif scope == "global":
        groups = [[tensor for group in groups for tensor in group]]
    for group in groups:
        _zero_smallest(group, ratio)
    return same_kind(attacked, model)


def _zero_smallest(tensors: list[nn.Parameter], ratio: float) -> None:
    """Zero the ``round(ratio · n)`` smallest of the n numbers in all the tensors together."""
    if not tensors:
        return
    magnitudes = torch.cat([tensor.abs().flatten() for tensor in tensors])
    count = round(ratio * magnitudes.numel())
    keep: Tensor = torch.ones_like(magnitudes, dtype=torch.bool)
    keep[magnitudes.topk(count, largest=False).indices] = False
    start = 0
    for tensor in tensors:
        mask = keep[start : start + tensor.numel()].view(tensor.shape)
        tensor.copy_(torch.where(mask, tensor, 0.0))
        start += tensor.numel()
