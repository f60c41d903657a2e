from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from sigil.errors import ConfigError
from sigil.federation.from_settings import fresh_optimizer, scheduled_rate
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


def rates(rounds: int, warmup: int) -> list[float]:
    settings = make({"federation": {"rounds": rounds}, "optimizer": {"warmup_rounds": warmup}})
    return [scheduled_rate(settings, number) for number in range(1, rounds + 1)]


def test_the_papers_schedule() -> None:
    got = rates(80, 5)
    assert got[:5] == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1])
    assert got[-1] == pytest.approx(1e-4)
    assert all(later < earlier for earlier, later in pairwise(got[4:]))
    # Half way through the cosine the rate is half way between its ends.
    assert rates(79, 5)[41] == pytest.approx((0.1 + 1e-4) / 2)


@pytest.mark.parametrize(("rounds", "warmup"), [(1, 0), (1, 5), (2, 0), (3, 3), (5, 10)])
def test_short_runs_have_positive_finite_rates(rounds: int, warmup: int) -> None:
    assert all(0 < rate <= 0.1 + 1e-12 for rate in rates(rounds, warmup))


def test_without_warmup_the_first_round_has_the_full_rate() -> None:
    assert rates(10, 0)[0] == pytest.approx(0.1)
