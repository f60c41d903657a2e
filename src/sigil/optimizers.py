"""PyTorch's SGD and Adam without its compiler, to the bit the same.

At their first call the methods of PyTorch's optimizers import ``torch._dynamo``, only to tell the compiler to
leave them alone. That takes more than a second of processor time in every process that trains, and nothing
here is compiled. These classes call the same methods without that wrapper.
"""

from __future__ import annotations

import inspect

import torch


class SGD(torch.optim.SGD):
    """:class:`torch.optim.SGD`; its arguments but `differentiable`."""

    add_param_group = inspect.unwrap(torch.optim.SGD.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.SGD.zero_grad)
    state_dict = inspect.unwrap(torch.optim.SGD.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.SGD.load_state_dict)
    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))


class Adam(torch.optim.Adam):
    """:class:`torch.optim.Adam`; its arguments but `differentiable`."""

    add_param_group = inspect.unwrap(torch.optim.Adam.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Adam.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Adam.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Adam.load_state_dict)
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))
