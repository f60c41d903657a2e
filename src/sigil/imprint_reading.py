"""The reader of imprints: what a suspect's weights say about a pattern, computed without the pattern.

R are the owner's weights, S the suspect's, in the same order. A layer is read as filters (rows) by input
directions (columns), each input channel having one column per position of the kernel. A copy for a recipient
is R + ε s n with s the standard deviation of each filter and n the recipient's pattern. In four steps:

1. *Slopes.* Filters and input channels can be scaled without any effect on what a network computes. So S is
   compared with a_f b_j R, where a_f and b_j are fitted by least squares to each filter and each input
   channel, signs included, after outliers of a filter were cut off.
2. *Differences* d = (S / (a_f b_j) − R) / s, in which a pattern would be ε n plus what was done to the copy.
3. *Whitening.* q = C⁻¹ d with C the second moment of d, a product of one matrix for filters, one for input
   channels and one for positions, each shrunk. Noise that a thief puts where it costs no accuracy is large in
   few directions, and those count little; so do layers and filters that were changed the most.
4. *Levels.* q is rounded to whole numbers from −15 to 15, one scale for all layers.

All of it follows from S and R. Given them, the coins of a pattern of which S knows nothing are fair, and

    T = Σ q_i n_i,        p = P(Σ ± |q_i| >= T)

has an exact law (:func:`sigil.statistics.log10_tail`): :data:`COINS` coins of the weight |q_i| for each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sigil.statistics import log10_tail

Floats = npt.NDArray[np.float64]
Levels = npt.NDArray[np.int8]

COINS: Final = 16
"""Fair coins per weight. With one, the midpoint of two copies that differ would be the owner's weight."""
HIGHEST: Final = 15
"""The largest level: a finer grid adds less than one percent to T over its standard deviation."""

_FITS: Final = 6  # rounds of fitting slopes
_SWEEPS: Final = 2  # rounds of whitening
_LARGEST: Final = 2048  # an axis of more than this is whitened by its diagonal alone
_LEAST_NOISE: Final = 1e-12
_LEAST_FITTED: Final = 64  # numbers that an input channel must have for a slope of its own
_OUTLIER: Final = 10.0  # times the root mean square of a filter's smaller three quarters
_SATURATED: Final = 0.005  # the share of weights beyond the highest level


@dataclass(frozen=True, eq=False)
class Reading:
    """The levels of each tensor that was compared, by its name, in the shape of the owner's."""

    levels: Mapping[str, Levels]

    @property
    def coins(self) -> tuple[int, ...]:
        """How many coins there are of each weight from 1 to the highest level."""
        total = np.zeros(HIGHEST + 1, np.int64)
        for levels in self.levels.values():
            total += np.bincount(np.abs(levels).reshape(-1), minlength=HIGHEST + 1)
        return tuple(int(COINS * count) for count in total[1:])

    def positive(self, patterns: Mapping[str, npt.NDArray[np.int8]]) -> tuple[int, ...]:
        """How many coins of each weight fell to the side of the suspect's difference.

        ``patterns`` are n of each tensor: the number of coins that show + minus those that show −.
        """
        total = np.zeros(HIGHEST + 1, np.int64)
        for name, levels in self.levels.items():
            agreeing = (COINS + np.sign(levels).astype(np.int64) * patterns[name]) // 2
            total += np.bincount(
                np.abs(levels).reshape(-1), weights=agreeing.reshape(-1), minlength=HIGHEST + 1
            ).astype(np.int64)
        return tuple(int(count) for count in total[1:])


def log10_p_before(positive: Sequence[int], coins: Sequence[int]) -> float:
    """The decimal logarithm of p for coins of the weights 1, 2, …, exact and before any correction."""
    return log10_tail(positive, coins, range(1, len(coins) + 1))


def deviations(positive: Sequence[int], coins: Sequence[int]) -> float:
    """T over its standard deviation."""
    pairs = list(zip(range(1, len(coins) + 1), positive, coins, strict=True))
    spread = math.sqrt(sum(weight**2 * number for weight, _, number in pairs))
    return sum(weight * (2 * up - number) for weight, up, number in pairs) / spread if spread else 0.0


