from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sigil.data import partition
from sigil.data.partitions import apportion, stratified
from sigil.errors import DataError

LABELS = np.random.default_rng(0).integers(0, 10, 3000)
KINDS = [
    {"kind": "iid"},
    {"kind": "dirichlet", "beta": 0.1},
    {"kind": "dirichlet", "beta": 100.0},
    {"kind": "lognormal", "sigma": 0.0},
    {"kind": "lognormal", "sigma": 3.0},
]


def sizes(parts: list[np.ndarray]) -> list[int]:
    return [len(part) for part in parts]


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize(("count", "clients"), [(3000, 10), (3000, 1), (200, 100), (201, 40)])
def test_every_sample_once_and_two_for_everybody(options: dict[str, Any], count: int, clients: int) -> None:
    parts = partition(LABELS[:count], clients=clients, **options)
    assert len(parts) == clients
    assert min(sizes(parts)) >= 2
    assert all(part.dtype == np.int64 for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(count))


@settings(max_examples=settings.default.max_examples // 4)
@given(
    st.integers(2, 300),
    st.integers(1, 20),
    st.sampled_from(KINDS),
    st.integers(0, 2**32 - 1),
)
def test_any_possible_request_is_met(count: int, clients: int, options: dict[str, Any], seed: int) -> None:
    clients = min(clients, count // 2)
    parts = partition(LABELS[:count], clients=clients, seed=seed, **options)
    assert min(sizes(parts)) >= 2
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(count))


@pytest.mark.parametrize("options", KINDS)
def test_partition_follows_from_the_seed(options: dict[str, Any]) -> None:
    first = partition(LABELS, clients=7, seed=1, **options)
    again = partition(LABELS, clients=7, seed=1, **options)
    other = partition(LABELS, clients=7, seed=2, **options)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("options", KINDS)
def test_global_random_state_is_untouched(options: dict[str, Any]) -> None:
    before = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    partition(LABELS, clients=5, **options)
    assert random.getstate() == before[0]
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[2])


@pytest.mark.parametrize(
    ("options", "digest"),
    [
        ({"kind": "iid"}, "fe8a90ce0ac5819b"),
        ({"kind": "dirichlet", "beta": 0.5}, "a7f5eac3eed7b4b6"),
        ({"kind": "lognormal", "sigma": 1.0}, "bafe6e278fdc294a"),
    ],
)
def test_a_partition_is_the_same_in_every_release(options: dict[str, Any], digest: str) -> None:
    parts = partition(np.arange(2000) % 10, clients=20, seed=3, **options)
    content = b"".join(np.int64(len(part)).tobytes() + part.tobytes() for part in parts)
    assert hashlib.sha256(content).hexdigest().startswith(digest)


def shares(parts: list[np.ndarray], labels: np.ndarray) -> np.ndarray:
    counts = np.stack([np.bincount(labels[part], minlength=10) for part in parts])
    return counts / counts.sum(axis=1, keepdims=True)


def test_small_beta_leaves_few_classes_and_large_beta_all() -> None:
    largest = {
        beta: shares(partition(LABELS, clients=20, kind="dirichlet", beta=beta), LABELS).max(axis=1).mean()
        for beta in (0.05, 0.5, 1000.0)
    }
    assert largest[0.05] > 0.6
    assert largest[0.05] > largest[0.5] > largest[1000.0]
    assert largest[1000.0] < 0.15


def test_dirichlet_shares_have_the_variance_of_the_distribution() -> None:
    labels = np.zeros(200_000, dtype=np.int64)
    beta, clients = 0.5, 400
    parts = partition(labels, clients=clients, kind="dirichlet", beta=beta)
    found = np.array(sizes(parts)) / len(labels)
    mean = 1 / clients
    # The variance of one coordinate of Dirichlet(beta, …, beta).
    expected = mean * (1 - mean) / (clients * beta + 1)
    assert found.var() == pytest.approx(expected, rel=0.4)


def test_rounding_favours_no_client() -> None:
    labels = np.repeat(np.arange(100), 60)
    parts = partition(labels, clients=30, kind="dirichlet", beta=0.1)
    held = np.array([len(np.unique(labels[part])) for part in parts])
    assert held.max() < 1.8 * np.median(held)


def test_lognormal_sizes_spread_with_sigma_and_keep_the_classes_mixed() -> None:
    labels = np.arange(200_000) % 10
    for sigma in (0.5, 1.0):
        parts = partition(labels, clients=500, kind="lognormal", sigma=sigma)
        logs = np.log(np.array(sizes(parts)) - 2)
        assert logs.std() == pytest.approx(sigma, rel=0.15)
    big = max(parts, key=len)
    assert np.all(np.abs(shares([big], labels) - 0.1) < 0.03)


def test_no_spread_is_equal_sizes() -> None:
    parts = partition(LABELS[:1003], clients=10, kind="lognormal", sigma=0.0)
    assert sorted(sizes(parts)) == [100] * 7 + [101] * 3


def test_extreme_sigma_still_gives_everybody_two() -> None:
    parts = partition(LABELS, clients=50, kind="lognormal", sigma=1e6)
    assert sorted(sizes(parts)) == [2] * 49 + [2902]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 1501}, "use at most 1500 clients"),
        ({"clients": 0}, "at least one"),
        ({"clients": 3, "kind": "sorted"}, "choose iid, dirichlet, lognormal"),
        ({"clients": 3, "kind": "dirichlet"}, "needs a beta above 0, but got None"),
        ({"clients": 3, "kind": "dirichlet", "beta": 0.0}, "needs a beta above 0"),
        ({"clients": 3, "kind": "dirichlet", "beta": float("nan")}, "needs a beta above 0"),
        ({"clients": 3, "kind": "lognormal"}, "needs a sigma of 0 or more, but got None"),
        ({"clients": 3, "kind": "lognormal", "sigma": -1.0}, "needs a sigma of 0 or more"),
        ({"clients": 3, "kind": "lognormal", "sigma": float("inf")}, "needs a sigma of 0 or more"),
    ],
)
def test_impossible_requests_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        partition(LABELS, **options)


def test_labels_must_be_one_a_sample() -> None:
    with pytest.raises(DataError, match="one label per sample"):
        partition(np.zeros((10, 2)), clients=2)


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
