"""Who holds which samples: partitions over clients, and subsets that keep the proportions of the classes."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from sigil.errors import DataError

KINDS = ("iid", "dirichlet", "lognormal")
# Fewer than two samples cannot train a batch norm.
MINIMUM = 2

Indices = npt.NDArray[np.int64]


def partition(
    labels: npt.ArrayLike,
    *,
    clients: int,
    kind: str = "iid",
    beta: float | None = None,
    sigma: float | None = None,
    seed: int = 0,
) -> list[Indices]:
    """Divide samples over clients: every sample to exactly one, at least two to each.

    `labels` is (n,). Returns one sorted int64 array of indices for each client. The kinds are

    - `iid`: at random, sizes equal or different by one;
    - `dirichlet`: of each class, the clients get shares drawn from Dirichlet(beta, …, beta); a small
      `beta` leaves a client with few classes;
    - `lognormal`: at random, the sizes in proportion to exp(sigma·z) with z from N(0, 1), above the
      minimum of two.

    The same labels, settings and seed give the same partition; `beta` and `sigma` matter only to the
    kind that they belong to.
    """
    known = np.asarray(labels)
    if known.ndim != 1:
        raise DataError(f"Labels of shape {known.shape} were given, but one label per sample is expected.")
    if clients < 1:
        raise DataError(f"{clients} clients were asked for, but at least one is needed.")
    if len(known) < MINIMUM * clients:
        raise DataError(
            f"{len(known)} samples cannot be divided over {clients} clients with at least {MINIMUM} "
            f"each: use at most {len(known) // MINIMUM} clients or more data."
        )
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(known))
    if kind == "iid":
        # As flwr's IidPartitioner cuts a shuffled set.
        parts = np.array_split(order, clients)
    elif kind == "lognormal":
        if sigma is None or not math.isfinite(sigma) or sigma < 0:
            raise DataError(f"A log-normal partition needs a sigma of 0 or more, but got {sigma}.")
        exponents = sigma * generator.standard_normal(clients)
        # Subtracting the largest changes no proportion and keeps the exponential finite.
        weights = np.exp(exponents - exponents.max())
        sizes = MINIMUM + apportion(len(known) - MINIMUM * clients, weights)
        parts = np.split(order, np.cumsum(sizes)[:-1])
    elif kind == "dirichlet":
        drawn = _dirichlet(known[order], clients, beta=beta, seed=seed, generator=generator)
        parts = _with_minimum([order[part] for part in drawn], generator=generator)
    else:
        raise DataError(f"There is no partition '{kind}': choose {', '.join(KINDS)}.")
    return [np.sort(part).astype(np.int64) for part in parts]


def _dirichlet(
    labels: npt.NDArray[np.generic],
    clients: int,
    *,
    beta: float | None,
    seed: int,
    generator: np.random.Generator,
) -> list[Indices]:
    """Divide every class by Dirichlet shares, which are drawn as flwr-datasets draws them."""
    if beta is None or not math.isfinite(beta) or beta <= 0:
        raise DataError(f"A Dirichlet partition needs a beta above 0, but got {beta}.")
    drawn = np.random.default_rng(seed)
    holder = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        ends = (np.cumsum(drawn.dirichlet(np.full(clients, float(beta)))) * len(members)).astype(np.int64)
        ends[-1] = len(members)
        # What rounding leaves goes to the last client, which would so get a sample of almost every class
        # whatever beta is: the order of the clients is another for each class.
        holder[members] = np.repeat(generator.permutation(clients), np.diff(ends, prepend=0))
    by_client = np.argsort(holder, kind="stable")
    return np.split(by_client, np.cumsum(np.bincount(holder, minlength=clients))[:-1])


def _with_minimum(parts: list[Indices], *, generator: np.random.Generator) -> list[Indices]:
    """Give each client its minimum, taken one sample at a time from the client that holds most."""
    sizes = np.array([len(part) for part in parts])
    for client in np.flatnonzero(sizes < MINIMUM):
        while sizes[client] < MINIMUM:
            giver = int(sizes.argmax())
            moved = generator.integers(sizes[giver])
            parts[client] = np.append(parts[client], parts[giver][moved])
            parts[giver] = np.delete(parts[giver], moved)
            sizes[client] += 1
            sizes[giver] -= 1
    return parts


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
