"""The picture of the curves: every detector, with and without scores, in every format."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from sigil.detectors import Detector, GradientScrutinizer, SplitGuard, SplitOut, draw
from sigil.errors import DetectorError


def detectors(steps: int) -> list[Detector]:
    random = torch.Generator().manual_seed(0)
    guard = SplitGuard(3, warmup=2)
    found: list[Detector] = [GradientScrutinizer(every=2), SplitOut([torch.eye(12)])]
    labels = torch.tensor([0, 0, 1, 2])
    for number in range(steps):
        gradients = torch.randn(4, 12, generator=random)
        guard.update(gradients, labels, fake=number % 3 == 0)
        for detector in found:
            detector.update(gradients, labels)
    return [*found, guard]


def test_there_is_one_row_a_detector(tmp_path: Path) -> None:
    draw(detectors(12), tmp_path / "curves.png")
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.height == picture.width  # three rows of two panels
        assert len(set(picture.convert("L").tobytes())) > 50  # there is something on it


def test_the_title_says_whether_there_was_an_alarm(tmp_path: Path) -> None:
    alarmed = detectors(12)[0]
    alarmed.first_alarm = 4
    draw([alarmed, detectors(0)[1]], tmp_path / "curves.svg")
    text = (tmp_path / "curves.svg").read_text()
    assert "gradient-scrutinizer: first alarm at step 4" in text
    assert "splitout: no score" in text


def test_another_format_or_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DetectorError, match=r"does not end in \.png"):
        draw(detectors(0), tmp_path / "curves.txt")
    with pytest.raises(DetectorError, match="cannot be written"):
        draw(detectors(0)[:1], tmp_path / "missing" / "curves.png")
