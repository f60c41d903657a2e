"""PyTorch's SGD and Adam without its compiler, to the bit the same.

At their first call the methods of PyTorch's optimizers import ``torch._dynamo``, only to tell the compiler to
leave them alone. That takes more than a second of processor time in every process that trains, and nothing
here is compiled. These classes call the same methods without that wrapper.
"""

from __future__ import annotations

import inspect
from typing import TypeVar

import torch

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
