"""Who holds which samples: IID, Dirichlet and log-normal partitions over clients."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from sigil.data.subsets import apportion
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
    own = np.asarray(labels)
    if own.ndim != 1:
        raise DataError(f"Labels of shape {own.shape} were given, but one label per sample is expected.")
    if clients < 1:
        raise DataError(f"{clients} clients were asked for, but at least one is needed.")
    if len(own) < MINIMUM * clients:
        raise DataError(
            f"{len(own)} samples cannot be divided over {clients} clients with at least {MINIMUM} "
            f"each: use at most {len(own) // MINIMUM} clients or more data."
        )
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(own))
    if kind == "iid":
        # As flwr's IidPartitioner cuts a shuffled set, without the seconds that importing it takes.
        parts = np.array_split(order, clients)
    elif kind == "lognormal":
        sizes = _lognormal_sizes(len(own), clients, sigma=sigma, generator=generator)
        parts = np.split(order, np.cumsum(sizes)[:-1])
    elif kind == "dirichlet":
        drawn = _dirichlet(own[order], clients, beta=beta, seed=seed, generator=generator)
        parts = _with_minimum([order[part] for part in drawn], generator=generator)
    else:
        raise DataError(f"There is no partition '{kind}': choose {', '.join(KINDS)}.")
    return [np.sort(part).astype(np.int64) for part in parts]


def _lognormal_sizes(
    count: int, clients: int, *, sigma: float | None, generator: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Draw the sizes of the clients: the minimum each, the rest in proportion to exp(sigma·z)."""
    if sigma is None or not math.isfinite(sigma) or sigma < 0:
        raise DataError(f"A log-normal partition needs a sigma of 0 or more, but got {sigma}.")
    exponents = sigma * generator.standard_normal(clients)
    # Subtracting the largest changes no proportion and keeps the exponential finite.
    weights = np.exp(exponents - exponents.max())
    return MINIMUM + apportion(count - MINIMUM * clients, weights)


def _dirichlet(
    labels: npt.NDArray[np.generic],
    clients: int,
    *,
    beta: float | None,
    seed: int,
    generator: np.random.Generator,
) -> list[Indices]:
    """Divide every class by Dirichlet shares, with the partitioner of flwr-datasets."""
    if beta is None or not math.isfinite(beta) or beta <= 0:
        raise DataError(f"A Dirichlet partition needs a beta above 0, but got {beta}.")
    # Imported here because it takes seconds, and only this kind needs it.
    import datasets
    from flwr_datasets.partitioner import DirichletPartitioner

    class Columns(datasets.Dataset):  # type: ignore[misc]
        """Gives a column at once: the partitioner reads it label by label otherwise, for seconds."""

        def __getitem__(self, key: object) -> object:
            found = super().__getitem__(key)
            return found[:] if isinstance(key, str) else found

    partitioner = DirichletPartitioner(
        num_partitions=clients,
        partition_by="label",
        alpha=float(beta),
        # The library would draw everything again for one small client, ten times at most; giving it
        # its minimum afterwards always ends and moves few samples.
        min_partition_size=0,
        shuffle=False,
        seed=seed,
    )
    table = datasets.Dataset.from_dict({"label": labels, "position": np.arange(len(labels))})
    partitioner.dataset = Columns(table.data)
    holder = np.empty(len(labels), dtype=np.int64)
    for client in range(clients):
        holder[partitioner.load_partition(client)[:]["position"]] = client
    # What rounding leaves of a class goes to the partitioner's last client, which so gets a sample of
    # almost every class whatever beta is. The shares are exchangeable: another order of the clients
    # for each class changes nothing but whom that sample goes to.
    for label in np.unique(labels):
        own = labels == label
        holder[own] = generator.permutation(clients)[holder[own]]
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
