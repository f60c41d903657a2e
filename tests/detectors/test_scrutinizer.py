"""Gradient Scrutinizer against cases that can be computed by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sigil.detectors.scrutinizer import (
    GradientScrutinizer,
    Similarities,
    fitting_error,
    gap,
    normality,
    overlap,
    similarities,
)

FLOOR = 1 / (1 + math.exp(3.5))  # the score of a product of 0


def stream(steps: int, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of six gradients that depend somewhat on their three labels."""
    random = torch.Generator().manual_seed(seed)
    centres = torch.randn(3, 8, generator=random)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    return [(centres[labels] + torch.randn(6, 8, generator=random), labels) for _ in range(steps)]


def test_similarities_of_three_samples() -> None:
    rows = torch.tensor([[2.0, 0.0], [0.0, 3.0], [-0.5, 0.0]])
    found = similarities(rows, torch.tensor([4, 4, 7]))
    assert found is not None
    # Same label: one right angle, ½. Different: opposite, 0, and a right angle, ½.
    assert vars(found) == pytest.approx(
        {"same": 0.5, "same_spread": 0.0, "different": 0.25, "different_spread": 0.25}, abs=1e-7
    )


def test_spreads_are_population_standard_deviations_over_pairs() -> None:
    rows = torch.tensor([[1.0, 0.0], [5.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.0, -1.0]])
    found = similarities(rows, torch.tensor([0, 0, 1, 1, 2]))
    assert found is not None
    # Same: 1 and ½. Different: 01×23: ½ 1 ½ 1; with the last: ½ ½ 0 ½.
    different = [0.5, 1.0, 0.5, 1.0, 0.5, 0.5, 0.0, 0.5]
    assert found.same == pytest.approx(0.75)
    assert found.same_spread == pytest.approx(0.25)
    assert found.different == pytest.approx(4.5 / 8)
    assert found.different_spread == pytest.approx(np.std(different))


@pytest.mark.parametrize("odd", [[0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0]])
def test_a_gradient_without_a_direction_is_like_no_other(odd: list[float]) -> None:
    found = similarities(torch.tensor([[1.0, 0.0], odd, [1.0, 0.0]]), torch.tensor([0, 0, 1]))
    assert found is not None
    assert found.same == 0.0  # not ½, which a cosine of 0 would give
    assert found.different == pytest.approx(0.5)  # one pair of equal gradients, one of the odd one


def test_all_pairs_at_once_are_the_same_as_one_by_one() -> None:
    random = torch.Generator().manual_seed(3)
    rows, labels = torch.randn(12, 5, generator=random), torch.randint(3, (12,), generator=random)
    pairs: dict[bool, list[float]] = {True: [], False: []}
    for i in range(12):
        for j in range(i):
            cosine = float(rows[i] @ rows[j] / (rows[i].norm() * rows[j].norm()))
            pairs[bool(labels[i] == labels[j])].append(0.5 + 0.5 * cosine)
    found = similarities(rows, labels)
    assert found is not None
    assert [found.same, found.same_spread] == pytest.approx([np.mean(pairs[True]), np.std(pairs[True])])
    assert [found.different, found.different_spread] == pytest.approx(
        [np.mean(pairs[False]), np.std(pairs[False])]
    )


@pytest.mark.parametrize("scale", [1e-30, 1e-9, 1e6, 1e30])
def test_the_scale_of_the_gradients_does_not_matter(scale: float) -> None:
    (rows, labels) = stream(1)[0]
    plain, scaled = similarities(rows, labels), similarities(rows * scale, labels)
    assert plain is not None
    assert scaled is not None
    assert vars(scaled) == pytest.approx(vars(plain), rel=1e-5)
    # Nor that of a single sample.
    uneven = similarities(rows * torch.tensor([1.0, scale, 1, 1, 1, 1])[:, None], labels)
    assert uneven is not None
    assert vars(uneven) == pytest.approx(vars(plain), rel=1e-5)


