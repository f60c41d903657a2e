"""Where a suspect's weights come from: the origin test in the order as it is and, if need be, restored."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from sigil import models, origin
from sigil.alignment import LAYERS, has_layers, layers_of, search_known, search_own, search_unknown
from sigil.errors import AlignmentError, ConfigError, ModelError, ShapeError, SuspectError
from sigil.keys.key import Key
from sigil.models import Model
from sigil.models.building import tensor_names
from sigil.origin import Origin
from sigil.probing import Suspect, filters_of, module_of

# With this there is nothing left to prove, whatever p is multiplied by. Both orders are paid for in any case,
# so that nobody chooses to leave the second one out.
_ENOUGH: Final = -100.0


def origin_of(
    suspect: Suspect,
    key: Key,
    input_shape: Sequence[int] | None = None,
    layers: nn.Module | None = None,
) -> Origin | None:
    """Whether a client half descends from the key's initial weights; None if that cannot be compared.

    The better one of two tests: of all signs in the order as it is, by the names of the layers, and of the
    held-out signs after channels were put back in order (:mod:`sigil.origin`). Names are those of Sigil's
    models, or of ``layers``, the module of one's own for which the key drew the weights
    (:func:`stated_layers`). Of any other suspect only filters are compared, if the key states its model or
    there are ``layers``; that takes the shape of an input.
    """
    if key.fields.initialiser is None:
        return None
    module = module_of(suspect)
    half = None if module is None else _half_in(module)
    named = None
    if isinstance(half, Model):
        named = _by_names(half, key, tensor_names(half.spec.name))
    elif module is not None and layers is not None and has_layers(module, layers):
        named = _by_names(module, key, [name for name, _ in module.named_parameters()])
    if named is not None and named.log10_p <= _ENOUGH:
        return named
    if isinstance(half, Model) and not _differs(half, key):
        restored = restored_origin(half, key)
    else:
        shape = input_shape if input_shape is not None else key.fields.input_shape
        restored = None if shape is None else filters_origin(suspect, key, shape, layers)
    tests = [one for one in (named, restored) if one is not None]
    return min(tests, key=lambda one: one.log10_p) if tests else None


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


def stated_layers(suspect: Suspect, key: Key, shape: Sequence[int]) -> nn.Module | None:
    """The suspect, if it is a module of one's own of which the key states the layers.

    The key draws weights for names. Who chose them afterwards, layer by layer, would find some that suit any
    model.
    """
    module, stated = module_of(suspect), key.fields.model
    if module is None or stated is None or not stated.startswith(LAYERS):
        return None
    try:
        return module if stated == layers_of(module, shape) else None
    except (AlignmentError, SuspectError, ShapeError):
        return None


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


def _by_names(module: nn.Module, key: Key, names: Sequence[str]) -> Origin | None:
    known = set(names)
    drawn = {
        weight: tuple(layer.weight.shape)
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear)
        and (weight := f"{name}.weight" if name else "weight") in known
    }
    return origin.compare(module.state_dict(), drawn, key.initial) if drawn else None


def filters_origin(
    suspect: Suspect, key: Key, shape: Sequence[int], layers: nn.Module | None = None
) -> Origin | None:
    """The test of the held-out signs of a suspect of which only the filters are known, or an own module."""
    module = module_of(suspect)
    start: nn.Module | None = start_of(key)
    if start is None and layers is not None:
        start = own_start(layers, key)
    try:
        if start is not None and (layers is None or module is None or not has_layers(module, layers)):
            filters = filters_of(suspect, shape)
            if not filters:
                return None
            _hold_out(start, key)
            return _held_out_signs(search_unknown(filters, start, shape).restored(), start, key)
        own = None if layers is None else own_start(layers, key)
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
