"""Where a suspect's weights come from: the origin test in the order as it is and, if need be, restored."""

from __future__ import annotations

import copy
import math
from typing import Final

import torch
from torch import nn

from sigil import origin
from sigil.alignment import restored_filters
from sigil.errors import AlignmentError
from sigil.keys.key import Key
from sigil.models import Model
from sigil.origin import Origin

# With this there is nothing left to prove, whatever p is multiplied by. Both orders are paid for in any case,
# so that leaving the second one out is no choice.
_ENOUGH: Final = -100.0


def origin_of(module: nn.Module, key: Key) -> Origin | None:
    """Whether a client half descends from the key's initial weights; None if the key draws none for it.

    The better one of two tests: of all signs in the order as it is, and of the held-out signs after channels
    were put back in order, which takes a model whose layers Sigil knows (:mod:`sigil.origin`).
    """
    if key.fields.initialiser is None:
        return None
    # A client half inside something larger has the names of its layers only within itself.
    module = next((part for part in module.modules() if isinstance(part, Model)), module)
    drawn = {
        f"{name}.weight" if name else "weight": tuple(layer.weight.shape)
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear)
    }
    if not drawn:
        return None
    found = origin.compare(module.state_dict(), drawn, key.initial)
    if found.log10_p <= _ENOUGH:
        return found
    restored = restored_origin(module, key) if isinstance(module, Model) else None
    return found if restored is None else min(found, restored, key=lambda one: one.log10_p)


def restored_origin(half: Model, key: Key) -> Origin | None:
    """The test of the held-out signs after channels were put back in order; None if there is no order."""
    if half.spec.part != "client":
        return None
    start = copy.deepcopy(half)
    names = key.initialise(start)
    known = {name: start.get_parameter(name).detach().clone() for name in names}
    with torch.no_grad():
        for name in names:
            weight = start.get_parameter(name)
            weight.masked_fill_(key.held_out(name, weight.shape).to(weight.device), 0.0)
        if not all(math.isfinite(float(value.abs().sum())) for value in half.parameters()):
            return None  # what is not finite has no order
    try:
        restored = restored_filters(half, start)
    except AlignmentError:
        return None
    drawn = {name: tuple(value.shape) for name, value in restored.items()}
    return origin.compare(restored, drawn, lambda name, shape: known[name], held_out=key.held_out)
