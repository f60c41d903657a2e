"""What trains and looks into networks without PyTorch's compiler, to the bit the same.

At their first call PyTorch's optimizers, and modes that see every operator, import ``torch._dynamo``, only to
tell the compiler to leave them alone. A backward pass that is given a gradient imports SymPy, only to compare
two shapes, and so does a convolution on the device meta. That takes one to three seconds of processor time in
every process, and nothing here is compiled. What is here calls the same code without that.
"""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from sigil.errors import ShapeError

Kind = TypeVar("Kind", bound=type[torch.optim.Optimizer])


def _without_compiler(kind: Kind) -> Kind:
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        setattr(kind, name, inspect.unwrap(getattr(kind, name)))
    kind.step = torch.no_grad()(inspect.unwrap(kind.step))  # type: ignore[method-assign]
    return kind


@_without_compiler
class SGD(torch.optim.SGD):
    """:class:`torch.optim.SGD`; its arguments but `differentiable`."""


@_without_compiler
class Adam(torch.optim.Adam):
    """:class:`torch.optim.Adam`; its arguments but `differentiable`."""


def backward(output: Tensor, gradient: Tensor) -> None:
    """``output.backward(gradient)``, of the same shape and number format."""
    if gradient.shape != output.shape:
        raise ShapeError(
            f"A gradient of the shape {tuple(gradient.shape)} was given for an output of the shape "
            f"{tuple(output.shape)}; they must be the same."
        )
    _Given.apply(output, gradient).backward()  # type: ignore[no-untyped-call]


class _Given(torch.autograd.Function):
    """A number of which the gradient with respect to an output is what was given."""

    @staticmethod
    def forward(context: Any, output: Tensor, gradient: Tensor) -> Tensor:
        context.gradient = gradient
        return output.new_zeros(())

    @staticmethod
    def backward(context: Any, *one: Any) -> tuple[Tensor, None]:
        return context.gradient, None


class Mode(TorchDispatchMode):
    """A ``TorchDispatchMode``: sees every operator of PyTorch's that is called in its ``with``."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class Outline(Mode):
    """Of what a network of convolutions in evaluation mode computes on the device meta, the shapes."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operator = str(func.overloadpacket.__name__)
        if operator == "convolution":
            images, weight, _, strides, paddings, dilations, _, _, groups = args
            kernels = zip(images.shape[2:], weight.shape[2:], strides, paddings, dilations, strict=False)
            sizes = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in kernels]
            if images.ndim != weight.ndim or images.shape[1] != groups * weight.shape[1] or min(sizes) < 1:
                raise RuntimeError(f"{tuple(weight.shape)} filters cannot be used on {tuple(images.shape)}.")
            return images.new_empty((len(images), len(weight), *sizes))
        if "batch_norm" in operator:
            return args[0].new_empty(args[0].shape), args[0].new_empty(0), args[0].new_empty(0)
        if operator in ("cat", "mean") or "pool" in operator:  # of no image at all on the CPU
            made = func(*tree_map_only(Tensor, lambda one: torch.empty(0, *one.shape[1:]), args))
            return tree_map_only(Tensor, lambda one: torch.empty(1, *one.shape[1:], device="meta"), made)
        # What works in place leaves the shape as it is.
        return args[0] if operator.endswith("_") else func(*args, **(kwargs or {}))
