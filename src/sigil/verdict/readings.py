"""Readings: what one kind of question gets out of a suspect, before anything is corrected.

The paper's verification algorithm (Algorithm 2), once per kind of input. N inputs go through the suspect up
to the cut; their activations, flattened, are projected by the key,

    P = A M,        B'_ij = 1[P_ij >= 0],        WSR = share of B'_ij that equal b_j,

and the p-value is the probability that a target drawn by coin flips would have matched at least this
well (:mod:`sigil.statistics`). It holds for every suspect and for all inputs that do not depend on the
bits, without any clean model to compare with, because under the null hypothesis only the key's target is
random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from sigil import statistics
from sigil.alignment import Alignment
from sigil.errors import NotReadable, ShapeError
from sigil.keys.key import Key
from sigil.probing import Suspect, activations, check_readable, undisturbed
from sigil.verdict.report import Kind, Reading, Source

# Floats held at once: activations waiting for their projection, or one block of rows of M (128 MB).
_BUDGET = 1 << 25
# Activations up to this size are projected as they are.
_LARGE = 2.0**64


def unreadable(kind: Kind, count: int, **known: Any) -> Reading:
    """The outcome that a suspect does not let itself be read on these inputs: it proves nothing."""
    return Reading(kind=kind, count=count, wsr=0.5, log10_p_before=0.0, readable=False, **known)


def read(
    suspect: Suspect,
    key: Key,
    batches: Callable[[], Iterator[Tensor]],
    *,
    kind: Kind,
    count: int,
    source: Source = "key",
    digest: str | None = None,
    alignment: Alignment | None = None,
) -> Reading:
    """Ask a suspect with ``count`` inputs that ``batches`` gives, and compare its bits with the key's.

    With an ``alignment`` it is asked twice: first for the spread of each of its channels.
    """
    known: dict[str, Any] = {"source": source, "digest": digest, "aligned": alignment is not None}
    try:
        ones, sums, squares, incomplete = _project(suspect, key, batches, alignment)
    except NotReadable:
        return unreadable(kind, count, **known)
    # Algorithm 2:
    #   5  B'_ij ← 1[P_ij >= 0]                      ones: how many of each column
    #   6  WSR ← share of B'_ij that equal b_j
    target = key.target.to(torch.int64)
    signs = 2 * target - 1
    matches = torch.where(target == 1, ones, count - ones)
    rms = (squares / count).sqrt()
    margins = torch.where(rms > 0, signs * (sums / count) / rms, 0.0)
    tail = statistics.p_value(ones.numpy(), target.numpy(), count)
    return Reading(
        kind=kind,
        count=count,
        **known,
        wsr=int(matches.sum()) / (count * key.bits),
        log10_p_before=tail.log10_p,
        exact=tail.exact,
        agreements=tuple(sorted(matches.tolist(), reverse=True)),
        bit_shares=tuple((matches / count).tolist()),
        margins=tuple(margins.tolist()),
        incomplete=incomplete,
    )


def _project(
    suspect: Suspect,
    key: Key,
    batches: Callable[[], Iterator[Tensor]],
    alignment: Alignment | None,
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Per bit over all inputs: how many bits are one, the sum and the sum of squares of P.

    And in how many answers something was left out, because it is not finite.
    """
    ones = torch.zeros(key.bits, dtype=torch.int64)
    sums = torch.zeros(key.bits, dtype=torch.float64)
    squares = torch.zeros(key.bits, dtype=torch.float64)
    deviations = None if alignment is None else alignment.deviations(suspect, batches())
    finite: list[Tensor] = []

    def project(waiting: list[Tensor]) -> None:
        #   4  P ← A M
        rows = torch.cat(waiting)
        # Numbers at the edge of what float32 holds must not overflow; a power of two changes no digit.
        largest = rows.abs().amax(dim=1, keepdim=True).double()
        room = torch.exp2(torch.floor(torch.log2(largest.clamp_min(_LARGE))) - math.log2(_LARGE))
        projection = _times_matrix(rows / room.float(), key).double() * room
        ones.add_((projection >= 0).sum(dim=0))
        sums.add_(projection.sum(dim=0))
        squares.add_(projection.square_().sum(dim=0))

    # Several batches wait for one projection, so that a key too large to be held as a whole is
    # derived once for all of them.
    most = max(1, _BUDGET // max(key.dimension, key.bits))
    waiting: list[Tensor] = []
    # Algorithm 2, continued in `read`:
    #   1  for each input X
    with undisturbed(suspect, seed=0):
        for batch in batches():
            #   2  A ← f_c(X)
            activation = activations(suspect, batch)
            if alignment is not None:
                activation = alignment(activation, deviations)
            #   3  flatten A
            rows = _flat(activation, key)
            finite.append(rows.isfinite().double().mean(dim=1))
            waiting.append(rows.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))
            if sum(len(rows) for rows in waiting) >= most:
                project(waiting)
                waiting = []
        if waiting:
            project(waiting)
    shares = torch.cat(finite)
    check_readable(float(shares.mean()))
    return ones, sums, squares, int((shares < 1).sum())


def _flat(activation: Tensor, key: Key) -> Tensor:
    """Activations (n, *key.shape) as (n, d)."""
    if tuple(activation.shape[1:]) != key.shape:
        raise ShapeError(
            f"The suspect's activation has shape {tuple(activation.shape[1:])} but the key was "
            f"made for {key.shape}: cut the suspect where the key's activation is, or use the key "
            "of this cut."
        )
    # reshape reads in logical order (channel, row, column), also when channels lie last in memory.
    return activation.reshape(len(activation), key.dimension)


def _times_matrix(activation: Tensor, key: Key) -> Tensor:
    """``A M`` for ``A`` of shape (n, d), by blocks of rows of M when M is too large to hold."""
    rows = max(1, _BUDGET // key.bits)
    if key.dimension <= rows:
        return activation @ key.matrix
    projection = torch.zeros(len(activation), key.bits)
    for start in range(0, key.dimension, rows):
        stop = min(start + rows, key.dimension)
        projection.addmm_(activation[:, start:stop], key.rows(start, stop))
    return projection
