"""The same weights in another form: what a thief can write instead of a state dict, at no cost.

- **Pairs.** Length and direction of each filter (``weight_g`` and ``weight_v``, or as parametrizations), or
  weights and a mask (``weight_orig``, ``weight_mask``), are multiplied out.
- **Shapes.** A kernel may be a matrix or a vector of the same numbers.
- **Norms.** A batch norm may be part of the convolution in front of it, which then has a bias; or that
  convolution may have a bias beside its batch norm.
- **Names.** Where names say nothing, the tensors are taken in the order of the file, or sorted by name, if
  their sizes are those of a model's tensors one after the other.

Sizes and names alone decide what fits; no value is looked at. All that fits is read, and counts as a try.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import pairwise

import torch
from torch import Tensor, nn

from sigil.models import ModelSpec
from sigil.models.building import assemble, tensor_names
from sigil.suspect.entries import Group, Listed

# How two tensors are called that are one, behind the name of their layer, and what makes one of them.
_PAIRS = (
    ("weight_g", "weight_v", "length"),
    ("parametrizations.weight.original0", "parametrizations.weight.original1", "length"),
    ("weight_orig", "weight_mask", "product"),
)
_NORM = ("weight", "bias", "running_mean", "running_var")
_DIGITS = re.compile(r"([0-9]+)")


def read(one: Listed, tensor: Callable[[Listed], Tensor]) -> Tensor:
    """The values of a tensor that may be made from others; ``tensor`` reads those that the file holds."""
    if one.made == "constant":
        return torch.full(one.shape, one.value)
    if not one.parts:
        return tensor(one)
    first, second = (tensor(part).double() for part in one.parts)
    if one.made == "less":
        return first.reshape(one.shape) - second.reshape(one.shape)
    if one.made == "length":
        length = first if first.ndim == second.ndim else first.reshape([1] * second.ndim)
        axes = [axis for axis, size in enumerate(length.shape) if size == 1]
        first = length / second.square().sum(axes, keepdim=True).sqrt()
    return (first * second).reshape(one.shape)


def multiplied_out(listed: Sequence[Listed]) -> list[Listed]:
    """The tensors of a file with each pair as what it stands for, in the place of the first of the two."""
    halves: dict[tuple[str, int], tuple[list[Listed], list[Listed]]] = {}
    for one in listed:
        for kind, endings in enumerate(_PAIRS):
            for place, ending in enumerate(endings[:2]):
                if one.name == ending or one.name.endswith(f".{ending}"):
                    halves.setdefault((one.name.removesuffix(ending), kind), ([], []))[place].append(one)
    made: dict[int, Listed | None] = {}
    for (layer, kind), both in halves.items():
        for first, second in zip(*both, strict=False):
            pair = _pair(first, second, _PAIRS[kind][2], f"{layer}weight")
            if pair is not None:
                made |= {id(first): pair, id(second): None}
    kept = (made.get(id(each), each) for each in listed)
    return [one for one in kept if one is not None]


def _pair(first: Listed, second: Listed, made: str, name: str) -> Listed | None:
    """What two tensors are together; None if their shapes do not fit."""
    sizes = first.shape or (1,) * len(second.shape)
    fits = len(sizes) == len(second.shape) and all(
        size == other or (size == 1 and made == "length")
        for size, other in zip(sizes, second.shape, strict=True)
    )
    if not fits or not (first.sound and second.sound):
        return None
    return _from(name, second.shape, made, first, second)


def _from(name: str, shape: tuple[int, ...], made: str, first: Listed, second: Listed) -> Listed:
    number = -1 - (first.number << 40 | second.number)
    return Listed(name, "float32", shape, number, True, parts=(first, second), made=made)


@lru_cache(maxsize=64)
def layout(spec: ModelSpec) -> tuple[Mapping[str, tuple[int, ...]], Mapping[str, tuple[str, float]]]:
    """Names and shapes of a model's tensors; and the convolution in front of each batch norm, with its ε."""
    model = assemble(spec)
    known = set(tensor_names(spec.name))
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items() if name in known}
    norms = {
        norm: (convolution, second.eps)
        for (convolution, first), (norm, second) in pairwise(model.named_modules())
        if isinstance(first, nn.Conv2d) and isinstance(second, nn.BatchNorm2d)
    }
    return shapes, norms


@cache
def first_kernel(name: str) -> tuple[int, ...]:
    """Height and width of the filters of an architecture's first convolution."""
    return layout(ModelSpec(name=name, classes=10, width=8, channels=3))[0][tensor_names(name)[0]][2:]


@cache
def biases(name: str) -> tuple[str, ...]:
    """The biases that convolutions in front of batch norms have beyond those of the architecture."""
    shapes, norms = layout(ModelSpec(name=name, classes=10, width=8, channels=3))
    return tuple(f"{layer}.bias" for layer, _ in norms.values() if f"{layer}.bias" not in shapes)


