"""Principal components of more rows than fit into memory: randomized subspace iteration over a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sigil.federation.seeds import generator

Rows = Callable[[], Iterable[npt.NDArray[np.float32]]]

# More directions are followed than are wanted: the extra ones take the error of the random start.
OVERSAMPLING = 16
# Each pass multiplies the ratio of two neighbouring variances' errors by that ratio: four are plenty for
# gradients, whose variances fall fast.
PASSES = 4


@dataclass(frozen=True)
class Components:
    """The first principal components of some rows.

    ``directions`` (d, count) are orthonormal columns, the largest first; ``variances`` (count,) the mean
    squares of the rows along them; ``total`` the mean square norm of the rows, so that
    ``variances.sum() / total`` is the share that the components explain; ``rows`` how many rows there were.
    """

    directions: Tensor
    variances: Tensor
    total: float
    rows: int


def principal_components(
    rows: Rows,
    *,
    dimension: int,
    count: int,
    outside: Tensor | None = None,
    centre: bool = False,
    passes: int = PASSES,
    seed: int = 0,
) -> Components:
    """The ``count`` first principal components of the rows (n, d) that ``rows()`` gives batch by batch.

    ``rows()`` is called once a pass and nothing but one batch and a few d×count matrices is held. With Q a
    random orthonormal basis, each pass sets Q to an orthonormal basis of Xᵀ X Q; the last solves the small
    problem (X Q)ᵀ(X Q) exactly.

    ``outside`` (d, m), orthonormal columns, are directions to leave out: the components are those of the
    rows' residuals X (I − V Vᵀ). With ``centre`` the mean row is subtracted first. There are never more
    components than rows or free dimensions.
    """
    known = torch.empty(dimension, 0) if outside is None else outside
    number, mean = mean_row(rows, dimension) if centre else (sum(map(len, rows())), None)
    count = min(count, number, dimension - known.shape[1])
    followed = min(count + OVERSAMPLING, number, dimension - known.shape[1])
    start = torch.randn(dimension, followed, generator=generator(seed, "attack", "components"))
    basis = _orthonormal(start, known)
    for _ in range(passes):
        image = torch.zeros_like(basis)
        for batch in _batches(rows, mean):
            image.addmm_(batch.mT, batch @ basis)
        basis = _orthonormal(image, known)
    gram = torch.zeros(followed, followed, dtype=torch.float64)
    total = 0.0
    for batch in _batches(rows, mean):
        along = (batch @ basis).double()
        gram += along.mT @ along
        total += float(batch.double().square().sum() - (batch @ known).double().square().sum())
    squares, turn = torch.linalg.eigh(gram)
    largest = torch.arange(followed - 1, followed - 1 - count, -1)
    return Components(
        directions=basis @ turn[:, largest].float(),
        variances=(squares[largest] / max(1, number)).clamp(min=0).float(),
        total=total / max(1, number),
        rows=number,
    )


def mean_row(rows: Rows, dimension: int) -> tuple[int, Tensor]:
    """The number of rows, and their mean (d,)."""
    number, total = 0, torch.zeros(dimension, dtype=torch.float64)
    for batch in _batches(rows, None):
        number += len(batch)
        total += batch.sum(0, dtype=torch.float64)
    return number, (total / max(1, number)).float()


def _batches(rows: Rows, mean: Tensor | None) -> Iterable[Tensor]:
    for batch in rows():
        # Copied, because it may be a view of a file.
        values = torch.from_numpy(np.array(batch, dtype=np.float32))
        yield values if mean is None else values - mean


def _orthonormal(columns: Tensor, known: Tensor) -> Tensor:
    """An orthonormal basis, orthogonal to ``known``, of what the columns span besides.

    The columns are put behind the known ones, so that even where they have no rank left of their own the
    basis is filled up with directions outside.
    """
    residual = columns - known @ (known.mT @ columns)
    # Only directions matter, and gradients are so small that their squares would leave float32's range.
    residual = residual / residual.norm(dim=0).clamp(min=torch.finfo(torch.float32).tiny)
    return torch.linalg.qr(torch.cat([known, residual], 1))[0][:, known.shape[1] :]
