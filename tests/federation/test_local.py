from __future__ import annotations

import pytest
import torch
from torch import nn

from sigil.errors import ConfigError
from sigil.federation.from_settings import fresh_optimizer
from sigil.federation.precision import choose
from sigil.federation.settings import make

CPU = choose("cpu", "float32")


def test_the_optimizer_is_the_one_that_the_settings_name() -> None:
    half = nn.Linear(3, 2)
    sgd = fresh_optimizer(half, 0.1, settings=make({}), precision=CPU)
    assert isinstance(sgd, torch.optim.SGD)
    assert (sgd.defaults["lr"], sgd.defaults["momentum"], sgd.defaults["weight_decay"]) == (0.1, 0.9, 5e-4)
    settings = make({"optimizer": {"name": "adam", "weight_decay": 0.0}})
    adam = fresh_optimizer(half, 1e-3, settings=settings, precision=CPU)
    assert isinstance(adam, torch.optim.Adam)
    assert (adam.defaults["lr"], adam.defaults["weight_decay"]) == (1e-3, 0.0)


def test_adams_first_step_is_the_rate_whatever_the_gradients_size() -> None:
    half = nn.Linear(3, 2)
    before = half.weight.detach().clone()
    settings = make({"optimizer": {"name": "adam", "weight_decay": 0.0}})
    optimizer = fresh_optimizer(half, 1e-3, settings=settings, precision=CPU)
    (1e-4 * half.weight.sum()).backward()
    optimizer.step()
    torch.testing.assert_close(half.weight, before - 1e-3, rtol=1e-3, atol=1e-5)


def test_an_unknown_optimizer_is_named() -> None:
    with pytest.raises(ConfigError, match=r"optimizer\.name"):
        make({"optimizer": {"name": "lion"}})
