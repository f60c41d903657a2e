"""Reading: the mean map shows a rough mark, and the three ways to level it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from harness.luck import Margin
from sigil import attacks
from sigil.attacks.halves import OpenedAtCut, open_at_cut
from sigil.attacks.read import over_channels, over_positions
from sigil.attacks.training import TUNING, mean_activation
from sigil.data import Dataset
from sigil.errors import AttackError


def tuning(**changes: Any) -> attacks.Tuning:
    return attacks.Tuning(**{"lr": 3e-3, "epochs": 40, "batch_size": 48} | changes)


def mean_map(model: Any, digits: Dataset) -> tuple[OpenedAtCut, Tensor]:
    opened = open_at_cut(model, digits, "pool2")
    return opened, mean_activation(opened, digits, TUNING)


def test_the_mean_map_splits_into_three_parts_at_right_angles() -> None:
    values = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0))
    rough, channels = over_positions(values), over_channels(values)
    torch.testing.assert_close(rough + channels + values.mean(), values)
    assert float(rough.sum((1, 2)).abs().max()) < 1e-5
    assert abs(float((rough * channels).sum())) < 1e-4
    assert float(channels.std((1, 2)).max()) < 1e-6


def test_the_mean_is_that_of_the_model_in_use(marked: Any, digits: Dataset) -> None:
    opened, mean = mean_map(marked.whole, digits)
    images = torch.from_numpy(digits.train.images.copy()).float() / 255
    images = (images - torch.tensor(digits.mean).view(1, -1, 1, 1)) / torch.tensor(digits.std).view(
        1, -1, 1, 1
    )
    opened.front.eval()
    with torch.no_grad():
        torch.testing.assert_close(mean, opened.front(images).mean(0), rtol=1e-2, atol=1e-2)


def test_the_direction_is_along_the_mark(marked: Any, digits: Dataset, margin: Margin) -> None:
    _, found = attacks.read(marked.halves, digits, tuning=tuning(epochs=None, steps=1))
    mark = marked.key.matrix @ (0.5 - marked.key.target)
    margin("cosine", float(torch.nn.functional.cosine_similarity(found[:, 0], mark, dim=0)), above=0.2)


def test_pushing_takes_the_mean_along_the_direction_where_it_was_asked_to(
    marked: Any, digits: Dataset, margin: Margin
) -> None:
    def along(model: Any, direction: Tensor) -> float:
        return float(mean_map(model, digits)[1].flatten() @ direction[:, 0] / direction.norm())

    zeroed, direction = attacks.read(marked.whole, digits, cut="pool2", tuning=tuning())
    mirrored, _ = attacks.read(marked.whole, digits, reversal=1.0, cut="pool2", tuning=tuning())
    tuned, _ = attacks.read(marked.whole, digits, gamma=0.0, cut="pool2", tuning=tuning())
    before = along(marked.whole, direction)
    assert before < 0
    margin("kept by tuning", along(tuned, direction) / before, above=0.5)
    margin("left by zeroing", abs(along(zeroed, direction) / before), below=0.3)
    further = along(mirrored, direction) - along(zeroed, direction)
    margin("mirrored further", -further / before, above=0.05)
    margin("WSR lost", marked.wsr(tuned) - marked.wsr(mirrored), above=0.1)


@pytest.mark.parametrize(("way", "part"), [("flatten", over_positions), ("equalise", over_channels)])
def test_levelling_lowers_its_part_of_the_mean_map(
    marked: Any, digits: Dataset, way: Any, part: Any, margin: Margin
) -> None:
    def size(model: Any) -> float:
        _, mean = mean_map(model, digits)
        return float(part(mean).norm() / mean.norm())

    sizes = []
    for gamma in (0.0, 10.0):
        attacked, _ = attacks.read(marked.whole, digits, way=way, gamma=gamma, cut="pool2", tuning=tuning())
        sizes.append(size(attacked))
    margin("left", sizes[1] / sizes[0], below=0.6)


def test_bad_input(marked: Any, digits: Dataset) -> None:
    bad: Any = "hear"
    with pytest.raises(AttackError, match="hear"):
        attacks.read(marked.halves, digits, way=bad)
    with pytest.raises(AttackError, match="gamma"):
        attacks.read(marked.halves, digits, gamma=-1.0)
    with pytest.raises(AttackError, match="positions"):
        attacks.read(marked.whole, digits, cut="flatten")
