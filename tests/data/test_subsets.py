from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sigil.data.subsets import apportion, stratified


@given(
    st.integers(0, 10_000),
    st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=50),
)
def test_shares_are_the_exact_ones_rounded(total: int, weights: list[float]) -> None:
    w = np.array(weights)
    shares = apportion(total, w)
    assert shares.sum() == total
    assert np.all(np.abs(shares - total * w / w.sum()) < 1 + 1e-9 * total)


def test_ties_go_to_the_lower_index() -> None:
    assert apportion(10, np.ones(3)).tolist() == [4, 3, 3]


def test_subset_keeps_the_proportions() -> None:
    labels = np.repeat([0, 1, 2], [600, 300, 100])
    chosen = stratified(labels, 50, seed=0)
    assert np.bincount(labels[chosen]).tolist() == [30, 15, 5]
    assert len(np.unique(chosen)) == 50
    assert np.all(np.diff(chosen) > 0)


def test_subset_follows_from_the_seed_alone() -> None:
    labels = np.arange(1000) % 7
    first = stratified(labels, 100, seed=3)
    assert np.array_equal(first, stratified(labels, 100, seed=3))
    assert not np.array_equal(first, stratified(labels, 100, seed=4))


def test_asking_for_more_than_there_is_gives_all() -> None:
    assert stratified(np.array([1, 0, 1]), 5, seed=0).tolist() == [0, 1, 2]
