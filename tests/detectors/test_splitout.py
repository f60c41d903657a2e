"""SplitOut against local outlier factors computed by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from sigil.detectors import SplitOut
from sigil.errors import DetectorError, ShapeError

N = 10
LABELS = torch.zeros(N, dtype=torch.int64)


def simplex() -> list[torch.Tensor]:
    """Ten local gradients at the unit vectors: all √2 from each other, so a density of 1/√2 everywhere."""
    return [torch.eye(N) / N]  # one batch of ten with a mean loss


def factor_along_an_axis(length: float) -> float:
    """LOF of length·e_1 by its definition, with nine of the ten as neighbours.

    The distances are |length − 1| to e_1 and √(length² + 1) to the other nine; the farthest one is no
    neighbour; none counts as nearer than √2. All of the ten have the density 1/√2.
    """
    distances = [abs(length - 1)] + 8 * [math.sqrt(length**2 + 1)]
    return float(np.mean([max(d, math.sqrt(2)) for d in distances])) / math.sqrt(2)


def axis(*lengths: float) -> torch.Tensor:
    """A batch of gradients along e_1, as a mean loss over it would give them."""
    rows = torch.zeros(len(lengths), N)
    rows[:, 0] = torch.tensor(lengths)
    return rows / len(lengths)


def judge(detector: SplitOut, *lengths: float) -> float | None:
    return detector.update(axis(*lengths), LABELS[: len(lengths)])


def test_the_factor_by_hand() -> None:
    assert factor_along_an_axis(0.0) == 1.0
    assert factor_along_an_axis(3.0) == pytest.approx((2 + 8 * math.sqrt(10)) / 9 / math.sqrt(2))
    for length in (0.0, 1.5, 2.0, 3.0, 40.0):
        detector = SplitOut(simplex())
        judge(detector, length)
        expected = factor_along_an_axis(length)
        assert detector.curves["factor"] == pytest.approx([expected], rel=1e-5)
        assert detector.curves["outliers"] == [1 if expected > 1.5 else 0]


def test_outliers_in_a_batch_are_counted_and_more_than_half_is_an_alarm() -> None:
    detector = SplitOut(simplex())
    assert judge(detector, 0.0, 0.5, 1.0, 3.0) == 0.25
    assert judge(detector, 0.0, 0.5, 4.0, 3.0) == 0.5
    assert not detector.alarm  # they do not outnumber the inliers
    assert judge(detector, 0.0, 5.0, 4.0, 3.0) == 0.75
    assert detector.alarm
    assert detector.first_alarm == 3
    assert detector.curves["outliers"] == [1, 2, 3]
    assert detector.curves["judged"] == [4, 4, 4]
    assert detector.mean_outliers == 2.0


def test_the_batch_size_of_either_side_does_not_matter() -> None:
    local = [torch.eye(N)[:5] / 5, torch.eye(N)[5:] / 5]
    one, two = SplitOut(simplex()), SplitOut(local)
    for detector in (one, two):
        judge(detector, 1.9, 2.3)
        judge(detector, 1.9, 2.3, 1.9, 2.3)
    assert one.curves == two.curves
    assert one.curves["factor"][0] == pytest.approx(one.curves["factor"][1])


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_a_scale_that_both_sides_share_does_not_matter(scale: float) -> None:
    plain, scaled = SplitOut(simplex()), SplitOut([scale * simplex()[0]])
    for lengths in ((0.0, 1.5, 2.3), (3.0, 40.0)):
        judge(plain, *lengths)
        judge(scaled, *(scale * length for length in lengths))
    assert scaled.curves["outliers"] == plain.curves["outliers"] == [1, 2]
    assert scaled.curves["factor"] == pytest.approx(plain.curves["factor"], rel=1e-4)


def test_what_counts_is_length_and_not_direction() -> None:
    detector = SplitOut(simplex())
    judge(detector, 1.0)
    judge(detector, -0.9)  # the opposite of a local gradient
    judge(detector, 10.0)
    assert detector.curves["outliers"] == [0, 0, 1]
    assert detector.curves["factor"][:2] == pytest.approx([1.0, 1.0])


def test_one_vector_a_batch_over_a_window() -> None:
    # Ten local batches of two, whose sums are the unit vectors.
    local = [0.5 * torch.eye(N)[[number, number]] for number in range(N)]
    detector = SplitOut(local, unit="batch", window=3)
    scores = [judge(detector, length, length) for length in (9.0, 9.0, 0.0, 0.0, 9.0, 9.0)]
    # Sums 9, 9, 0, 0, 9, 9 along the axis; the first two windows are not full.
    assert scores == pytest.approx([1, 1, 2 / 3, 1 / 3, 1 / 3, 2 / 3])
    assert detector.first_alarm == 3
    assert detector.alarms == 2
    assert detector.curves["judged"] == [1] * 6


def test_one_local_gradient_far_away_hides_what_lies_nearer() -> None:
    # With n − 1 neighbours the farthest local gradient sets the scale: give it none that is not typical.
    plain, misled = (
        SplitOut(simplex()),
        SplitOut([torch.cat([torch.eye(N), -9 * torch.eye(N)[:1]]) / (N + 1)]),
    )
    for detector in (plain, misled):
        judge(detector, 3.0)
    assert (plain.curves["outliers"], misled.curves["outliers"]) == ([1], [0])


def test_the_threshold_is_an_argument() -> None:
    detector = SplitOut(simplex(), threshold=0.2)
    judge(detector, 0.0, 0.5, 1.0, 3.0)
    assert detector.first_alarm == 1


def test_what_is_not_finite_is_an_outlier() -> None:
    detector = SplitOut(simplex())
    rows = axis(0.0, 0.5, 1.0)
    rows[1, 3] = math.nan
    rows[2, 0] = math.inf
    assert detector.update(rows, LABELS[:3]) == pytest.approx(2 / 3)
    assert detector.update(torch.full((2, N), math.nan), LABELS[:2]) == 1.0


def test_too_few_local_gradients_say_what_is_needed() -> None:
    with pytest.raises(
        DetectorError, match=r"given 9 local gradients \(one per sample\).*at least 10.*larger share"
    ):
        SplitOut([torch.eye(N)[:9]])
    with pytest.raises(
        DetectorError, match=r"1 local gradient \(one per batch\).*at least 10.*smaller batches"
    ):
        SplitOut(simplex(), unit="batch")
    with pytest.raises(DetectorError, match="0 local gradients"):
        SplitOut([])


def test_local_gradients_must_be_finite_and_of_the_same_size() -> None:
    with pytest.raises(DetectorError, match="not all finite"):
        SplitOut([torch.full((N, 4), math.nan)])
    with pytest.raises(ShapeError, match="7 numbers per sample arrived, but the local ones have 10"):
        SplitOut(simplex()).update(torch.zeros(3, 7), LABELS[:3])


def test_arrays_and_maps_are_taken_too() -> None:
    maps: list[Any] = [(torch.eye(N) / N).view(N, 2, 5, 1).numpy()]
    detector = SplitOut(maps)
    detector.update(axis(3.0).view(1, 2, 5, 1).numpy(), LABELS[:1])
    assert detector.curves["factor"] == pytest.approx([factor_along_an_axis(3.0)], rel=1e-5)


def test_an_interrupted_one_goes_on_exactly_with_the_same_local_gradients() -> None:
    lengths = (0.0, 9.0, 9.0, 0.0, 9.0, 9.0)
    whole, first, second = (SplitOut(simplex(), window=2) for _ in range(3))
    for length in lengths:
        judge(whole, length)
    for length in lengths[:3]:
        judge(first, length)
    state = json.loads(json.dumps(first.state_dict()))
    assert len(json.dumps(state)) < 1000  # the local gradients are not in it
    second.load_state_dict(state)
    for length in lengths[3:]:
        judge(second, length)
    assert second.state_dict() == whole.state_dict()
    with pytest.raises(DetectorError, match="make them again"):
        SplitOut([2 * torch.eye(N)]).load_state_dict(state)
