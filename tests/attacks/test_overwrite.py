"""A second mark over the first."""

from __future__ import annotations

from typing import Any

import pytest

from harness.luck import Margin
from sigil import attacks
from sigil.data import Dataset
from sigil.errors import AttackError, SigilError
from sigil.keys.key import Key


def test_the_second_mark_is_embedded(marked: Any, digits: Dataset, margin: Margin) -> None:
    second = Key.generate("Mallory", shape=(16, 2, 2), bits=16, seed=bytes([1] * 32))

    def wsr(model: Any) -> float:
        report = attacks.measure(model, key=second, probes=64).report
        assert report is not None
        return report.wsr

    options: dict[str, Any] = {"epochs": 40, "lr": 0.1, "batch_size": 32}
    attacked = attacks.overwrite(marked.halves, digits, second, strength=1.0, **options)
    control = attacks.overwrite(marked.halves, digits, second, strength=0.0, **options)
    margin("WSR gained", wsr(attacked) - wsr(control), above=0.15)
    margin("WSR", wsr(attacked), above=0.6)


def test_ten_epochs_if_not_said(marked: Any, digits: Dataset) -> None:
    totals: set[int] = set()
    attacks.overwrite(marked.halves, digits, marked.key, progress=lambda done, total: totals.add(total))
    assert totals == {10}


def test_bad_input(marked: Any, digits: Dataset) -> None:
    other = Key.generate("Mallory", shape=(16, 4, 4), bits=16, seed=bytes(32))
    with pytest.raises(AttackError, match="make a key"):
        attacks.overwrite(marked.halves, digits, other)
    with pytest.raises(SigilError, match="strength"):
        attacks.overwrite(marked.halves, digits, marked.key, strength=-1)
    with pytest.raises(AttackError, match="both halves"):
        attacks.overwrite(marked.halves[0], digits, marked.key)