def test_gap() -> None:
    assert gap(Similarities(0.75, 0, 0.25, 0)) == pytest.approx(0.5)
    assert gap(Similarities(0.25, 0, 0.75, 0)) == pytest.approx(-0.5)
    assert gap(Similarities(0.0, 0, 0.0, 0)) == 0.0


def test_fitting_error_is_the_mean_distance_to_the_best_parabolas() -> None:
    # On four equidistant points what a parabola cannot follow is a multiple of (−1, 3, −3, 1), whose square
    # is 20: 0, 1, 0, 1 holds 4/20 of it.
    zigzag = [0.0, 1.0, 0.0, 1.0]
    distance = 0.2 * math.sqrt(20 / 4)
    assert fitting_error([zigzag, [5.0] * 4]) == pytest.approx(distance / 2)
    assert fitting_error([zigzag, [10 * value + 3 for value in zigzag]]) == pytest.approx(5.5 * distance)
    parabola = [0.3 - 0.01 * t + 0.002 * t * t for t in range(200)]
    assert fitting_error([parabola, parabola[::-1]]) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("intervals", "right", "published"),
    [
        ((0.6, 0.2, 0.4, 0.1), 1 / 5, 2 / 5),  # [.4, .8] and [.3, .5]
        ((0.4, 0.1, 0.6, 0.2), 1 / 5, 2 / 5),  # the other way round
        ((0.5, 0.4, 0.5, 0.1), 2 / 8, 5 / 8),  # [.1, .9] around [.4, .6]
        ((0.9, 0.1, 0.2, 0.1), 0.0, 0.0),  # disjoint
        ((0.5, 0.25, 0.5, 0.25), 1.0, 1.0),  # the same
        ((0.5, 0.0, 0.5, 0.0), 1.0, 1.0),  # the same point
    ],
)
def test_overlap_right_and_as_published(
    intervals: tuple[float, float, float, float], right: float, published: float
) -> None:
    found = Similarities(*intervals)
    assert overlap(found) == pytest.approx(right)
    assert overlap(found, compat=True) == pytest.approx(published)


def test_normality_by_hand() -> None:
    # sgn(gap)|gap|^0.4 · 2 · 1 without error and overlap.
    assert normality(1.0, 0.0, 0.0) == pytest.approx(1 / (1 + math.exp(-5 * (2 - 0.7))))
    assert normality(0.5, 0.0, 0.0) == pytest.approx(0.983351, abs=1e-6)
    # 0.757858 · 0.179922 · 0.565847 = 0.077156
    assert normality(0.5, 0.1, 0.2) == pytest.approx(1 / (1 + math.exp(5 * (0.7 - 0.077156))), abs=1e-6)


def test_two_negative_factors_do_not_multiply_to_normal() -> None:
    assert -math.log(7 + math.exp(-2)) < 0
    assert normality(gap=-0.5, error=1.0, overlap=0.0) == pytest.approx(FLOOR)
    assert normality(gap=0.5, error=1.0, overlap=1.0) == pytest.approx(FLOOR)
    assert normality(gap=-0.5, error=0.0, overlap=1.0) == pytest.approx(FLOOR)


@given(st.floats(-1, 1), st.floats(0, 1), st.floats(0, 1))
def test_a_smaller_gap_a_larger_error_or_overlap_is_never_more_normal(
    gap: float, error: float, overlap: float
) -> None:
    score = normality(gap, error, overlap)
    assert FLOOR - 1e-12 <= score <= 0.9985 + 1e-4
    assert normality(gap / 2 - 0.5, error, overlap) <= score + 1e-12
    assert normality(gap, error + 0.1, overlap) <= score + 1e-12
    assert normality(gap, error, min(1.0, overlap + 0.1)) <= score + 1e-12


