"""Accuracy and mark of a model, whole or in halves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from harness.luck import Margin
from sigil import attacks, models
from sigil.data import Dataset
from sigil.errors import AttackError


def test_whole_and_halves_measure_alike(accurate: Any, digits: Dataset, margin: Margin) -> None:
    whole = attacks.measure(accurate.whole, data=digits, key=accurate.key, cut="pool2")
    halves = attacks.measure(accurate.halves, data=digits, key=accurate.key)
    assert whole.accuracy == halves.accuracy
    assert halves.accuracy is not None
    assert halves.report is not None
    assert whole.report is not None
    assert whole.report.to_dict() == halves.report.to_dict()
    margin("accuracy", halves.accuracy, above=0.7)
    margin("WSR", halves.report.wsr, above=0.95)
    assert accurate.whole.training
    with torch.no_grad():
        images = (torch.from_numpy(digits.test.images) / 255 - digits.mean[0]) / digits.std[0]
        model = models.join(*accurate.halves).eval()
        right = model(images.float()).argmax(1) == torch.from_numpy(digits.test.labels)
    assert halves.accuracy == pytest.approx(float(right.float().mean()), abs=0.02)


def test_only_what_is_asked_for(marked: Any, digits: Dataset) -> None:
    assert attacks.measure(marked.whole) == attacks.Measurement(None, None)
    assert attacks.measure(marked.halves[0], data=digits).accuracy is None
    alone = attacks.measure(marked.halves[0], key=marked.key).report
    both = attacks.measure(marked.halves, key=marked.key).report
    assert alone is not None
    assert both is not None
    assert alone.to_dict() == both.to_dict()


def test_bad_input(marked: Any, digits: Dataset) -> None:
    with pytest.raises(AttackError, match="classes"):
        attacks.measure(marked.whole, data=replace(digits, classes=4))
    unknown = models.build("vgg11", classes=10, width=8, channels=1, seed=0)
    with pytest.raises(AttackError, match="what images"):
        attacks.measure(unknown, key=marked.key, cut="pool2")
