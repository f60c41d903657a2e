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

import dataclasses
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from sigil import statistics
from sigil.alignment import Alignment
from sigil.errors import NotReadable, ShapeError
from sigil.keys.key import Key
from sigil.probing import Suspect, activations, check_readable, undisturbed

Kind = Literal["noise", "inputs", "origin"]
Source = Literal["key", "statement", "judge", "defendant", "claimant"]

# Floats held at once: activations waiting for their projection, or one block of rows of M (128 MB).
_BUDGET = 1 << 25
# Activations up to this size are projected as they are.
_LARGE = 2.0**64


@dataclass(frozen=True)
class Reading:
    """What a suspect answers to one kind of question.

    ``kind`` is ``"noise"``, ``"inputs"`` or ``"origin"``; ``aligned`` says whether channels were put back
    in order before it was asked. ``count`` is the number of probes, inputs or weights; ``wsr`` the share of
    bits (or signs) that are right and ``log10_p_before`` the logarithm of the probability of that by chance,
    before any correction.
    Values at the cut that are not finite are left out, as if they were zero; in ``incomplete`` of the answers
    there were some. A suspect most of whose values are not has ``readable`` false and p = 1.

    ``source`` says who chose the inputs: the ``"key"``, its ``"statement"``, the ``"judge"``, the
    ``"defendant"`` or the ``"claimant"``, whose choice cannot prove anything: ``counts`` is false.
    ``digest`` is that of the inputs.

    Per bit ``j``, in the key's order: ``bit_shares`` is the share of answers that equal the target;
    ``margins`` is ``s_j * mean_i(P_ij) / sqrt(mean_i(P_ij ** 2))`` with ``s_j`` the sign that the target
    asks for, so +1 is a constant projection on the right side of zero and -1 one on the wrong side.

    Of an origin there are, for each octile of the weights' sizes (:mod:`sigil.origin`), how many were
    ``tested`` and how many of them are ``agreeing``; ``wsr`` is the share that agrees, counted by octile.
    """

    kind: Kind
    count: int
    wsr: float
    log10_p_before: float
    exact: bool = True
    aligned: bool = False
    readable: bool = True
    source: Source = "key"
    digest: str | None = None
    bit_shares: tuple[float, ...] = field(default=(), repr=False)
    margins: tuple[float, ...] = field(default=(), repr=False)
    agreeing: tuple[int, ...] = ()
    tested: tuple[int, ...] = ()
    incomplete: int = 0

    @property
    def counts(self) -> bool:
        """Whether this reading may carry a verdict."""
        return self.readable and self.source != "claimant"

    @property
    def name(self) -> str:
        """What was read, in words."""
        return f"{self.kind}, channels put back in order" if self.aligned else self.kind

    @property
    def bit_error(self) -> float:
        """The share of bits whose majority over the answers is wrong."""
        wrong = sum(share < 0.5 for share in self.bit_shares)
        return wrong / len(self.bit_shares) if self.bit_shares else 0.5

    @property
    def weights(self) -> tuple[int, ...]:
        """``|w_j| = |2 n_j - N|``, the numbers whose random signs make up the null distribution."""
        return tuple(round(abs(2 * share - 1) * self.count) for share in self.bit_shares)

    def threshold(self, alpha: float) -> float:
        """The smallest WSR at which this suspect would have reached p <= alpha before correction, or inf."""
        if not self.bit_shares:
            return math.inf
        weights = [round((2 * share - 1) * self.count) for share in self.bit_shares]
        # A level that is corrected for everything may be smaller than any float.
        return statistics.threshold(weights, probes=self.count, alpha=max(alpha, sys.float_info.min))

    def to_dict(self) -> dict[str, Any]:
        """The reading as plain JSON values, bit by bit results left out."""
        values = dataclasses.asdict(self) | {"counts": self.counts}
        for name in ("bit_shares", "margins", "agreeing", "tested"):
            del values[name]
        return values


def unreadable(
    kind: Kind, count: int, source: Source = "key", digest: str | None = None, *, aligned: bool = False
) -> Reading:
    """The outcome that a suspect does not let itself be read on these inputs: it proves nothing."""
    return Reading(
        kind=kind,
        count=count,
        wsr=0.5,
        log10_p_before=0.0,
        readable=False,
        source=source,
        digest=digest,
        aligned=aligned,
    )


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
    aligned = alignment is not None
    try:
        ones, sums, squares, incomplete = _project(suspect, key, batches, alignment)
    except NotReadable:
        return unreadable(kind, count, source, digest, aligned=aligned)
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
        source=source,
        digest=digest,
        aligned=aligned,
        wsr=int(matches.sum()) / (count * key.bits),
        log10_p_before=tail.log10_p,
        exact=tail.exact,
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
