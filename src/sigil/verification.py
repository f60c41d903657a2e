"""Verification: ask a suspect model for the bits of a key and say how surprising the answer is.

The paper's verification algorithm (Algorithm 2), whose lines are numbered below, followed by the exact
test. ``N`` random inputs go through the suspect up to the cut; their activations, flattened, are projected
by the key,

    P = A M,        B'_ij = 1[P_ij >= 0],        WSR = share of B'_ij that equal b_j,

and the p-value is the probability that a target drawn by coin flips would have matched at least
this well (see :mod:`sigil.statistics`). It holds for every suspect, without any clean model to
compare with, because under the null hypothesis only the key's target is random.

With a ``reference`` the channels of a reordered and rescaled copy are put back first
(:mod:`sigil.alignment`).
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sigil import statistics, wording
from sigil.alignment import Alignment, Probes, Reference, align, check_channels, open_reference
from sigil.errors import AlignmentError, ConfigError, ShapeError
from sigil.key import Key
from sigil.models import Model
from sigil.probing import (
    Suspect,
    activations,
    batch_size_for,
    check_finite,
    input_shape_of,
    module_of,
    noise,
    undisturbed,
)

ALPHA = 3e-7
"""The paper's five-sigma level: the default p-value below which ownership is proven."""

PAPER_THRESHOLD = statistics.PAPER_THRESHOLD
"""The paper's fixed rule, ``WSR > 0.70``: reported beside the verdict, never instead of it."""

# Floats held at once: activations waiting for their projection, or one block of rows of M (128 MB).
_BUDGET = 1 << 25


@dataclass(frozen=True)
class Report:
    """What one verification found.

    ``owned`` is the verdict: the p-value, corrected for ``tries``, is at most ``alpha``. ``wsr`` is
    the watermark success rate over all probes and bits. ``threshold`` is the smallest WSR at which
    this very suspect would have been found owned (infinite if no WSR can: the key is too short).

    Per bit ``j``, in the key's order: ``bit_shares`` is the share of probes whose bit equals the
    target; ``margins`` is ``s_j * mean_i(P_ij) / sqrt(mean_i(P_ij ** 2))`` with ``s_j`` the sign
    that the target asks for, so +1 is a constant projection on the right side of zero and -1 one
    on the wrong side. ``bit_error`` is the share of bits whose majority over the probes is wrong.

    If a reference was given, ``alignment`` says what was compared and how sure the order of the channels was
    (see :class:`sigil.alignment.Alignment`); where it was not sure enough, the suspect was examined as it is,
    and ``aligned`` is false. The p-value is exact for an alignment by initial weights, and for one by
    correlations as far as docs/alignment.md says.
    """

    owned: bool
    wsr: float
    p_value: float
    log10_p: float
    exact: bool
    threshold: float
    alpha: float
    tries: int
    bits: int
    probes: int
    seed: int
    bit_error: float
    bit_shares: tuple[float, ...]
    margins: tuple[float, ...]
    paper_rule: bool
    commitment: str
    owner: str
    alignment: Alignment | None = None

    @property
    def aligned(self) -> bool:
        """Whether the suspect's channels were put back in order before it was asked."""
        return self.alignment is not None and self.alignment.believed

    @property
    def weights(self) -> tuple[int, ...]:
        """``|w_j| = |2 n_j - N|``, the numbers whose random signs make up the null distribution."""
        return tuple(round(abs(2 * share - 1) * self.probes) for share in self.bit_shares)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON values; an infinite threshold becomes ``None``."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        order = values.pop("alignment")
        values |= {
            "aligned": self.aligned,
            "alignment": None if order is None else order.source,
            "reference": None if order is None else order.fingerprint,
            "sure_channels": None if order is None else order.sure,
            "agreement": None if order is None else order.agreement,
        }
        for name, value in values.items():
            if isinstance(value, tuple):
                values[name] = list(value)
            elif isinstance(value, float) and not math.isfinite(value):
                values[name] = None
        return values

    def sentence(self) -> str:
        """The verdict in one sentence for people."""
        return wording.sentence(self, owner=self.owner, aligned=self.aligned)


