"""Streamed principal components against the singular values of the whole matrix."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
import torch

from sigil.attacks.subspace import principal_components

Array = npt.NDArray[np.float32]


def matrix(rows: int = 120, dimension: int = 60, size: float = 1.0) -> Array:
    """Rows with variances that fall as 0.8^j, and a mean of their own."""
    random = np.random.default_rng(0)
    turn = np.linalg.qr(random.normal(size=(dimension, dimension)))[0]
    values = (random.normal(size=(rows, dimension)) * 0.8 ** np.arange(dimension)) @ turn
    return (size * (values + random.normal(size=dimension) * 0.2)).astype(np.float32)


def batches(values: Array) -> Iterator[Array]:
    yield from np.array_split(values, 7)


@pytest.mark.parametrize("centre", [False, True])
@pytest.mark.parametrize("size", [1.0, 1e-7])
def test_components_are_those_of_the_whole_matrix(centre: bool, size: float) -> None:
    values = matrix(size=size)
    found = principal_components(lambda: batches(values), dimension=60, count=10, centre=centre)
    exact = (values - values.mean(0) if centre else values).astype(np.float64)
    _, singular, right = np.linalg.svd(exact, full_matrices=False)
    np.testing.assert_allclose(found.variances.numpy(), singular[:10] ** 2 / 120, rtol=1e-3)
    np.testing.assert_allclose(found.directions.mT @ found.directions, np.eye(10), atol=1e-5)
    cosines = np.abs((right[:10] * found.directions.mT.numpy()).sum(1))
    assert cosines.min() > 0.999
    assert found.total == pytest.approx((exact**2).sum() / 120, rel=1e-4)
    assert found.rows == 120


def test_components_outside_a_subspace_are_those_of_the_residuals() -> None:
    values = matrix()
    known = principal_components(lambda: batches(values), dimension=60, count=5).directions
    found = principal_components(lambda: batches(values), dimension=60, count=8, outside=known)
    residual = values - values @ known.numpy() @ known.numpy().T
    singular = np.linalg.svd(residual, compute_uv=False)
    np.testing.assert_allclose(found.variances.numpy(), singular[:8] ** 2 / 120, rtol=1e-3)
    assert float((known.mT @ found.directions).abs().max()) < 1e-5
    assert found.total == pytest.approx(float((residual**2).sum()) / 120, rel=1e-3)


def test_fewer_rows_than_components() -> None:
    values = matrix(rows=6)
    found = principal_components(lambda: iter([values]), dimension=60, count=10)
    assert found.directions.shape == (60, 6)
    assert float(found.variances.sum()) == pytest.approx(found.total, rel=1e-4)


def test_no_rank_left_outside_gives_directions_outside_without_variance() -> None:
    values = matrix()
    known = torch.eye(60)[:, :20]
    inside = values.copy()
    inside[:, 20:] = 0
    found = principal_components(lambda: batches(inside), dimension=60, count=4, outside=known)
    assert float((known.mT @ found.directions).abs().max()) < 1e-5
    assert float(found.variances.max()) < 1e-9


def test_at_most_one_batch_is_held() -> None:
    values = matrix(rows=400)
    alive: list[weakref.ref[Array]] = []
    most = 0

    def rows() -> Iterator[Array]:
        nonlocal most
        for part in np.array_split(values, 20):
            batch = part.copy()
            alive.append(weakref.ref(batch))
            gc.collect(0)
            most = max(most, sum(reference() is not None for reference in alive))
            yield batch

    principal_components(rows, dimension=60, count=5, centre=True)
    assert 1 <= most <= 3


def test_the_same_seed_gives_the_same_components() -> None:
    values = matrix()

    def run(seed: int) -> torch.Tensor:
        return principal_components(lambda: batches(values), dimension=60, count=5, seed=seed).directions

    assert torch.equal(run(0), run(0))