def completed(spec: ModelSpec, group: Group, *, biased: bool = False) -> Group:
    """A group with its tensors in a model's shapes, and with batch norms for those that were folded in.

    With ``biased``, biases of convolutions in front of batch norms count that the architecture has not.
    """
    shapes, norms = layout(spec)
    held = group.tensors
    made = {
        name: one if one.shape == shape else replace(one, shape=shape)
        for name, shape in shapes.items()
        if (one := held.get(name)) is not None and _size(one) == math.prod(shape)
    }
    for norm, (layer, epsilon) in norms.items():
        shape = shapes[f"{norm}.weight"]
        bias, own = held.get(f"{layer}.bias"), f"{layer}.bias" in shapes
        if bias is None or _size(bias) != math.prod(shape):
            continue
        mean = made.get(f"{norm}.running_mean")
        if not any(f"{norm}.{word}" in held for word in _NORM):
            values = dict(zip(_NORM, (1.0, 0.0, 0.0, 1.0 - epsilon), strict=True))
            made |= {f"{norm}.{word}": _constant(shape, value) for word, value in values.items()}
            if not own:
                made[f"{norm}.bias"] = replace(bias, shape=shape)
        elif biased and not own and mean is not None:
            made[f"{norm}.running_mean"] = _from(mean.name, shape, "less", mean, bias)
    return Group(group.entry, made)


def _constant(shape: tuple[int, ...], value: float) -> Listed:
    return Listed("", "float32", shape, -1, True, made="constant", value=value)


def orders(listed: Sequence[Listed]) -> list[tuple[str, list[Listed]]]:
    """Tensors in the order of the file and sorted by name, numbers as numbers; and both with pairs as one."""
    found = [("in order", list(listed)), ("by name", sorted(listed, key=_natural))]
    paired = [(word, _paired(tensors)) for word, tensors in found]
    return found + [(word, tensors) for word, tensors in paired if len(tensors) < len(listed)]


def in_order(half: ModelSpec, ordered: Sequence[tuple[str, list[Listed]]]) -> Iterator[Group]:
    """Tensors whose sizes are those of a client half one after the other, whatever they are called.

    ``ordered`` are the :func:`orders` to look through; tensors of sizes that the half does not have may lie
    between them.
    """
    shapes, norms = layout(half)
    folded = {f"{norm}.{word}" for norm in norms for word in _NORM}
    added = {f"{layer}.weight": f"{layer}.bias" for layer, _ in norms.values()}
    plain = list(shapes)
    biased = list(dict.fromkeys(each for name in plain for each in (name, added.get(name)) if each))
    apart = sorted(plain, key=lambda name: name.endswith(_NORM[2:]))  # parameters, then buffers
    forms = [plain, biased, [name for name in biased if name not in folded], apart]
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    sizes |= {bias: shapes[weight][0] for weight, bias in added.items()}
    for word, tensors in ordered:
        for form in dict.fromkeys(map(tuple, forms)):
            for found in _runs([sizes[name] for name in form], tensors):
                yield Group(f"{found[0].name} ({word})", dict(zip(form, found, strict=True)))


def _runs(sizes: Sequence[int], tensors: Sequence[Listed]) -> Iterator[list[Listed]]:
    """Where tensors of these sizes follow each other, others left out."""
    known = set(sizes)
    some = [one for one in tensors if _size(one) in known]
    theirs, wanted = [_size(one) for one in some], list(sizes)
    for start in range(len(some) - len(sizes) + 1):
        if theirs[start] == wanted[0] and theirs[start : start + len(wanted)] == wanted:
            yield some[start : start + len(wanted)]


def _paired(tensors: Sequence[Listed]) -> list[Listed]:
    """With the lengths of filters, (n, 1, 1, 1), multiplied into the directions beside them, (n, …)."""
    made: list[Listed] = []
    for one in tensors:
        before = made[-1] if made and not made[-1].parts else one
        length, direction = sorted((before, one), key=_size)
        if (
            _size(length) < _size(direction)
            and len(direction.shape) > 1
            and length.shape == (direction.shape[0], *[1] * (len(direction.shape) - 1))
        ):
            made[-1] = _from(before.name, direction.shape, "length", length, direction)
        else:
            made.append(one)
    return made


def _natural(one: Listed) -> list[tuple[int, int, str]]:
    """Numbers in a name as numbers; of long ones the end counts."""
    parts = _DIGITS.split(one.name[-200:])
    return [(0, int(part), "") if place % 2 else (1, 0, part) for place, part in enumerate(parts)]


def _size(one: Listed) -> int:
    return math.prod(one.shape)