def read(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> Reading:
    """Compare the owner's tensors with the suspect's of the same names and shapes; others are left out."""
    weights = {
        name: whitened(differences(filters_of_weight(own), filters_of_weight(theirs[name])))
        for name, own in ours.items()
        if name in theirs and theirs[name].shape == own.shape
    }
    unit = _unit(list(weights.values()))
    levels = {
        name: np.clip(np.rint(weight / unit), -HIGHEST, HIGHEST)
        .astype(np.int8)
        .reshape(tuple(ours[name].shape))
        for name, weight in weights.items()
    }
    return Reading(levels)


def spreads(rows: Floats) -> Floats:
    """The standard deviation of each filter (n, inputs, positions), kept to 16 binary digits, (n, 1, 1).

    So short that machines which add up in another order agree.
    """
    spread = rows.std(axis=(1, 2), keepdims=True)
    mantissa, exponent = np.frexp(spread)
    return np.ldexp(np.rint(mantissa * 2.0**16), exponent - 16)


def differences(ours: Floats, theirs: Floats) -> Floats:
    """d of one layer, (filters, inputs, positions)."""
    theirs = _without_outliers(theirs)
    spread = spreads(ours)
    spread = np.where(spread > 0, spread, 1.0)
    own = ours / spread
    noise = np.ones_like(own)
    has_channels = own.shape[0] * own.shape[2] >= _LEAST_FITTED and own.shape[1] > 1
    channels = _channel_signs(own, theirs) if has_channels else np.ones((1, own.shape[1], 1))
    for _ in range(_FITS):
        filters = _slope(theirs / (channels * spread), own, noise, (1, 2))
        if has_channels:
            # Where the owner's channel is nearly zero its slope is one: it would be that of noise.
            channels = _slope(theirs / (filters * spread), own, noise, (0, 2), pull=1e-4)
        difference = theirs / (filters * channels * spread) - own
        # A filter or channel that does not fit at all must not spoil the slopes of the others.
        rows = np.mean(difference**2, axis=(1, 2), keepdims=True)
        columns = np.mean(difference**2 / np.maximum(rows, _LEAST_NOISE), axis=(0, 2), keepdims=True)
        noise = np.maximum(rows * columns, _LEAST_NOISE)
    return difference


def _channel_signs(ours: Floats, theirs: Floats) -> Floats:
    """Which input channels changed sign, (1, inputs, 1), from filters and channels that agree about it."""
    agreement = np.sum(ours * theirs, axis=2)
    agreement /= np.maximum(np.linalg.norm(ours, axis=2) * np.linalg.norm(theirs, axis=2), _LEAST_NOISE)
    channels = np.ones(ours.shape[1])
    for _ in range(_FITS):
        channels = np.sign(agreement.T @ np.sign(agreement @ channels))
    return np.where(channels < 0, -1.0, 1.0)[None, :, None]


def whitened(difference: Floats) -> Floats:
    """q = C⁻¹ d of one layer (filters, inputs, positions), C a product of one matrix per axis.

    Each matrix is the second moment along its axis once the others are taken off, in turn, shrunk to a
    multiple of the identity (:func:`_shrunk`): a layer has too few filters for one matrix of all input
    directions.
    """
    inverses: list[Floats | None] = [None, None, None]
    for _ in range(_SWEEPS):
        for axis, size in enumerate(difference.shape):
            if size == 1:
                continue
            inverses[axis] = None
            flat = np.moveaxis(difference, axis, 0).reshape(size, -1)
            other = np.moveaxis(_times(inverses, difference), axis, 0).reshape(size, -1)
            if size > _LARGEST:
                moment = np.mean(flat * other, axis=1)
                inverses[axis] = 1.0 / np.maximum(moment, 0.02 * moment.mean() + _LEAST_NOISE)
            else:
                moment = _shrunk(flat @ other.T / flat.shape[1], flat.shape[1])
                inverses[axis] = np.linalg.inv(moment).astype(np.float64)
    return _times(inverses, difference)


def _times(inverses: Sequence[Floats | None], values: Floats) -> Floats:
    """Multiply each axis by its matrix, or by the diagonal of one, if it has one."""
    for axis, inverse in enumerate(inverses):
        if inverse is not None and inverse.ndim == 1:
            values = values * inverse.reshape([-1 if each == axis else 1 for each in range(3)])
        elif inverse is not None:
            values = np.moveaxis(np.tensordot(inverse, values, (1, axis)), 0, axis)
    return values


def _shrunk(moment: Floats, samples: int) -> Floats:
    """A second moment drawn to a multiple of the identity, by the share that is best for normal samples.

    Chen, Wiesel, Eldar and Hero, "Shrinkage algorithms for MMSE covariance estimation" (2010), OAS; at least
    0.02.
    """
    size = len(moment)
    trace, squares = float(np.trace(moment)), float(np.sum(moment * moment.T))
    apart = (samples + 1 - 2 / size) * (squares - trace**2 / size)
    share = ((1 - 2 / size) * squares + trace**2) / apart if apart > 0 else 1.0
    share = min(1.0, max(0.02, share))
    identity = np.eye(size) * (trace / size + _LEAST_NOISE)
    return (1 - share) * (moment + moment.T) / 2 + share * identity


def _slope(
    theirs: Floats, ours: Floats, noise: Floats, axes: tuple[int, ...], *, pull: float = 0.0
) -> Floats:
    """The factor of ours that fits theirs best, never zero; ``pull``, a share of energy, draws it to one."""
    energy = np.sum(ours**2 / noise, axis=axes, keepdims=True)
    extra = pull * float(energy.mean())
    along = np.sum(theirs * ours / noise, axis=axes, keepdims=True)
    factor = (along + extra) / np.maximum(energy + extra, _LEAST_NOISE)
    least = 1e-3 * max(float(np.median(np.abs(factor))), 1e-9)
    return np.where(np.abs(factor) < least, least, factor)


def _without_outliers(rows: Floats) -> Floats:
    """Each filter with its largest weights cut off: one in an idle channel costs nothing and spoils sums."""
    largest = np.abs(rows).max(axis=(1, 2), keepdims=True)
    rows = rows / np.where(largest > 0, largest, 1.0)  # so that no square leaves its range
    flat = np.sort(np.abs(rows).reshape(len(rows), -1), axis=1)
    smaller = flat[:, : max(1, 3 * flat.shape[1] // 4)]
    limit = _OUTLIER * np.sqrt(np.mean(smaller**2, axis=1))
    limit = np.where(limit > 0, limit, flat[:, -1])[:, None, None]
    return np.clip(rows, -limit, limit)


def _unit(weights: Sequence[Floats]) -> float:
    """The size of one level: few weights lie beyond the highest."""
    sizes = np.concatenate([np.abs(weight).reshape(-1) for weight in weights]) if weights else np.zeros(1)
    highest = float(np.quantile(sizes, 1.0 - _SATURATED))
    return max(highest, float(np.finfo(np.float64).tiny)) / HIGHEST


def likeness(ours: Tensor, theirs: Tensor) -> float:
    """The mean size of the cosines of filters with each other."""
    own, other = (filters_of_weight(weight).reshape(len(weight), -1) for weight in (ours, theirs))
    sizes = np.linalg.norm(own, axis=1) * np.linalg.norm(other, axis=1)
    return float(np.mean(np.abs(np.sum(own * other, axis=1)) / np.maximum(sizes, 1e-300)))


def filters_of_weight(weight: Tensor) -> Floats:
    """A weight as (filters, inputs, positions) in double precision; what is not finite is zero."""
    values = weight.detach().double().cpu().numpy()
    values = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    return values.reshape(len(values), values.shape[1], -1)
