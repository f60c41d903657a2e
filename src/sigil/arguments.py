"""What callers of the library may give: anything else is one clear sentence, never an error from inside.

Whole numbers may come from Python, NumPy or a tensor with one whole number; a truth value is none. Each check
returns what was given in the plain form that the rest of the code expects.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sigil.errors import ConfigError, ShapeError, SigilError, shown


def is_whole(given: object) -> bool:
    """Whether something is a whole number, and no truth value."""
    try:
        operator.index(given)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        return False
    return not isinstance(given, bool)


def whole(
    what: str,
    given: Any,
    *,
    least: int = 0,
    most: int | None = None,
    raises: type[SigilError] = ConfigError,
) -> int:
    """A whole number between two bounds."""
    if is_whole(given):
        value = operator.index(given)
        if least <= value and (most is None or value <= most):
            return value
    limit = f"of at least {least}" if most is None else f"from {least} to {most:,}"
    raise raises(f"{what} is {shown(given)}, but it must be a whole number {limit}.")


def sizes(what: str, given: object, *, raises: type[SigilError] = ShapeError) -> tuple[int, ...]:
    """A shape as plain whole numbers, whatever their values."""
    if isinstance(given, Iterable) and not isinstance(given, str | bytes | dict | set):
        try:
            found = list(given)
        except TypeError:  # a tensor without axes
            found = [None]
        if all(is_whole(size) for size in found):
            return tuple(operator.index(size) for size in found)
    raise raises(f"The {what} is {shown(given)}, but it must be whole numbers, such as (3, 32, 32).")


def tensor(
    what: str, given: object, *, outline: bool = False, raises: type[SigilError] = ConfigError
) -> Tensor:
    """A dense tensor of PyTorch; it must have numbers unless an `outline` will do."""
    if not isinstance(given, Tensor):
        raise raises(
            f"The {what} is of type {type(given).__name__}, but a tensor of PyTorch is wanted, a batch of "
            "shape (n, …)."
        )
    empty = given.is_meta and not outline
    if empty or given.is_nested or given.is_quantized or given.layout is not torch.strided:
        kind = "on the device meta" if empty else "nested, quantized or sparse"
        raise raises(f"The {what} is {kind}, but a dense tensor with numbers in it is wanted.")
    return given


def shape_of_one(what: str, batch: object) -> tuple[int, ...]:
    """The shape of one sample in a batch of several; their numbers do not matter."""
    if not isinstance(batch, Tensor) or batch.is_nested:
        raise ShapeError(f"A batch of {what} (n, …) as a tensor is wanted, not {type(batch).__name__}.")
    if batch.ndim < 2 or not len(batch):
        raise ShapeError(
            f"A batch of {what} (n, …) is wanted, but the tensor has the shape {tuple(batch.shape)}."
        )
    return tuple(batch.shape[1:])


def check_module(what: str, given: object, *, raises: type[SigilError] = ConfigError) -> None:
    """Raise for what is no module (a path, a state dict) or only the outline of one: lazy, on device meta."""
    if not isinstance(given, nn.Module):
        raise raises(f"The {what} is of type {type(given).__name__}, but a module of PyTorch is wanted.")
    for each in (*given.parameters(), *given.buffers()):
        if is_lazy(each):
            raise raises(f"The {what} has lazy layers without a shape; run one batch through it first.")
        if each.is_meta:
            raise raises(f"The {what} is on the device meta and has no numbers; load its weights first.")
