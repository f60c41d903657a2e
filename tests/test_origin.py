"""The origin test: exact for strangers, blind to scaling, honest about what it lacks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from sigil.origin import compare, count_signs

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
    """The counts of 300 keys on one stranger are those of fair coins."""
    stranger = {name: values.abs() + 0.1 * values for name, values in draw(5).items()}
    generator = np.random.default_rng(0)
    total = sum(values.numel() for values in stranger.values())
    counts = generator.binomial(total, 0.5, 10_000)
    drawn = []
    for seed in range(300):
        weights = draw(100 + seed)
        result = compare(stranger, SHAPES, lambda name, shape, weights=weights: weights[name])
        drawn.append(result.agreeing)
        assert result.tested == total
    assert stats.ks_2samp(drawn, counts).pvalue > 0.001
    assert min(against(100 + seed, stranger) for seed in range(300)) > -6.5


def test_scaling_filters_changes_nothing() -> None:
    start, noise = draw(0), draw(1)
    moved = {name: start[name] + noise[name] for name in start}
    scaled = {name: values.clone() for name, values in moved.items()}
    scaled["conv2.weight"][3] *= 1e4
    scaled["conv1.weight"] *= torch.logspace(-10, 10, 8)[:, None, None, None]
    assert against(0, scaled) == against(0, moved)


def test_zeros_and_damage_are_left_out() -> None:
    initial = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    found = torch.tensor([2.0, 3.0, 0.0, torch.nan, torch.inf])
    assert count_signs(initial, found) == (2, 3)


def test_missing_and_differently_shaped_tensors_are_named() -> None:
    start = draw(0)
    result = compare({"conv1.weight": start["conv1.weight"][:4]}, SHAPES, lambda name, shape: start[name])
    assert result.skipped == ("conv1.weight", "conv2.weight")
    assert (result.tested, result.log10_p, result.share) == (0, 0.0, 0.5)


def test_a_shared_tensor_counts_once() -> None:
    values = torch.randn(4, 4)
    shapes = {"a": (4, 4), "b": (4, 4)}
    result = compare({"a": values, "b": values}, shapes, lambda name, shape: values)
    assert (result.tested, result.tensors) == (16, ("a",))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_number_format_has_signs(dtype: torch.dtype) -> None:
    start = draw(0)
    halves = {name: values.to(dtype) for name, values in start.items()}
    assert compare(halves, SHAPES, lambda name, shape: start[name]).share == 1.0
