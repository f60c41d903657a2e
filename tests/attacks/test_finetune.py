"""The four kinds of fine-tuning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from harness.luck import Margin
from sigil import attacks, models
from sigil.data import Dataset
from sigil.errors import AttackError

LAST = {"fc.2.weight", "fc.2.bias"}


def changed(before: models.Model, after: models.Model) -> set[str]:
    new = after.state_dict()
    return {name for name, value in before.state_dict().items() if not torch.equal(value, new[name])}


def test_it_trains(digits: Dataset, margin: Margin) -> None:
    fresh = models.build("vgg11", classes=10, width=8, channels=1, seed=0)
    tuned = attacks.finetune(fresh, digits, epochs=25, lr=0.05, batch_size=32)
    before, after = (attacks.measure(m, data=digits).accuracy for m in (fresh, tuned))
    assert before is not None
    assert after is not None
    margin("accuracy before", before, below=0.3)
    margin("accuracy gained", after - before, above=0.3)


def test_last_leaves_everything_else_alone(marked: Any, digits: Dataset) -> None:
    assert changed(marked.whole, attacks.finetune(marked.whole, digits, kind="last", steps=3)) == LAST
    everything = changed(marked.whole, attacks.finetune(marked.whole, digits, kind="all", steps=3))
    assert everything >= set(dict(marked.whole.named_parameters()))
    assert "stage1.1.running_mean" in everything


def test_reset_draws_the_last_layer_anew(marked: Any, digits: Dataset) -> None:
    # At so small a rate training changes nothing to speak of: what is left is the fresh layer.
    options: dict[str, Any] = {"steps": 1, "lr": 1e-12}
    bound = 64**-0.5
    for kind in ("reset-all", "reset-last"):
        weight = attacks.finetune(marked.whole, digits, kind=kind, **options).state_dict()["fc.2.weight"]
        assert float(weight.abs().max()) <= bound * 1.001
        assert float(weight.std()) == pytest.approx(bound / 3**0.5, rel=0.1)
        assert not torch.allclose(weight, marked.whole.state_dict()["fc.2.weight"], atol=0.01)
    reset = attacks.finetune(marked.whole, digits, kind="reset-last", steps=3)
    assert changed(marked.whole, reset) == LAST
    assert changed(marked.whole, attacks.finetune(marked.whole, digits, kind="reset-all", steps=3)) > LAST


def test_a_hundred_steps_if_not_said(marked: Any, digits: Dataset) -> None:
    totals: set[int] = set()
    attacks.finetune(
        marked.whole, digits, kind="last", batch_size=16, progress=lambda done, total: totals.add(total)
    )
    assert totals == {100}


def test_bad_input(marked: Any, digits: Dataset) -> None:
    bad: Any = "first"
    with pytest.raises(AttackError, match="first"):
        attacks.finetune(marked.whole, digits, kind=bad)
    with pytest.raises(AttackError, match="classes"):
        attacks.finetune(marked.whole, replace(digits, classes=3), steps=1)
    with pytest.raises(AttackError, match="both halves"):
        attacks.finetune(marked.halves[0], digits, steps=1)