def verify(
    suspect: Callable[[Tensor], Tensor],
    key: Key,
    *,
    input_shape: Sequence[int] | None = None,
    probes: int = 512,
    seed: int = 0,
    alpha: float = ALPHA,
    tries: int = 1,
    batch_size: int = 64,
    reference: Reference | Model | str | os.PathLike[str] | None = None,
    probe_data: Probes | None = None,
) -> Report:
    """Say whether ``suspect`` carries the mark of ``key``, and how sure that is.

    ``suspect`` is the model up to the cut: an ``nn.Module`` or a :class:`sigil.suspect.Suspect`
    (any callable from a float batch ``(n, *input_shape)`` to activations ``(n, *key.shape)``). A
    module stays where it is and as it is: it runs on its own device and in its own dtype, in
    evaluation mode and without gradients, and gets the training flag of every submodule back. The
    random states of torch, numpy and Python are the same before and after.

    ``probes`` inputs are drawn from N(0, 1) with ``seed``; the same seed gives the same probes
    whatever the ``batch_size``. ``tries`` is the number of keys and suspects that were tried in
    all: the p-value is multiplied by it. ``input_shape`` may be left out when the suspect knows it.

    ``reference`` undoes a permutation and scaling of channels first: what the server recorded, or
    the model at the start of the training, or a file of either, or the directory of a finished run,
    which has both. Of a run the initial weights are taken where the suspect's weights can be
    compared with them, and what the server recorded where they cannot or ``probe_data`` is given.
    ``probe_data`` are images (see :func:`sigil.alignment.align` and
    :func:`sigil.data.load_images`). The test itself asks with random inputs as ever.
    """
    _check_settings(probes=probes, seed=seed, alpha=alpha, tries=tries, batch_size=batch_size)
    shape = input_shape_of(suspect, input_shape)
    batch_size = batch_size_for(shape, batch_size)
    alignment = None
    if reference is not None:
        alignment = _align(suspect, key, reference, probe_data, shape=shape, batch_size=batch_size)
    elif probe_data is not None:
        raise AlignmentError("Probe images serve to put channels in order: give the reference as well.")
    used = alignment if alignment is not None and alignment.believed else None
    # Verifier executes:
    #   1  X_rand ← N random inputs from N(0, 1)
    #   2  A' ← f_c(X_rand, θ'_c)
    #   3  A'_flat ← flatten(A')
    #   4  b̂ ← sigmoid(A'_flat M)
    #   5  B' ← round(b̂)                                        kept as the number of ones of each bit
    ones, sums, squares = _project(
        suspect, key, shape=shape, probes=probes, seed=seed, batch_size=batch_size, alignment=used
    )

    #   6  WSR ← share of B'_ij that equal b_j
    target = key.target.to(torch.int64)
    signs = 2 * target - 1
    matches = torch.where(target == 1, ones, probes - ones)
    rms = (squares / probes).sqrt()
    margins = torch.where(rms > 0, signs * (sums / probes) / rms, 0.0)
    majority = (2 * ones >= probes).to(torch.int64)

    #   7  if WSR > τ                                           here: if p, corrected for tries, is at most α
    #   8      return true
    #   9  else
    #  10      return false
    #  11  end if
    tail = statistics.p_value(ones.numpy(), target.numpy(), probes)
    log10_p = statistics.correct(tail.log10_p, tries)
    wsr = int(matches.sum()) / (probes * key.bits)
    return Report(
        owned=bool(log10_p <= math.log10(alpha)),
        wsr=wsr,
        p_value=10.0**log10_p,
        log10_p=log10_p,
        exact=tail.exact,
        threshold=statistics.threshold((2 * ones - probes).numpy(), probes=probes, alpha=alpha / tries),
        alpha=alpha,
        tries=tries,
        bits=key.bits,
        probes=probes,
        seed=seed,
        bit_error=float((majority != target).double().mean()),
        bit_shares=tuple((matches / probes).tolist()),
        margins=tuple(margins.tolist()),
        paper_rule=wsr > PAPER_THRESHOLD,
        commitment=key.commitment,
        owner=key.owner,
        alignment=alignment,
    )


def _check_settings(*, probes: int, seed: int, alpha: float, tries: int, batch_size: int) -> None:
    for name, value in (("probes", probes), ("tries", tries), ("batch_size", batch_size)):
        if value < 1:
            raise ConfigError(f"{name} is {value}, but it must be at least 1.")
    if not 0 <= seed < 1 << 63:
        raise ConfigError(f"seed is {seed}, but it must lie between 0 and 2**63 - 1.")
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha is {alpha}, but it must lie between 0 and 1, such as {ALPHA:g}.")


def _align(
    suspect: Suspect,
    key: Key,
    reference: Reference | Model | str | os.PathLike[str],
    probe_data: Probes | None,
    *,
    shape: tuple[int, ...],
    batch_size: int,
) -> Alignment:
    check_channels(key.shape)
    known = reference
    if isinstance(known, str | os.PathLike):
        # Only weights of a known architecture can be compared with initial ones, and images only serve to
        # compare activations.
        weights = probe_data is None and isinstance(module_of(suspect), Model)
        known = open_reference(known, kind="initial weights" if weights else "correlations")
    if isinstance(known, Reference) and known.shape != key.shape:
        raise ShapeError(
            f"The reference was recorded at activations of shape {known.shape}, but the key was made for "
            f"{key.shape}: give the reference of the training that this key marked."
        )
    return align(suspect, known, probe_data, input_shape=shape, batch_size=batch_size)


def _project(
    suspect: Suspect,
    key: Key,
    *,
    shape: tuple[int, ...],
    probes: int,
    seed: int,
    batch_size: int,
    alignment: Alignment | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Per bit over all probes: how many bits are one, the sum and the sum of squares of P."""
    generator = torch.Generator().manual_seed(seed)
    ones = torch.zeros(key.bits, dtype=torch.int64)
    sums = torch.zeros(key.bits, dtype=torch.float64)
    squares = torch.zeros(key.bits, dtype=torch.float64)

    # Several batches wait for one projection, so that a key too large to be held as a whole is
    # derived once for all of them.
    wave = max(1, _BUDGET // max(key.dimension, key.bits) // batch_size) * batch_size
    with undisturbed(suspect, seed=seed):
        for first in range(0, probes, wave):
            last = min(first + wave, probes)
            waiting = []
            for start in range(first, last, batch_size):
                batch = noise(shape, min(batch_size, last - start), generator=generator)  # line 1
                activation = activations(suspect, batch)  # line 2
                if alignment is not None:
                    activation = alignment(activation)
                waiting.append(_flat(activation, key))  # line 3
            projection = _times_matrix(torch.cat(waiting), key)  # line 4
            check_finite(projection)
            # Line 5: the sigmoid is at least 1/2 where the projection is at least 0.
            ones += (projection >= 0).sum(dim=0)
            sums += projection.sum(dim=0, dtype=torch.float64)
            squares += projection.double().square_().sum(dim=0)
    return ones, sums, squares


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
