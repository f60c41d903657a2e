"""Cut a model into the half that clients train and the half that the server keeps, and back."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from sigil import arguments
from sigil.errors import ModelError
from sigil.models.building import Model, copied_rows, from_rows, rows_of
from sigil.models.spec import Part, check_cut, check_range, shown, unknown


def split(model: Model, cut: str, *, copy: bool = True) -> tuple[Model, Model]:
    """Cut a whole model after the row ``cut``: (client half, server half), both copies.

    The halves share no memory with the model or with each other, their state-dict keys are those of
    the model, and ``server_half(client_half(x))`` equals ``model(x)`` bit for bit. Without ``copy`` they
    take the model's own rows, which is faster where the model is not needed any more.
    """
    _check_part(model, "whole")
    check_cut(model.spec.name, cut)
    client, server = (
        from_rows(_rows(model, rows_of(spec), copy=copy), spec)
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
    model = from_rows(rows, replace(client_half.spec, part="whole", cut=None))
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
    arguments.module("model", module, outline=True, raises=ModelError)
    input_shape = arguments.sizes("input shape", input_shape, raises=ModelError)
    for size in input_shape:
        check_range("a dimension of the input shape", size, 1, 2**31 - 1)
    if cut is not None:
        module = _up_to(module, cut)
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


def _up_to(module: nn.Module, cut: str) -> nn.Module:
    """The rows of a model up to ``cut`` as one module; they are shared, not copied."""
    if not isinstance(module, Model):
        raise ModelError("only a model of sigil.models has named cut points: leave cut away")
    rows = dict(module.named_children())
    if cut not in rows:
        raise unknown(f"row in the {module.spec}", cut, rows)
    end = list(rows).index(cut) + 1
    upper = nn.Sequential(*list(rows.values())[:end])
    upper.training = module.training
    return upper


def _rows(model: Model, rows: Sequence[str], *, copy: bool = True) -> OrderedDict[str, nn.Module]:
    found = OrderedDict((row, model.get_submodule(row)) for row in rows)
    return copied_rows(found, rows) if copy else found


def _check_part(model: nn.Module, part: Part) -> None:
    expected = "a whole model" if part == "whole" else f"a {part} half"
    if not isinstance(model, Model):
        raise ModelError(
            f"{expected} of sigil.models was expected, not a {shown(type(model).__name__)}: "
            "cut a model of your own into two modules yourself"
        )
    if model.spec.part != part:
        raise ModelError(f"{expected} was expected, not the {model.spec}")
