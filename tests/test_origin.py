"""The origin test: exact for strangers, blind to scaling, honest about what it lacks."""

from __future__ import annotations

import numpy as np
import pytest
import scipy  # loads scipy.stats, which takes a second, only where it is used
import torch
from torch import Tensor

from sigil import origin
from sigil.origin import compare, count_signs, octiles, weighted_share
from sigil.statistics import log10_tail

SHAPES = {"conv1.weight": (8, 3, 3, 3), "conv2.weight": (16, 8, 3, 3)}


def draw(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def against(seed: int, suspect: dict[str, Tensor]) -> float:
    weights = draw(seed)
    return compare(suspect, SHAPES, lambda name, shape: weights[name]).log10_p


def test_weights_that_moved_from_their_start_descend_from_it() -> None:
    start = draw(0)
    noise = draw(1)
    moved = {name: start[name] + 1.5 * noise[name] for name in start}
    assert against(0, moved) < -40
    assert against(2, moved) > -6


def test_strangers_have_uniform_p_values() -> None:
    """The weighted sums of 300 keys on one stranger are those of coins with the same weights."""
    stranger = {name: values.abs() + 0.1 * values for name, values in draw(5).items()}
    tested = np.sum([count_signs(values, values)[1] for values in stranger.values()], axis=0)
    coins = np.random.default_rng(0).binomial(tested, 0.5, (10_000, origin.OCTILES))
    drawn = []
    for seed in range(300):
        weights = draw(100 + seed)
        result = compare(stranger, SHAPES, lambda name, shape, weights=weights: weights[name])
        drawn.append(result.share)
        assert result.tested == tuple(tested)
    expected = [weighted_share(row, tested) for row in coins]
    assert scipy.stats.ks_2samp(drawn, expected).pvalue > 0.001
    assert min(against(100 + seed, stranger) for seed in range(300)) > -6.5


def test_scaling_filters_changes_nothing() -> None:
    start, noise = draw(0), draw(1)
    moved = {name: start[name] + noise[name] for name in start}
    scaled = {name: values.clone() for name, values in moved.items()}
    scaled["conv2.weight"][3] *= 1e4
    scaled["conv1.weight"] *= torch.logspace(-10, 10, 8)[:, None, None, None]
    assert against(0, scaled) == against(0, moved)


def test_turned_signs_of_small_weights_take_little() -> None:
    """Half of all signs are wrong afterwards, so that a plain count would find nothing."""
    start, noise = draw(0), draw(1)
    turned, agreeing, tested = {}, 0, 0
    for name, first in start.items():
        found = first + noise[name]
        agrees = (found * first) > 0
        size = torch.where(agrees, found.abs(), torch.inf).flatten()
        small = size.argsort()[: int(agrees.sum()) - found.numel() // 2]
        factor = torch.ones(found.numel())
        factor[small] = -0.01
        turned[name] = found * factor.view(found.shape)
        agreeing, tested = agreeing + int(((turned[name] * first) > 0).sum()), tested + found.numel()
    assert log10_tail([agreeing], [tested], [1]) > -1
    assert against(0, turned) < -12


def test_large_weights_count_more() -> None:
    filters = torch.tensor([[0.1, -0.2, 0.3, 0.4, -0.5, 0.6, 0.7, 0.8]])
    assert octiles(filters).tolist() == [list(range(8))]
    assert octiles(torch.ones(1, 16)).tolist() == [[place // 2 for place in range(16)]]
    agree, tested = count_signs(torch.ones(1, 8), filters)
    assert tested.tolist() == [1] * 8
    assert agree.tolist() == [1, 0, 1, 1, 0, 1, 1, 1]
    assert origin.WEIGHTS == (0, 0, 1, 1, 2, 4, 6, 12)
    assert weighted_share(agree, tested) == (26 - 2) / 26


def test_zeros_and_damage_are_left_out() -> None:
    initial = torch.tensor([[1.0, -1.0, 1.0, -1.0, 1.0]])
    found = torch.tensor([[2.0, 3.0, 0.0, torch.nan, torch.inf]])
    agree, tested = count_signs(initial, found)
    assert (agree.sum(), tested.sum()) == (2, 3)


def test_tiny_numbers_have_signs_too() -> None:
    found = torch.full((1, 8), 1e-300, dtype=torch.float64)
    assert count_signs(torch.ones(1, 8), found)[0].sum() == 8


def test_only_held_out_entries_test_a_restored_order() -> None:
    start = draw(0)
    part = {name: torch.arange(values.numel()).view(values.shape) % 8 == 5 for name, values in start.items()}
    everything = {name: torch.where(part[name], values, -values) for name, values in start.items()}
    for suspect in (start, everything):
        found = compare(
            suspect,
            SHAPES,
            lambda name, shape: start[name],
            held_out=lambda name, shape: part[name],
        )
        assert found.restored
        assert found.count == sum(int(held.sum()) for held in part.values())
        assert found.agreeing == found.tested


def test_two_orders_are_paid_for() -> None:
    assert origin.log10_p((0,) * 7 + (4,), (0,) * 7 + (4,)) == pytest.approx(np.log10(2 / 16))
    assert origin.log10_p((0,) * 8, (0,) * 8) == 0.0


def test_missing_and_differently_shaped_tensors_are_named() -> None:
    start = draw(0)
    result = compare({"conv1.weight": start["conv1.weight"][:4]}, SHAPES, lambda name, shape: start[name])
    assert result.skipped == ("conv1.weight", "conv2.weight")
    assert (result.count, result.log10_p, result.share) == (0, 0.0, 0.5)


def test_a_shared_tensor_counts_once() -> None:
    values = torch.randn(4, 4)
    shapes = {"a": (4, 4), "b": (4, 4)}
    result = compare({"a": values, "b": values}, shapes, lambda name, shape: values)
    assert (result.count, result.tensors) == (16, ("a",))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_number_format_has_signs(dtype: torch.dtype) -> None:
    start = draw(0)
    halves = {name: values.to(dtype) for name, values in start.items()}
    assert compare(halves, SHAPES, lambda name, shape: start[name]).share == 1.0
