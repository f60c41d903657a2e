"""The reader of imprints: exact p-values, blind to scales and signs, and hard to drown in shaped noise."""

from __future__ import annotations

import math
from bisect import bisect_right

import numpy as np
import pytest
import torch
from torch import Tensor

import sigil
from sigil import imprint_reading
from sigil.imprint import Imprint
from sigil.imprint_reading import (
    HIGHEST,
    Reading,
    deviations,
    differences,
    filters_of_weight,
    log10_p_before,
    read,
)

KEY = sigil.Key.generate("ACME", shape=(8, 4, 4), seed=bytes(32))
NAME = "Hospital B"


def layers(seed: int = 0) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)
    shapes = {"a": (32, 16, 3, 3), "b": (64, 32, 3, 3), "c": (10, 64)}
    return {name: torch.randn(shape, generator=random) for name, shape in shapes.items()}


COPIES = Imprint(KEY, layers())


def found(theirs: dict[str, Tensor], name: str = NAME) -> float:
    reading = read(COPIES.state, theirs)
    return deviations(reading.positive(COPIES.pattern(name)), reading.coins)


def test_p_is_exact_for_suspects_that_know_nothing_of_the_pattern() -> None:
    """12,000 patterns over six suspects: p is at most x in x of them, within four standard errors."""
    random = torch.Generator().manual_seed(1)
    at_most = dict.fromkeys((0.5, 0.2, 0.1, 0.05, 0.01, 0.001), 0)
    for seed in range(6):
        ours = {"a": torch.randn(16, 8, 3, 3, generator=random), "b": torch.randn(4, 16, generator=random)}
        theirs = {name: value + torch.randn(value.shape, generator=random) for name, value in ours.items()}
        copies = Imprint(KEY, ours)
        reading = read(ours, theirs)
        counted = [reading.positive(copies.pattern(f"{seed}/{number}")) for number in range(2_000)]
        # The largest sums first, whose p is smallest: so few of the p-values need to be computed.
        counted.sort(key=lambda positive: deviations(positive, reading.coins), reverse=True)
        for x in at_most:
            at_most[x] += bisect_right(
                counted, math.log10(x), key=lambda positive: log10_p_before(positive, reading.coins)
            )
    for x, count in at_most.items():
        share = count / 12_000
        assert share <= x + 4 * math.sqrt(x * (1 - x) / 12_000), x
        assert share >= 0.9 * x - 4 * math.sqrt(x * (1 - x) / 12_000), x  # and not merely a bound


def test_p_equals_what_counting_all_patterns_gives() -> None:
    """One weight of level 1 has 16 coins: the sum is at least 8 in 2,517 of 65,536 patterns."""
    reading = Reading({"a": np.array([[1, 0]], dtype=np.int8)})
    pattern = {"a": np.array([[8, -16]], dtype=np.int8)}
    exact = sum(math.comb(16, up) for up in range(12, 17)) / 2**16
    assert log10_p_before(reading.positive(pattern), reading.coins) == pytest.approx(
        math.log10(exact), abs=1e-9
    )


def test_an_unchanged_copy_shows_its_pattern_at_the_root_of_the_number_of_weights() -> None:
    issued = COPIES.issue(NAME)
    assert found(issued) > 0.97 * math.sqrt(COPIES.weights)
    assert abs(found(issued, "Clinic C")) < 4
    assert abs(found(layers())) < 4, "the owner's own copy carries nobody's"


def test_scales_and_signs_of_filters_and_input_channels_do_not_hide_it() -> None:
    random = torch.Generator().manual_seed(2)

    def disguised(weight: Tensor) -> Tensor:
        for axis in (0, 1):
            size = [-1 if each == axis else 1 for each in range(weight.ndim)]
            factor = torch.exp(0.5 * torch.randn(weight.shape[axis], generator=random))
            sign = torch.randint(0, 2, (weight.shape[axis],), generator=random) * 2 - 1
            weight = weight * (factor * sign).reshape(size)
        return weight

    convolutions = {name: disguised(value) for name, value in COPIES.issue(NAME).items() if name != "c"}
    assert found(convolutions) > 0.7 * math.sqrt(COPIES.weights)


def test_huge_weights_in_idle_channels_and_what_is_not_finite_do_not_hide_it() -> None:
    theirs = COPIES.issue(NAME)
    theirs["a"][:, 3] = 1e30
    theirs["b"][:, ::8] = 1e6 * torch.randn(64, 4, 3, 3, generator=torch.Generator().manual_seed(3))
    theirs["c"][0, 0], theirs["c"][1, 1] = math.nan, math.inf
    assert found(theirs) > 0.5 * math.sqrt(COPIES.weights)


def shaped(weight: Tensor, random: torch.Generator) -> Tensor:
    """Noise that is forty times as large in a quarter of the input channels, mixed, as in the others."""
    channels = weight.shape[1]
    mixing, _ = torch.linalg.qr(torch.randn(channels, channels, generator=random))
    size = torch.where(torch.arange(channels) < channels // 4, 2.0, 0.05)
    noise = torch.randn(weight.shape, generator=random) * size.reshape(1, -1, *[1] * (weight.ndim - 2))
    return torch.einsum("oi...,ij->oj...", noise, mixing)


def test_noise_where_it_costs_little_does_not_drown_it_as_it_drowns_a_plain_correlation() -> None:
    random = torch.Generator().manual_seed(4)
    theirs = {
        name: value + shaped(value, random) for name, value in COPIES.issue(NAME).items() if name != "c"
    }
    plain = Reading(
        {
            name: np.clip(
                np.rint(4 * differences(filters_of_weight(COPIES.state[name]), filters_of_weight(value))),
                -HIGHEST,
                HIGHEST,
            )
            .astype(np.int8)
            .reshape(tuple(value.shape))
            for name, value in theirs.items()
        }
    )
    naive = deviations(plain.positive(COPIES.pattern(NAME)), plain.coins)
    assert naive < 6, "the plain correlation does not name anybody"
    assert found(theirs) > 4 * naive
    assert found(theirs) > 20


def test_nothing_in_common_is_no_reading() -> None:
    assert not imprint_reading.read(COPIES.state, {"a": torch.zeros(2, 2)}).levels
    zeros = {name: torch.zeros_like(value) for name, value in COPIES.state.items()}
    reading = read(COPIES.state, zeros)
    assert log10_p_before(reading.positive(COPIES.pattern(NAME)), reading.coins) > -4


def test_an_axis_that_is_too_long_for_a_matrix_is_whitened_by_its_diagonal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    issued = COPIES.issue(NAME)
    monkeypatch.setattr(imprint_reading, "_LARGEST", 8)
    assert found(issued) > 0.9 * math.sqrt(COPIES.weights)
