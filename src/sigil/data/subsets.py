"""Deterministic subsets that keep the proportions of the classes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def apportion(total: int, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Divide `total` whole things in proportion to `weights` by the largest remainder.

    Each share is the exact one rounded down or up, and the shares sum to `total`; ties go to the
    lower index. For example 10 over (1, 1, 1) is (4, 3, 3).
    """
    exact = weights * (total / weights.sum())
    shares = np.floor(exact).astype(np.int64)
    order = np.argsort(shares - exact, kind="stable")
    shares[order[: total - int(shares.sum())]] += 1
    return shares


def stratified(labels: npt.NDArray[np.int64], count: int, *, seed: int) -> npt.NDArray[np.int64]:
    """Choose `count` of the samples at random with every class in its proportion.

    Returns sorted indices into `labels`; all of them if `count` is at least their number. The same
    labels, count and seed give the same subset.
    """
    if count >= len(labels):
        return np.arange(len(labels), dtype=np.int64)
    generator = np.random.default_rng(seed)
    classes, sizes = np.unique(labels, return_counts=True)
    shares = apportion(count, sizes.astype(np.float64))
    chosen = [
        generator.permutation(np.flatnonzero(labels == label))[:share]
        for label, share in zip(classes, shares, strict=True)
    ]
    return np.sort(np.concatenate(chosen))
