"""Two correlation matrices in different orders: found again, padded, told apart from strangers."""

from __future__ import annotations

import numpy as np
import pytest

from sigil.alignment.correlations import CHANCE, STRANGERS, Floats, match_by_correlations


def correlations(channels: int, *, seed: int, samples: int = 200, mixing: int = 0) -> Floats:
    """Correlations of rectified random mixtures; ``mixing`` chooses the mixture, ``seed`` the samples."""
    weights = np.random.default_rng(mixing).standard_normal((channels, channels // 2))
    inputs = np.random.default_rng(seed).standard_normal((samples, channels // 2))
    return np.corrcoef(np.maximum(inputs @ weights.T, 0).T)


@pytest.mark.parametrize("channels", [32, 128])
def test_a_permutation_is_found_again(channels: int) -> None:
    reference = correlations(channels, seed=1)
    order = np.random.default_rng(2).permutation(channels)
    found = match_by_correlations(reference, reference[np.ix_(order, order)])
    np.testing.assert_array_equal(order[found.order], np.arange(channels))
    assert found.sure == channels
    assert found.agreement == pytest.approx(1.0)
    assert found.believed


def test_other_samples_of_the_same_channels_are_enough() -> None:
    reference, suspect = correlations(96, seed=1, samples=2_000), correlations(96, seed=3, samples=300)
    order = np.random.default_rng(2).permutation(96)
    found = match_by_correlations(reference, suspect[np.ix_(order, order)])
    np.testing.assert_array_equal(order[found.order], np.arange(96))
    assert found.believed
    assert 0.3 < found.agreement < 0.99


def test_the_result_does_not_depend_on_how_the_suspect_is_ordered() -> None:
    reference, suspect = correlations(48, seed=1), correlations(48, seed=3)
    order = np.random.default_rng(5).permutation(48)
    first, second = (
        match_by_correlations(reference, suspect),
        match_by_correlations(reference, suspect[np.ix_(order, order)]),
    )
    assert first.agreement == pytest.approx(second.agreement, abs=1e-6)
    np.testing.assert_array_equal(first.order, order[second.order])


def test_missing_channels_leave_a_gap_and_further_ones_are_left_out() -> None:
    whole = correlations(64, seed=1)
    kept = np.random.default_rng(2).permutation(64)[:52]
    fewer = match_by_correlations(whole, whole[np.ix_(kept, kept)])
    assert (fewer.order < 0).sum() == 12
    partners = fewer.order >= 0
    np.testing.assert_array_equal(kept[fewer.order[partners]], np.flatnonzero(partners))
    assert fewer.believed
    more = match_by_correlations(whole[np.ix_(kept, kept)], whole)
    np.testing.assert_array_equal(more.order, kept)
    assert more.believed


@pytest.mark.parametrize("channels", [16, 32, 64, 128])
def test_strangers_are_not_believed(channels: int) -> None:
    found = match_by_correlations(correlations(channels, seed=1), correlations(channels, seed=1, mixing=1))
    assert not found.believed
    assert sorted(found.order) == list(range(channels))


def test_few_channels_are_never_believed() -> None:
    # With n channels all sure, chance alone has probability STRANGERS ** n.
    assert STRANGERS**22 > CHANCE > STRANGERS**23
    small, enough = correlations(22, seed=1), correlations(23, seed=1)
    assert match_by_correlations(small, small).sure == 22
    assert not match_by_correlations(small, small).believed
    assert match_by_correlations(enough, enough).believed


def test_searches_are_repeated_alike() -> None:
    reference, suspect = correlations(32, seed=1), correlations(32, seed=1, mixing=1)
    np.testing.assert_array_equal(
        match_by_correlations(reference, suspect).order, match_by_correlations(reference, suspect).order
    )
