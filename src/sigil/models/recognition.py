"""Which client halves of an architecture a set of tensors holds: names and shapes say width and channels."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from sigil.errors import ModelError
from sigil.models.building import assemble
from sigil.models.spec import MAX_CLASSES, ModelSpec, architecture, row_names

# A half has no last layer that would tell how many classes there are, and nothing in it depends on them.
_CLASSES = 10
_COUNTER = "num_batches_tracked"

Shapes = Mapping[str, tuple[int, ...]]


@functools.cache
def tensor_names(name: str, cut: str | None = None) -> tuple[str, ...]:
    """The tensors of an architecture up to a cut, or all; without the counters, which nothing depends on."""
    standard = ModelSpec(name=name, classes=_CLASSES, width=architecture(name).standard_width, channels=3)
    known = tuple(_shapes(standard))
    if cut is None:
        return known
    rows = row_names(name)
    front = set(rows[: rows.index(cut) + 1])
    return tuple(tensor for tensor in known if tensor.partition(".")[0] in front)


def client_halves(name: str, shapes: Shapes) -> list[ModelSpec]:
    """The client halves of an architecture whose tensors are all there, the shallowest first.

    Whatever else there is does not matter, neither other tensors nor those behind the cut.
    """
    names = tensor_names(name)
    convolution = shapes.get(names[0], ())
    last = shapes.get([tensor for tensor in names if tensor.endswith("weight")][-1], ())
    classes = last[0] if len(last) == 2 and 1 <= last[0] <= MAX_CLASSES else _CLASSES
    if len(convolution) != 4:
        return []
    try:
        whole = ModelSpec(name=name, classes=classes, width=convolution[0], channels=convolution[1])
    except ModelError:
        return []
    wanted = _shapes(dataclasses.replace(whole, classes=_CLASSES))
    wrong = {tensor.partition(".")[0] for tensor, shape in wanted.items() if shapes.get(tensor) != shape}
    halves = []
    for row in row_names(name)[:-1]:
        if row in wrong:
            break
        halves.append(dataclasses.replace(whole, part="client", cut=row))
    return halves


@functools.lru_cache(maxsize=64)
def _shapes(spec: ModelSpec) -> Mapping[str, tuple[int, ...]]:
    state = assemble(spec).state_dict()
    return {name: tuple(value.shape) for name, value in state.items() if not name.endswith(_COUNTER)}
