"""Build a model: rows of a table in order, weights drawn from a seed."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from typing import Any, Self, TypeVar, cast

import torch
from torch import nn

from sigil.errors import ModelError
from sigil.models.spec import ModelSpec, architecture, check_range, row_names, shown

MAX_INPUT_SIZE = 4096
M = TypeVar("M", bound=nn.Module)
_UNCHANGING = frozenset((type(None), bool, int, float, str))


class Model(nn.Sequential):
    """A whole model or a half of one: an ``nn.Sequential`` of the rows of the paper's table.

    Takes images (N, channels, H, W), or activations if it is a server half; gives logits (N,
    classes), or activations if it is a client half.
    """

    spec: ModelSpec
    #: Shape (channels, H, W) of the images that it was built for, None if that is not known; a
    #: server half, which sees no images, never knows.
    input_shape: tuple[int, int, int] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return _copied(self, memo)


def build(
    name: str,
    *,
    classes: int = 10,
    width: int | None = None,
    channels: int = 3,
    input_size: int | tuple[int, int] | None = None,
    seed: int | None = None,
) -> Model:
    """Make a freshly initialised model of one of the paper's four architectures, on the CPU.

    ``width`` is the number of channels of the first convolution and scales all others; None is the
    standard one (``mobilenetv2`` 32, the others 64). ``channels`` is that of the images.
    ``input_size`` (one side, or height and width) changes nothing in the model, which takes images
    of any size; it is kept as ``model.input_shape``.

    With ``seed`` the weights depend on that number alone and the global random state is left as it
    is; without, they are drawn from PyTorch's global generator.
    """
    if width is None:
        width = architecture(name).standard_width
    spec = ModelSpec(name=name, classes=classes, width=width, channels=channels)
    input_shape = None if input_size is None else _input_shape(channels, input_size)
    generator = None
    if seed is not None:
        check_range("seed", seed, 0, 2**63 - 1)
        generator = torch.Generator().manual_seed(seed)
    model = _with_memory(assemble(spec))
    _initialise(model, generator)
    model.input_shape = input_shape
    return model


def assemble(spec: ModelSpec) -> Model:
    """The structure that ``spec`` describes, on the meta device: names and shapes, no memory."""
    outline = _outline(spec.name, spec.width, spec.channels, spec.classes)
    return from_rows(copied_rows(outline, rows_of(spec)), spec)


@lru_cache(maxsize=32)
def _outline(name: str, width: int, channels: int, classes: int) -> Mapping[str, nn.Module]:
    """All rows on the meta device, to be copied: making them takes four times as long."""
    with torch.device("meta"):
        return architecture(name).rows(width, channels, classes)


def copied_rows(rows: Mapping[str, nn.Module], names: Sequence[str]) -> OrderedDict[str, nn.Module]:
    """Copies of some rows, which share no memory with them; what they share with each other, copies share."""
    memo: dict[int, Any] = {}
    return OrderedDict((name, _copied_part(rows[name], memo)) for name in names)


def _copied(module: M, memo: dict[int, Any]) -> M:
    """What ``copy.deepcopy`` gives of a module, in a quarter of the time.

    Most of what a module holds are numbers, and collections of hooks, which are empty.
    """
    if id(module) in memo:
        return cast(M, memo[id(module)])
    made = memo[id(module)] = module.__new__(type(module))
    content = vars(made)
    for name, value in vars(module).items():
        if name == "_modules":
            content[name] = type(value)((key, _copied_part(part, memo)) for key, part in value.items())
        elif type(value) in _UNCHANGING:
            content[name] = value
        elif type(value) in (dict, OrderedDict, set) and not value:
            content[name] = type(value)()
        else:
            content[name] = deepcopy(value, memo)
    return made


def _copied_part(part: M, memo: dict[int, Any]) -> M:
    # A module that says itself how it is copied, such as a parametrised or a scripted one, is asked.
    if part is None or hasattr(type(part), "__deepcopy__"):
        return deepcopy(part, memo)
    return _copied(part, memo)


def _with_memory(model: Model) -> Model:
    """A model of the meta device on the CPU, not set yet; `to_empty` imports SymPy, for half a second."""
    model._apply(  # type: ignore[no-untyped-call]
        lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    )
    return model


def from_rows(rows: OrderedDict[str, nn.Module], spec: ModelSpec) -> Model:
    """Chain the rows, which are used as they are, to the model or half that ``spec`` describes."""
    model = Model(rows)
    model.spec = spec
    return model


def rows_of(spec: ModelSpec) -> tuple[str, ...]:
    """The rows of the table that a model or half has, in order."""
    rows = row_names(spec.name)
    if spec.cut is None:
        return rows
    end = rows.index(spec.cut) + 1
    return rows[:end] if spec.part == "client" else rows[end:]


def check_input_shape(shape: tuple[object, ...]) -> None:
    """Raise unless ``shape`` is that of one image, (channels, height, width), within bounds."""
    if len(shape) != 3:
        raise ModelError(f"an input shape is (channels, height, width), not {shown(shape)}")
    for what, side in zip(("height", "width"), shape[1:], strict=True):
        check_range(f"the {what} of an image", side, 1, MAX_INPUT_SIZE)


def _input_shape(channels: int, size: int | tuple[int, int]) -> tuple[int, int, int]:
    sides = (size, size) if isinstance(size, int) else size
    if not isinstance(sides, Sequence) or len(sides) != 2:
        raise ModelError(f"input_size is one side or (height, width), not {shown(size)}")
    height, width = sides
    check_input_shape((channels, height, width))
    return (channels, height, width)


def _initialise(model: nn.Module, generator: torch.Generator | None) -> None:
    """Set every tensor of an empty model.

    Convolutions: Kaiming normal over the fan-out, N(0, 2/fan_out), biases 0. Batch norms: 1 and 0.
    Linear layers: PyTorch's own, weights and biases U(−1/√inputs, 1/√inputs).
    """
    for module in model.modules():
        match module:
            case nn.Conv2d():
                nn.init.kaiming_normal_(
                    module.weight, mode="fan_out", nonlinearity="relu", generator=generator
                )
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            case nn.BatchNorm2d():
                module.reset_parameters()
            case nn.Linear():
                bound = 1 / math.sqrt(module.in_features)
                nn.init.uniform_(module.weight, -bound, bound, generator=generator)
                nn.init.uniform_(module.bias, -bound, bound, generator=generator)
