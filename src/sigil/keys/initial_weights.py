"""The owner's initial weights: drawn from the key, so that descent from them can be shown later.

Convolutions get N(0, 2/fan-out), linear layers U(−1/√inputs, 1/√inputs), as `sigil.models.build` draws
them, but from the key's own stream: the same numbers on every platform, with fair signs. Only these
weights belong to the owner. Biases and the numbers of norm layers are set as usual and belong to
nobody: zeros and ones are the same in every model.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from sigil.errors import ConfigError
from sigil.keys.draws import KeyStream

MAX_ENTRIES: Final = 2**31


def draw(stream: KeyStream, shape: Sequence[int]) -> Tensor:
    """One weight tensor, float32: of a convolution if it has three axes or more, of a linear layer if two."""
    sizes = tuple(map(operator.index, shape))
    if len(sizes) < 2 or min(sizes) < 1 or math.prod(sizes) > MAX_ENTRIES:
        raise ConfigError(
            f"Initial weights have two axes or more and at most 2^31 entries, but {list(sizes)[:8]} was "
            "asked for; biases and norm layers are not drawn from a key."
        )
    out = np.empty(sizes, dtype=np.float32)
    if len(sizes) == 2:
        stream.fill_uniform(out, bound=1.0 / math.sqrt(sizes[1]))
    else:
        fan_out = sizes[0] * math.prod(sizes[2:])
        stream.fill_normal(out, scale=math.sqrt(2.0 / fan_out))
    return torch.from_numpy(out)


def held_out(stream: KeyStream, shape: Sequence[int]) -> Tensor:
    """Which entries of one weight tensor are held out, bool: each with the probability one in eight."""
    sizes = tuple(map(operator.index, shape))
    if not sizes or min(sizes) < 0 or math.prod(sizes) > MAX_ENTRIES:
        raise ConfigError(f"A tensor has at most 2^31 entries, but {list(sizes)[:8]} was asked for.")
    octets = np.frombuffer(stream.octets(0, math.prod(sizes)), dtype=np.uint8)
    return torch.from_numpy(octets % 8 == 7).reshape(sizes)


def initialise(module: nn.Module, stream: Callable[[str], KeyStream]) -> tuple[str, ...]:
    """Set a module's weights in place, each from the stream of its name; return the names drawn.

    A tensor that several layers share is drawn once, under its first name. Parameters of other kinds of
    layers stay as they are.
    """
    drawn: list[str] = []
    seen: set[int] = set()
    with torch.no_grad():
        for path, layer in module.named_modules():
            if isinstance(layer, _ConvNd | nn.Linear):
                weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
                if weight is None or id(weight) in seen:
                    continue
                seen.add(id(weight))
                name = f"{path}.weight" if path else "weight"
                weight.copy_(draw(stream(name), weight.shape))
                drawn.append(name)
                if bias is not None:
                    _set_bias(bias, layer, stream(name.removesuffix("weight") + "bias"))
            elif isinstance(layer, _NormBase | nn.LayerNorm | nn.GroupNorm):
                layer.reset_parameters()
    if not drawn:
        raise ConfigError("The module has no convolution and no linear layer, so a key has nothing to draw.")
    return tuple(drawn)


def _set_bias(bias: Tensor, layer: nn.Module, stream: KeyStream) -> None:
    """Zero in a convolution, U(−1/√inputs, 1/√inputs) in a linear layer: as the models are built."""
    if isinstance(layer, nn.Linear):
        out = np.empty(tuple(bias.shape), dtype=np.float32)
        stream.fill_uniform(out, bound=1.0 / math.sqrt(layer.in_features))
        bias.copy_(torch.from_numpy(out))
    else:
        bias.zero_()
