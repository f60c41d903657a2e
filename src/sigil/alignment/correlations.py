"""Which channel is which: match two correlation matrices whose rows are in different orders.

A reordered and rescaled copy of a model has the same correlations between its channels, in another order.
Correlations know neither scale nor mean, so they are the same for every disguise; what is left is to find
the order, a quadratic assignment problem.

What is compared is ln(C + 0.01), the logarithm of the correlation matrix. Its small eigenvalues, which the
weights decide, count as much as the large ones, which the images decide; so the order is also found with
other images than those of the training, and mostly with noise.

The search is graduated assignment: a doubly stochastic matrix, first guessed from the sorted rows, which do
not depend on the order, follows the gradient of the agreement while the temperature falls, until it is
nearly a permutation; the Hungarian method and a few plain steps finish it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy  # loads scipy.optimize, which takes a second, only where it is used
import torch
from scipy.special import betainc
from torch import Tensor

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Order = npt.NDArray[np.int64]

# A channel whose deviation is below this share of its size is constant but for rounding.
CONSTANT = 1e-6

STRANGERS = 0.6
"""The share of channels that are sure by chance, as assumed of unrelated models.

Measured: 0.24 to 0.58 for trained ones of 128 channels; up to 0.69 for untrained ones of 64, and 0.72 on
average for hardly trained ones of 32, for which CHANCE is therefore too hopeful.
"""

CHANCE = 1e-5
"""A match is believed if chance finds as many sure channels with at most this probability."""

FEWEST = 0.25
"""The share of channels that must have a partner at all."""

STEPS = 100
SINKHORN = 10
_LEAST = np.float32(1e-30)  # a sum of nothing is divided by this
COLD, HOT = 60.0, 3.0  # inverse temperatures at the end and at the start
GUESS = 10.0  # how much the sorted rows count in the first guess
HOLD = 0.05  # how much of the guess is kept while the temperature falls
FLOORS = {"guess": 0.1, "search": 0.01}  # added to the eigenvalues before the logarithm
RIDGE = 0.3


TURNS = 8
"""Ways to turn or mirror a square."""


def turned(maps: Tensor, turn: int) -> Tensor:
    """Maps (…, height, width), turned by quarters; from the fifth way on also mirrored."""
    rotated = torch.rot90(maps, turn % 4, (-2, -1))
    return rotated.transpose(-2, -1) if turn >= 4 else rotated


@dataclass(frozen=True)
class Match:
    """Which channel is which, and how much that can be believed.

    Channel i of the reference is channel ``order[i]`` of the suspect, or none if that is −1. ``agreement`` is
    the cosine of the two matrices of partial correlations in that order, 1 for a perfect copy. ``sure``
    counts the channels whose partner is the best of all for them, and they for it; ``believed`` says whether
    those are enough. ``signs`` are −1 where the suspect's channel is the other's negative, if signs were
    looked for. ``scales`` are those of the suspect's channels up to a common factor, if they were found;
    not a number for a channel without one. ``gauge`` names the layer and the batch norm in front of the last
    rectifier, if nothing else shows scales: between them channels vary as much as in training, but for their
    scale. The suspect's maps are :func:`turned` by ``turns``, one after the other.
    """

    order: Order
    agreement: float
    sure: int
    believed: bool
    signs: Order | None = None
    scales: Floats | None = None
    gauge: tuple[str, str] | None = None
    turns: tuple[int, ...] = ()


def match_by_correlations(reference: Floats, suspect: Floats, *, seed: int = 0) -> Match:
    """Find the order in which ``suspect`` (C′, C′) looks like ``reference`` (C, C).

    Both are correlation matrices. With C′ > C some channels of the suspect stay unused; with C′ < C some of
    the reference have no partner. If the first search does not end in a match that can be believed, others
    begin from a disturbed guess, and the one with the best agreement counts.
    """
    size = max(len(reference), len(suspect))
    searched = (
        _padded(_logarithm(reference, FLOORS["search"]), size),
        _padded(_logarithm(suspect, FLOORS["search"]), size),
    )
    guess = _guess(reference, suspect, size)
    random = np.random.default_rng(seed)
    best: tuple[float, Order] | None = None
    partial = _partial(reference), _partial(suspect)
    for attempt in range(_attempts(size)):
        disturbed = guess + (random.gumbel(size=guess.shape).astype(np.float32) if attempt else 0)
        order, value = _search(*searched, disturbed)
        if best is None or value > best[0]:
            best = value, order
            found = _match(*partial, order[: len(reference)])
            if found.believed:
                break
    return found


def correlation_matrix(covariance: Floats, mean: Floats) -> Floats:
    """Correlations from covariances (C, C) and means (C,); those of a channel that never varied are 0."""
    variance = covariance.diagonal()
    deviation = np.where(variance > CONSTANT**2 * (mean**2 + variance), np.sqrt(variance.clip(0)), np.inf)
    found = covariance / np.outer(deviation, deviation)
    np.fill_diagonal(found, np.where(np.isfinite(deviation), 1.0, 0.0))
    return found


def _attempts(size: int) -> int:
    """More searches where each is short: 4 at 512 channels, 32 at 128 and fewer."""
    return min(32, max(4, 2**19 // size**2))


def _search(reference: Singles, suspect: Singles, guess: Singles) -> tuple[Order, float]:
    """Graduated assignment from a guess of log-likelihoods (n, n); returns the order and its agreement."""
    soft = _doubly_stochastic(guess)
    for step in range(STEPS):
        done = step / STEPS
        gain = reference @ soft @ suspect + HOLD * (1 - done) * guess
        soft = _doubly_stochastic(HOT * (COLD / HOT) ** done * gain)
    order = _assign(soft)
    value = _agreement(reference, suspect, order)
    while True:
        better = _assign(reference @ suspect[:, order].T)
        gained = _agreement(reference, suspect, better)
        if gained <= value:
            return order, value
        order, value = better, gained


def _match(reference: Floats, suspect: Floats, order: Order) -> Match:
    """How well the partial correlations agree, and for how many channels each is the other's best."""
    paired = np.flatnonzero(order < len(suspect))
    columns = suspect[:, order[paired]]
    rows = reference[:, paired]
    likeness = _unit(rows) @ _unit(columns).T
    best_for_reference, best_for_suspect = likeness.argmax(1), likeness.argmax(0)
    own = order[paired]
    sure = (best_for_reference[paired] == own) & (best_for_suspect[own] == paired)
    inner, outer = reference[np.ix_(paired, paired)], suspect[np.ix_(own, own)]
    scale = np.sqrt((reference**2).sum() * (outer**2).sum())
    agreement = float((inner * outer).sum() / scale) if scale > 0 else 0.0
    found = int(sure.sum())
    believed = len(own) >= FEWEST * len(order) and _by_chance(found, len(own)) <= CHANCE
    return Match(np.where(order < len(suspect), order, -1), agreement, found, bool(believed))


