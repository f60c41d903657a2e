"""Models and their halves: built row by row with weights from a seed, cut, joined, known by their tensors."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache, lru_cache

import torch
from torch import Tensor, nn

from sigil.errors import ModelError, shown
from sigil.models.spec import (
    MAX_CLASSES,
    ModelSpec,
    Part,
    architecture,
    check_cut,
    check_range,
    row_names,
    unknown,
)

MAX_INPUT_SIZE = 4096
# A half has no last layer that would tell how many classes there are, and nothing in it depends on them.
_CLASSES = 10
COUNTER = "num_batches_tracked"

Shapes = Mapping[str, tuple[int, ...]]


class Model(nn.Sequential):
    """A whole model or a half of one: an ``nn.Sequential`` of the rows of the paper's table.

    Takes images (N, channels, H, W), or activations if it is a server half; gives logits (N,
    classes), or activations if it is a client half.
    """

    spec: ModelSpec
    #: Shape (channels, H, W) of the images that it was built for, None if that is not known; a
    #: server half, which sees no images, never knows.
    input_shape: tuple[int, int, int] | None = None


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
        width = architecture(name).STANDARD_WIDTH
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
    with torch.device("meta"):
        rows = architecture(spec.name).rows(spec.width, spec.channels, spec.classes)
    return _from_rows(OrderedDict((name, rows[name]) for name in rows_of(spec)), spec)


def _with_memory(model: Model) -> Model:
    """A model of the meta device on the CPU, not set yet; `to_empty` imports SymPy, for half a second."""
    model._apply(  # type: ignore[no-untyped-call]
        lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    )
    return model


def _from_rows(rows: OrderedDict[str, nn.Module], spec: ModelSpec) -> Model:
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


def split(model: Model, cut: str, *, copy: bool = True) -> tuple[Model, Model]:
    """Cut a whole model after the row ``cut``: (client half, server half), both copies.

    The halves share no memory with the model or with each other, their state-dict keys are those of
    the model, and ``server_half(client_half(x))`` equals ``model(x)`` bit for bit. Without ``copy`` they
    take the model's own rows, which is faster where the model is not needed any more.
    """
    _check_part(model, "whole")
    check_cut(model.spec.name, cut)
    client, server = (
        _from_rows(_rows(model, rows_of(spec), copy=copy), spec)
        for spec in (
            replace(model.spec, part="client", cut=cut),
            replace(model.spec, part="server", cut=cut),
        )
    )
    client.training = server.training = model.training
    client.input_shape = model.input_shape
    return client, server


def join(client_half: Model, server_half: Model) -> Model:
    """Put two halves that were cut at the same row together again; the model is a copy."""
    _check_part(client_half, "client")
    _check_part(server_half, "server")
    if replace(client_half.spec, part="server") != server_half.spec:
        raise ModelError(
            f"the {client_half.spec} does not fit the {server_half.spec}: "
            "join halves of one model, cut at the same row"
        )
    rows = _rows(client_half, rows_of(client_half.spec))
    rows.update(_rows(server_half, rows_of(server_half.spec)))
    model = _from_rows(rows, replace(client_half.spec, part="whole", cut=None))
    model.training = client_half.training
    model.input_shape = client_half.input_shape
    return model


def activation_shape(
    module: nn.Module, input_shape: Sequence[int], *, cut: str | None = None
) -> tuple[int, ...]:
    """The shape of what ``module`` makes of one input, both without the batch dimension.

    With ``cut``, the shape after that row: ``activation_shape(model, (3, 32, 32), cut="layer3")``.
    Found by a forward pass of one zero input in evaluation mode, so it works for any module with
    one tensor in and one out; the module is left as it was.
    """
    for size in input_shape:
        check_range("a dimension of the input shape", int(size), 1, 2**31 - 1)
    if cut is not None:
        if not isinstance(module, Model):
            raise ModelError("only a model of sigil.models has named cut points: leave cut away")
        rows = dict(module.named_children())
        if cut not in rows:
            raise unknown(f"row in the {module.spec}", cut, rows)
        module = nn.Sequential(*itertools.islice(rows.values(), list(rows).index(cut) + 1))
    tensors = itertools.chain(module.parameters(), module.buffers())
    example = next((t for t in tensors if t.is_floating_point()), torch.empty(0))
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        with torch.no_grad():
            output = module(torch.zeros(1, *input_shape, dtype=example.dtype, device=example.device))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"the model does not take inputs of shape {input_shape}: {reason}") from error
    finally:
        for part in training:
            part.training = True
    if not isinstance(output, Tensor):
        raise ModelError(
            f"the model returns a {type(output).__name__}, but a client half must return one tensor"
        )
    return tuple(output.shape[1:])


def _rows(model: Model, rows: Sequence[str], *, copy: bool = True) -> OrderedDict[str, nn.Module]:
    kept = OrderedDict((row, model.get_submodule(row)) for row in rows)
    return deepcopy(kept) if copy else kept


def _check_part(model: nn.Module, part: Part) -> None:
    expected = "a whole model" if part == "whole" else f"a {part} half"
    if not isinstance(model, Model):
        raise ModelError(
            f"{expected} of sigil.models was expected, not a {shown(type(model).__name__)}: "
            "cut a model of your own into two modules yourself"
        )
    if model.spec.part != part:
        raise ModelError(f"{expected} was expected, not the {model.spec}")


@cache
def tensor_names(name: str, cut: str | None = None) -> tuple[str, ...]:
    """The tensors of an architecture up to a cut, or all; without the counters, which nothing depends on."""
    standard = ModelSpec(name=name, classes=_CLASSES, width=architecture(name).STANDARD_WIDTH, channels=3)
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
    wanted = _shapes(replace(whole, classes=_CLASSES))
    wrong = {tensor.partition(".")[0] for tensor, shape in wanted.items() if shapes.get(tensor) != shape}
    halves = []
    for row in row_names(name)[:-1]:
        if row in wrong:
            break
        halves.append(replace(whole, part="client", cut=row))
    return halves


@lru_cache(maxsize=64)
def _shapes(spec: ModelSpec) -> Mapping[str, tuple[int, ...]]:
    state = assemble(spec).state_dict()
    return {name: tuple(value.shape) for name, value in state.items() if not name.endswith(COUNTER)}
