"""The statistic of a trace: does one client's share of the bits agree better than the global models say?

For bit j let n_j of N answers agree in the suspect and g_j(r) in the global model of round r. They are made
comparable by a(n) = arcsin √((n + 3/8) / (N + 3/4)), whose noise does not depend on n. With r the recorded
round that is nearest to the suspect, the y_j = a(n_j) are regressed on a constant, on the a(g_j) of that
round and of its neighbours, and on an indicator of the client's own bits; the statistic is the t-value of
the indicator. So what a bit is worth in the global model, however that differs from client to client, is
taken off first, and so is what one more or one less round of the whole training would change.

Under the null hypothesis the suspect has nothing to do with one client's local training, and the client's
bits are like any others of that number: the p-value is the share of drawn sets of bits whose statistic is at
least as large, and it is multiplied by the number of clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LEAST_DRAWS: Final = 30_000
_DRAWS_PER_CLIENT: Final = 10_000
_AT_ONCE: Final = 1 << 22
# Sums of squares below this are rounding, or a single answer out of hundreds.
_NOTHING: Final = 1e-9


def stabilised(counts: Sequence[int], total: int) -> Floats:
    """Counts out of ``total`` on a scale on which their noise is the same everywhere, (k,)."""
    return np.arcsin(np.sqrt((np.asarray(counts, dtype=np.float64) + 0.375) / (total + 0.75)))


def nearest(suspect: Floats, rounds: Mapping[int, Floats]) -> int:
    """The round whose global model is nearest to the suspect, all bits together."""
    return min(rounds, key=lambda number: (float(np.square(suspect - rounds[number]).sum()), number))


def regressors(number: int, rounds: Mapping[int, Floats]) -> Floats:
    """Orthonormal columns (k, p): a constant, this round and the rounds before and after it, as recorded."""
    known = [rounds[each] for each in (number, number - 1, number + 1) if each in rounds]
    columns = np.stack([np.ones_like(known[0]), *known], axis=1)
    left, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(left[:, sizes > 1e-9 * sizes[0]])


def contrasts(values: Floats, basis: Floats, own: npt.NDArray[np.bool_]) -> Floats:
    """The t-values of indicators ``own`` (m, k) beside the regressors; zero if nothing is left to explain.

    >>> basis = np.full((4, 1), 0.5)
    >>> own = np.array([[True, True, False, False]])
    >>> float(contrasts(np.array([1.0, 0.8, 0.1, 0.3]), basis, own)[0].round(2))
    4.95
    """
    indicator = own.astype(np.float64)
    residual = values - basis @ (basis.T @ values)
    return _t_values(residual, indicator @ residual, indicator.sum(1), indicator @ basis)


def drawn_contrasts(
    values: Floats, basis: Floats, size: int, count: int, stream: np.random.Generator
) -> Floats:
    """The t-values of at least ``count`` drawn sets of ``size`` bits, sorted.

    Each order of the bits that is drawn is cut into as many sets as it holds.
    """
    bits = len(values)
    residual = values - basis @ (basis.T @ values)
    groups = bits // size
    found = []
    left = -(-count // groups)
    while left > 0:
        some = min(left, max(1, _AT_ONCE // bits))
        order = np.argsort(stream.random((some, bits)), axis=1)[:, : groups * size]
        along = residual[order].reshape(-1, size).sum(1)
        inside = np.stack([column[order].reshape(-1, size).sum(1) for column in basis.T], axis=1)
        found.append(_t_values(residual, along, np.full(len(along), float(size)), inside))
        left -= some
    return np.sort(np.concatenate(found))


def p_values(
    values: Floats, basis: Floats, shares: npt.NDArray[np.bool_], *, seed: int, draws: int | None = None
) -> tuple[Floats, int]:
    """For each client's share (clients, k): p before the number of clients, and how many sets were drawn.

    Shares of one size are compared with the same drawn sets. No p is smaller than 1 / (draws + 1).
    """
    found = contrasts(values, basis, shares)
    wanted = draws or max(LEAST_DRAWS, _DRAWS_PER_CLIENT * len(shares))
    sizes = shares.sum(1)
    p = np.ones(len(shares))
    for size in np.unique(sizes[sizes > 0]):
        stream = np.random.default_rng([seed, int(size)])
        null = drawn_contrasts(values, basis, int(size), wanted, stream)
        clients = sizes == size
        at_least = len(null) - np.searchsorted(null, found[clients], side="left")
        p[clients] = (1.0 + at_least) / (1.0 + len(null))
    return p, wanted


def _t_values(residual: Floats, along: Floats, size: Floats, inside: Floats) -> Floats:
    """From an indicator's sum over the residual, its size, and its products with the regressors."""
    total = float(residual @ residual)
    freedom = len(residual) - inside.shape[1] - 1
    if total <= _NOTHING or freedom < 1:
        return np.zeros(len(along))
    left = size - np.square(inside).sum(1)
    usable = left > _NOTHING
    scaled = np.where(usable, along / np.sqrt(np.where(usable, left, 1.0)), 0.0)
    unexplained = np.maximum(total - np.square(scaled), _NOTHING * total)
    return np.asarray(scaled / np.sqrt(unexplained / freedom))
