"""Which of the four architectures a set of weights is: names and shapes say width, channels and classes."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from sigil.errors import ModelError
from sigil.models.building import assemble
from sigil.models.spec import ModelSpec, architecture, cut_points, default_cut, names, row_names

# A half has no last layer that would tell how many classes there are, and nothing in it depends on them.
_CLASSES = 10

Shapes = Mapping[str, tuple[int, ...]]


def recognise(shapes: Shapes) -> ModelSpec | None:
    """The model whose weights have these names and shapes, whole or a client half; None if it is another.

    A file that holds all rows is a whole model. One that ends earlier is the client half at the deepest cut
    whose rows it holds.
    """
    for name in names():
        found = _as(name, shapes)
        if found is not None:
            return found
    return None


def complete_cut(name: str, shapes: Shapes) -> str:
    """The paper's cut if the rows in front of it are all there, or else the deepest one that is."""
    present = {tensor.partition(".")[0] for tensor in shapes}
    owners = {tensor.partition(".")[0] for tensor in _standard(name)}
    complete = []
    for row in row_names(name):
        if row in owners and row not in present:
            break
        complete.append(row)
    usual, possible = default_cut(name), [cut for cut in cut_points(name) if cut in complete]
    return usual if usual in possible or not possible else possible[-1]


def _as(name: str, shapes: Shapes) -> ModelSpec | None:
    standard = _standard(name)
    first, last = next(iter(standard)), [tensor for tensor in standard if tensor.endswith("weight")][-1]
    convolution = shapes.get(first, ())
    if len(convolution) != len(standard[first]):
        return None
    classes = shapes[last][0] if len(shapes.get(last, ())) == 2 else _CLASSES
    try:
        whole = ModelSpec(name=name, classes=classes, width=convolution[0], channels=convolution[1])
    except ModelError:
        return None
    wanted = {tensor: tuple(value.shape) for tensor, value in assemble(whole).state_dict().items()}
    if any(wanted.get(tensor) != shape for tensor, shape in shapes.items()):
        return None
    counted = {tensor for tensor in wanted if not tensor.endswith("num_batches_tracked")}
    if counted <= set(shapes):
        return whole
    cut = complete_cut(name, shapes)
    return ModelSpec(
        name=name, classes=classes, width=whole.width, channels=whole.channels, part="client", cut=cut
    )


@functools.cache
def _standard(name: str) -> dict[str, tuple[int, ...]]:
    spec = ModelSpec(name=name, classes=_CLASSES, width=architecture(name).standard_width, channels=3)
    return {tensor: tuple(value.shape) for tensor, value in assemble(spec).state_dict().items()}
