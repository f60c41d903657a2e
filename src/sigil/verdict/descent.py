"""Where a suspect's weights come from: the origin test in the order as it is and, if need be, restored."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from sigil import models, origin
from sigil.alignment import search_known, search_own, search_unknown
from sigil.errors import AlignmentError, ConfigError, ModelError, ShapeError, SuspectError
from sigil.keys.key import Key
from sigil.models import Model
from sigil.origin import Origin
from sigil.probing import Suspect, filters_of, module_of

# With this there is nothing left to prove, whatever p is multiplied by. Both orders are paid for in any case,
# so that leaving the second one out is no choice.
_ENOUGH: Final = -100.0


def origin_of(suspect: Suspect, key: Key, input_shape: Sequence[int] | None = None) -> Origin | None:
    """Whether a client half descends from the key's initial weights; None if that cannot be compared.

    The better one of two tests: of all signs in the order as it is, by the names of the layers, and of the
    held-out signs after channels were put back in order, which takes a model whose layers Sigil knows
    (:mod:`sigil.origin`). Of any other model the filters are compared, if the key states which model it drew
    the weights for, and else the layers of a module by their names; that takes the shape of an input.
    """
    if key.fields.initialiser is None:
        return None
    module = module_of(suspect)
    named = None if module is None else _by_names(module, key)
    if named is not None and named.log10_p <= _ENOUGH:
        return named
    half = None if module is None else _half_in(module)
    if isinstance(half, Model) and not _differs(half, key):
        restored = restored_origin(half, key)
    else:
        shape = input_shape if input_shape is not None else key.fields.input_shape
        restored = None if shape is None else filters_origin(suspect, key, shape)
    found = [one for one in (named, restored) if one is not None]
    return min(found, key=lambda one: one.log10_p) if found else None


def start_of(key: Key) -> Model | None:
    """The client half that the key states, with the weights that it draws; None if it does not state it."""
    stated = key.fields
    if stated.initialiser is None or stated.model not in models.names() or stated.width is None:
        return None
    channels = 3 if stated.input_shape is None else stated.input_shape[0]
    try:
        size = (32, 32) if stated.input_shape is None else (stated.input_shape[1], stated.input_shape[2])
        whole = models.build(
            stated.model, classes=10, width=stated.width, channels=channels, input_size=size, seed=0
        )
        half = models.split(whole, stated.cut or models.default_cut(stated.model))[0]
    except (ModelError, IndexError):
        return None
    key.initialise(half)
    return half


def own_start(module: nn.Module, key: Key) -> nn.Module | None:
    """The same layers with the weights that the key draws for their names; None if that cannot be made."""
    try:
        start = copy.deepcopy(module)
        key.initialise(start)
    except (ConfigError, RuntimeError, TypeError):  # no layer to draw for, or none that can be copied
        return None
    return start


def _half_in(module: nn.Module) -> nn.Module:
    """The model of Sigil's inside a module, if there is one: its layers have their names only within it."""
    return next((part for part in module.modules() if isinstance(part, Model)), module)


def _differs(half: Model, key: Key) -> bool:
    """Whether the key drew its weights for another width of the same model, as if channels were split."""
    stated = key.fields
    return stated.model == half.spec.name and stated.width not in (None, half.spec.width)


def _by_names(module: nn.Module, key: Key) -> Origin | None:
    half = _half_in(module)
    drawn = {
        f"{name}.weight" if name else "weight": tuple(layer.weight.shape)
        for name, layer in half.named_modules()
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear)
    }
    return origin.compare(half.state_dict(), drawn, key.initial) if drawn else None


def filters_origin(suspect: Suspect, key: Key, shape: Sequence[int]) -> Origin | None:
    """The test of the held-out signs of a suspect of which only the filters are known."""
    start, module = start_of(key), module_of(suspect)
    try:
        if start is not None:
            filters = filters_of(suspect, shape)
            if not filters:
                return None
            _hold_out(start, key)
            return _held_out_signs(search_unknown(filters, start).restored(), start, key)
        own = None if module is None else own_start(module, key)
        if module is None or own is None:
            return None
        _hold_out(own, key)
        return _held_out_signs(search_own(module, own, shape).restored(), own, key)
    except (AlignmentError, SuspectError, ShapeError):
        return None


def _hold_out(start: nn.Module, key: Key) -> None:
    """Draw the key's weights into a model, with those that are held out as zeros."""
    with torch.no_grad():
        for name in key.initialise(start):
            weight = start.get_parameter(name)
            weight.masked_fill_(key.held_out(name, weight.shape).to(weight.device), 0.0)


def _held_out_signs(restored: Mapping[str, Tensor], start: nn.Module, key: Key) -> Origin:
    """Compare what was put back in order with the signs that were held out, drawn once more by layer."""
    drawn = {name: tuple(start.get_parameter(name).shape) for name in restored}
    return origin.compare(restored, drawn, key.initial, held_out=key.held_out)


def restored_origin(half: Model, key: Key) -> Origin | None:
    """The test of the held-out signs after channels were put back in order; None if there is no order."""
    if half.spec.part != "client":
        return None
    start = copy.deepcopy(half)
    _hold_out(start, key)
    try:
        restored = search_known(half, start).restored()
    except AlignmentError:
        return None
    return _held_out_signs(restored, start, key)