def test_a_score_comes_at_every_so_many_batches_and_says_what_it_is_made_of() -> None:
    detector = GradientScrutinizer(every=4, inclusive=True)
    scores = [detector.update(rows, labels) for rows, labels in stream(9)]
    assert scores[:3] == [None] * 3
    assert scores[3] == scores[4] == scores[6] != scores[7]
    assert detector.score == scores[8]
    curves = detector.curves
    assert curves["scored_step"] == [4, 8]
    assert curves["step"] == list(range(1, 10))
    found = Similarities(*(curves[name][7] for name in vars(Similarities(0, 0, 0, 0))))
    error = fitting_error([curves["same"][:8], curves["different"][:8]])
    assert curves["error"][1] == error
    assert scores[7] == normality(gap(found), error, overlap(found))


def test_as_published_a_score_is_that_of_the_next_batch_against_the_fit_before_it() -> None:
    published, ours = GradientScrutinizer(every=4), GradientScrutinizer(every=4, inclusive=True)
    for rows, labels in stream(9):
        published.update(rows, labels)
        ours.update(rows, labels)
    curves = published.curves
    assert (curves["scored_step"], ours.curves["scored_step"]) == ([5, 9], [4, 8])
    # Both fits are over the first four and eight batches; gap and overlap are those of the next one.
    assert curves["error"] == ours.curves["error"]
    found = Similarities(*(curves[name][8] for name in vars(Similarities(0, 0, 0, 0))))
    assert (curves["gap"][1], curves["overlap"][1]) == (gap(found), overlap(found))
    assert published.score == normality(gap(found), curves["error"][1], overlap(found))


def test_compat_changes_the_overlap_and_nothing_else() -> None:
    right, published = GradientScrutinizer(every=5), GradientScrutinizer(every=5, compat=True)
    for rows, labels in stream(6):
        right.update(rows, labels)
        published.update(rows, labels)
    assert right.curves["gap"] == published.curves["gap"]
    assert 0 < right.curves["overlap"][0] < published.curves["overlap"][0]
    assert right.score is not None
    assert published.score is not None
    assert right.score > published.score


def test_gradients_that_know_the_labels_are_normal_and_others_are_an_alarm() -> None:
    random = torch.Generator().manual_seed(1)
    labels = torch.arange(24) % 3
    centres = 10 * torch.eye(3, 40)
    honest, blind = GradientScrutinizer(every=10), GradientScrutinizer(every=10)
    for _ in range(31):
        noise = 0.3 * torch.randn(24, 40, generator=random)
        honest.update(centres[labels] + noise, labels)
        blind.update(centres[torch.randint(3, (24,), generator=random)] + noise, labels)
    assert honest.score is not None
    assert honest.score > 0.9
    assert not honest.alarm
    assert honest.first_alarm is None
    assert honest.alarm_share == 0
    assert blind.alarm
    assert blind.first_alarm == 11
    assert blind.alarm_share == 1


def test_batches_without_both_kinds_of_pairs_are_skipped() -> None:
    detector = GradientScrutinizer(every=1)
    (rows, labels) = stream(1)[0]
    assert similarities(rows, torch.arange(6)) is None
    assert similarities(rows, torch.zeros(6, dtype=torch.int64)) is None
    assert similarities(rows[:1], labels[:1]) is None
    for own in (labels, torch.arange(6), torch.zeros(6, dtype=torch.int64), labels):
        detector.update(rows, own)
    assert detector.step == 4
    assert detector.curves["step"] == [1, 4]
    assert detector.curves["scored_step"] == [4]  # the second batch that counts


def test_an_interrupted_one_goes_on_exactly() -> None:
    batches = stream(25)
    whole, first, second = (GradientScrutinizer(every=5, threshold=0.99) for _ in range(3))
    for rows, labels in batches:
        whole.update(rows, labels)
    for rows, labels in batches[:13]:
        first.update(rows, labels)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for rows, labels in batches[13:]:
        second.update(rows, labels)
    assert second.state_dict() == whole.state_dict()
    assert second.first_alarm == whole.first_alarm == 6
