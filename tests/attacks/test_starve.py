"""Starving: the task's part of the answers stays, the capped mark's does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sigil.attacks import Starve
from sigil.errors import AttackError
from sigil.federation.observers import Step
from sigil.injector import Injector
from sigil.keys.key import Key

LABELS = torch.zeros(32, dtype=torch.long)
AT = Step(1, 0, 1)


def mark_share(starve: Starve, *, cap: bool) -> float:
    """The mark's share of the gradient that a client uses, of a linear server with an injector."""
    generator = torch.Generator().manual_seed(0)
    key = Key.generate("ACME", shape=(8, 4, 4), bits=16, seed=bytes(32))
    injector = Injector(key, 0.1, cap=cap)
    activation = torch.rand(32, 8, 4, 4, generator=generator)
    server = torch.randn(10, 128, generator=generator)
    gradient = 0.01 * torch.randn(32, 10, generator=generator)
    sent = starve.on_logit_gradient(AT, gradient, logits=torch.zeros(32, 10), labels=LABELS)
    main = (sent @ server).view_as(activation)
    used = starve.on_gradient_received(AT, injector(activation, main), LABELS)
    honest = (gradient @ server).view_as(activation)
    return float((used - honest).norm() / honest.norm())


def test_a_capped_mark_starves_and_an_uncapped_one_does_not() -> None:
    assert mark_share(Starve(1.0), cap=True) == pytest.approx(0.1, rel=0.01)
    assert mark_share(Starve(1e4), cap=True) < 1e-3
    for factor in (1e-20, 1e-4, 1e4, 1e12):
        assert mark_share(Starve(factor), cap=False) == pytest.approx(0.1, rel=0.01), factor


def test_the_answer_keeps_layout_and_dtype_and_is_not_touched() -> None:
    answer = torch.randn(4, 8, 2, 2).to(memory_format=torch.channels_last)
    kept = answer.clone()
    used = Starve(4.0).on_gradient_received(AT, answer, LABELS)
    assert used.is_contiguous(memory_format=torch.channels_last)
    assert used.dtype == answer.dtype
    torch.testing.assert_close(used, kept / 4)
    assert torch.equal(answer, kept)


def test_only_the_chosen_clients() -> None:
    gradient = torch.randn(4, 10)
    starve = Starve(1e4, clients=[1])
    options: dict[str, Any] = {"logits": gradient, "labels": LABELS}
    assert starve.on_logit_gradient(AT, gradient, **options) is gradient
    assert starve.on_gradient_received(AT, gradient, LABELS) is gradient
    other = Step(1, 1, 1)
    torch.testing.assert_close(starve.on_logit_gradient(other, gradient, **options), gradient * 1e4)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_factors(factor: float) -> None:
    with pytest.raises(AttackError, match="factor"):
        Starve(factor)
