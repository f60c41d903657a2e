"""Gradient Scrutinizer (Fu et al., NDSS 2023): do gradients of samples with the same label look alike?

An honest server's gradients depend on the labels: those of two samples of one class point in similar
directions, those of two classes do not, and the difference grows steadily. A server that trains the client
for something else returns gradients that know nothing of the labels.

With g_i the gradients of one batch and s_ij = ½ + ½ cos(g_i, g_j) over the pairs i ≠ j, S and σS are mean and
standard deviation of s_ij over pairs with the same label, D and σD over pairs with different labels. At the
batch t that comes after every 50::

    gap   = (S_t − D_t) / (S_t + D_t)
    err   = ½ [ rmse(S before t − its quadratic fit) + rmse(D before t − its quadratic fit) ]
    ovl   = length([S_t ± σS] ∩ [D_t ± σD]) / (highest end − lowest end)
    score = sigmoid( 5 (sgn(gap)|gap|^0.4 · (−ln(7 err + e⁻²)) · (−ln(ovl + e⁻¹)) − 0.7) )

Near 1 is normal; below 0.5 is an attack.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sigil.detectors.detector import Detector


@dataclass(frozen=True)
class Similarities:
    """Mean and population standard deviation of s_ij over pairs with the same and with different labels."""

    same: float
    same_spread: float
    different: float
    different_spread: float


class GradientScrutinizer(Detector):
    """Score how well a server's gradients tell the client's labels apart; below ``threshold`` is an attack.

    A score comes at the batch after every ``every`` of them, with the fit over those before it, as published:
    at the 51st over the first 50. With ``inclusive=True`` it comes at the 50th itself, which is then part of
    its own fit. ``compat=True`` takes the lower bound of the overlap from the published code (see
    :func:`overlap`). Batches in which all labels differ, or all are the same, say nothing and are skipped.

    ``curves``: ``step``, ``same``, ``same_spread``, ``different``, ``different_spread`` for every batch that
    was not skipped; ``scored_step``, ``gap``, ``error``, ``overlap``, ``score`` for every score.
    """

    name = "gradient-scrutinizer"

    def __init__(
        self,
        *,
        every: int = 50,
        threshold: float = 0.5,
        inclusive: bool = False,
        compat: bool = False,
        client: int = 0,
    ) -> None:
        super().__init__(threshold=threshold, client=client)
        self.every = every
        self.inclusive = inclusive
        self.compat = compat
        names = ("step", "same", "same_spread", "different", "different_spread", "gap", "error", "overlap")
        self.curves |= {name: [] for name in names}

    def look(self, rows: Tensor, labels: Tensor) -> float | None:
        measured = similarities(rows, labels)
        if measured is None:
            return None
        self.curves["step"].append(self.step)
        for name, value in vars(measured).items():
            self.curves[name].append(value)
        fitted = len(self.curves["step"]) - (0 if self.inclusive else 1)
        if fitted == 0 or fitted % self.every:
            return None
        terms = {
            "gap": gap(measured),
            "error": fitting_error([self.curves[name][:fitted] for name in ("same", "different")]),
            "overlap": overlap(measured, compat=self.compat),
        }
        for name, value in terms.items():
            self.curves[name].append(value)
        return normality(**terms)

    def suspicious(self, score: float) -> bool:
        return score < self.threshold


def similarities(rows: Tensor, labels: Tensor) -> Similarities | None:
    """S, σS, D and σD of one batch, (n, d) and (n,); None if one of the two kinds of pairs is missing.

    All cosines come from one Gram matrix of the normalised gradients. A gradient of norm zero (or one that is
    not finite) has s_ij = 0 with all others.
    """
    # By the largest entry first: squares of the tiny gradients late in a training would underflow.
    peak = rows.abs().amax(1, keepdim=True)
    sound = torch.isfinite(peak) & (peak > 0)
    unit = torch.where(sound, rows / peak, 0.0)
    unit /= torch.linalg.vector_norm(unit, dim=1, keepdim=True).clamp_min(1.0)
    cosine = (unit @ unit.mT).double().clamp(-1.0, 1.0)
    similarity = torch.where(sound & sound.mT, 0.5 + 0.5 * cosine, 0.0)

    alike = labels[:, None] == labels[None, :]
    other = ~torch.eye(len(labels), dtype=torch.bool, device=rows.device)
    moments = []
    for pairs in ((alike & other).double(), (~alike).double()):
        count = pairs.sum()
        mean = (similarity * pairs).sum() / count
        variance = ((similarity - mean).square() * pairs).sum() / count
        moments += [mean, variance.sqrt()]
    same, same_spread, different, different_spread = torch.stack(moments).tolist()
    if math.isnan(same) or math.isnan(different):  # no such pair: 0 / 0
        return None
    return Similarities(same, same_spread, different, different_spread)


def gap(measured: Similarities) -> float:
    """(S − D) / (S + D), 0 if both are 0.

    >>> gap(Similarities(0.75, 0.0, 0.25, 0.0))
    0.5
    """
    total = measured.same + measured.different
    return (measured.same - measured.different) / total if total > 0 else 0.0


def fitting_error(curves: list[list[float]]) -> float:
    """The mean, over the curves, of the root mean square distance to each one's best parabola.

    >>> round(fitting_error([[1.0, 4.0, 9.0, 16.0], [2.0, 2.0, 2.0, 2.0]]), 12)
    0.0
    """
    values: npt.NDArray[np.float64] = np.array(curves, dtype=np.float64).T
    # An orthogonal basis on [−1, 1]: powers of the step number would be ill-conditioned.
    basis = np.polynomial.legendre.legvander(np.linspace(-1.0, 1.0, len(values)), 2)
    fitted = basis @ np.linalg.lstsq(basis, values, rcond=None)[0]
    return float(np.sqrt(np.square(values - fitted).mean(axis=0)).mean())


def overlap(measured: Similarities, *, compat: bool = False) -> float:
    """How much the intervals S ± σS and D ± σD overlap: 0 if they are disjoint, 1 if they are equal.

    The intersection reaches from the higher of the two lower ends to the lower of the two upper ends. The
    published code starts it at the lower of the lower ends, which makes the overlap of honest runs too large;
    ``compat=True`` does the same.

    >>> measured = Similarities(same=6.0, same_spread=2.0, different=4.0, different_spread=1.0)
    >>> overlap(measured), overlap(measured, compat=True)
    (0.2, 0.4)
    """
    lower = (measured.same - measured.same_spread, measured.different - measured.different_spread)
    upper = (measured.same + measured.same_spread, measured.different + measured.different_spread)
    whole = max(upper) - min(lower)
    if whole == 0.0:
        return 1.0
    if min(upper) <= max(lower):
        return 0.0
    return (min(upper) - (min(lower) if compat else max(lower))) / whole


def normality(gap: float, error: float, overlap: float) -> float:
    """The score from its three terms, each clamped at 0.

    Without the clamp two negative factors would multiply to "normal": similar gradients for different labels
    (a negative gap) and a wildly scattered curve would pass together where each alone is an alarm.

    >>> round(normality(gap=1.0, error=0.0, overlap=0.0), 4)
    0.9985
    """
    factors = (
        math.copysign(abs(gap) ** 0.4, gap),
        -math.log(7.0 * error + math.exp(-2.0)),
        -math.log(overlap + math.exp(-1.0)),
    )
    product = math.prod(max(0.0, factor) for factor in factors)
    return 1.0 / (1.0 + math.exp(-5.0 * (product - 0.7)))
