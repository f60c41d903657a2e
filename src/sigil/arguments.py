"""What callers of the library may give in many places: values that cannot be are one clear sentence."""

from __future__ import annotations

import operator
from typing import SupportsIndex

import torch
from torch import Tensor

from sigil.errors import ConfigError, SigilError, shown


def whole(what: str, given: SupportsIndex, *, least: int = 0, most: int | None = None) -> int:
    """A whole number between two bounds, of Python, NumPy or PyTorch, as one of Python."""
    value = operator.index(given)
    if value < least or (most is not None and value > most):
        limit = f"of at least {least}" if most is None else f"from {least} to {most:,}"
        raise ConfigError(f"{what} is {shown(given)}, but it must be a whole number {limit}.")
    return value


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