def _guess(reference: Floats, suspect: Floats, size: int) -> Singles:
    """Log-likelihoods from the distances between sorted rows; a padding row is equally far from all."""
    profiles = []
    for matrix in (reference, suspect):
        rows = _logarithm(matrix, FLOORS["guess"])
        count = len(rows)
        # Quantiles, so that rows of different lengths can be compared.
        sorted_rows = np.sort(rows[~np.eye(count, dtype=bool)].reshape(count, count - 1), axis=1)
        places = np.linspace(0, count - 2, max(2, size - 1))
        low = np.floor(places).astype(np.int64)
        high, part = np.minimum(low + 1, count - 2), places - low
        profiles.append(sorted_rows[:, low] * (1 - part) + sorted_rows[:, high] * part)
    ours, theirs = profiles
    distance = (ours**2).sum(1)[:, None] + (theirs**2).sum(1) - 2 * ours @ theirs.T
    guess = np.full((size, size), -GUESS)
    guess[: len(ours), : len(theirs)] = -GUESS * distance / max(distance.mean(), 1e-12)
    return guess.astype(np.float32)


def _logarithm(correlation: Floats, floor: float) -> Floats:
    """The off-diagonal part of ln(C + floor), scaled to rows of length 1 on average."""
    values, vectors = np.linalg.eigh(correlation)
    found = _hollow((vectors * np.log(values.clip(0) + floor)) @ vectors.T)
    return found * np.sqrt(len(found)) / max(float(np.linalg.norm(found)), 1e-12)


def _partial(correlation: Floats) -> Floats:
    """Partial correlations, from (C + ridge)⁻¹, with a zero diagonal."""
    values, vectors = np.linalg.eigh(correlation)
    inverse = (vectors / (values.clip(0) + RIDGE)) @ vectors.T
    scale = np.sqrt(inverse.diagonal())
    return _hollow(-inverse / np.outer(scale, scale))


def _hollow(matrix: Floats) -> Floats:
    return matrix - np.diag(matrix.diagonal())


def _unit(rows: Floats) -> Floats:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12)


def _padded(matrix: Floats, size: int) -> Singles:
    found = np.zeros((size, size), np.float32)
    found[: len(matrix), : len(matrix)] = matrix
    return found


def _doubly_stochastic(logarithms: Singles) -> Singles:
    """Sinkhorn's iteration: rows and columns are divided by their sums in turns.

    The divisors are kept apart, so that each turn is a product of the matrix with a vector.
    """
    values = np.exp(logarithms - logarithms.max(1, keepdims=True))
    columns = np.ones(len(values), np.float32)
    for _ in range(SINKHORN):
        rows = 1 / np.maximum(values @ columns, _LEAST)
        columns = 1 / np.maximum(rows @ values, _LEAST)
    values *= rows[:, None]
    values *= columns
    return values


def _by_chance(found: int, channels: int) -> float:
    """P(Bin(channels, STRANGERS) >= found)."""
    return float(betainc(found, channels - found + 1, STRANGERS)) if found else 1.0


def _assign(gain: Singles) -> Order:
    return np.asarray(scipy.optimize.linear_sum_assignment(gain, maximize=True)[1], np.int64)


def _agreement(reference: Singles, suspect: Singles, order: Order) -> float:
    return float((reference * suspect[np.ix_(order, order)]).sum()) / len(order)
