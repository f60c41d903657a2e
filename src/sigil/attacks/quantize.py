"""Quantization: round the weights to few bits."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from sigil.attacks.halves import ModelOrHalves, check_choice, same_kind, whole_copy

Format = Literal["fp16", "int8", "int4"]
Per = Literal["channel", "tensor"]

_LEVELS = {"int8": 127, "int4": 7}


@torch.no_grad()
def quantize(model: ModelOrHalves, format: Format, *, per: Per = "channel") -> ModelOrHalves:
    """Round the weights of a copy to ``format`` and back to float32, so that it still runs everywhere.

    ``int8`` and ``int4`` round the weights w of convolutions and linear layers to the nearest of the levels
    −L·s, …, 0, …, L·s with L = 127 or 7 and s = max|w| / L: symmetric, no zero point. ``per`` says over
    which weights the maximum is taken: those of one output ``channel``, the default, because it is what
    deployment tools do and the paper's 4-bit models keep 90 % accuracy; or the whole ``tensor``, which is
    coarser. Biases and batch norms stay as they are: they are few, and tools keep them in full.

    ``fp16`` rounds every floating-point number of the model, as ``model.half()`` does; numbers beyond its
    range become its largest. A client half alone may be given as the model.
    """
    check_choice("number format", format, ("fp16", "int8", "int4"))
    check_choice("unit of quantization", per, ("channel", "tensor"))
    attacked = whole_copy(model, or_half=True)
    if format == "fp16":
        most = torch.finfo(torch.float16).max
        for tensor in attacked.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(tensor.clamp(-most, most).half())
    else:
        for layer in attacked.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.weight.copy_(_rounded(layer.weight, _LEVELS[format], per))
    return same_kind(attacked, model)


def _rounded(weight: Tensor, levels: int, per: Per) -> Tensor:
    """(outputs, …) -> the same shape, on 2·levels + 1 evenly spaced values per channel or in all."""
    dimensions = tuple(range(1, weight.ndim)) if per == "channel" else tuple(range(weight.ndim))
    step = weight.abs().amax(dimensions, keepdim=True) / levels
    # A channel of zeros has no step, and stays zero.
    steps = (weight / torch.where(step > 0, step, 1.0)).round_().clamp_(-levels, levels)
    return steps * step
