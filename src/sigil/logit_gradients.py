"""Is this a gradient that the agreed loss can produce? What a server asks before it goes backward.

The strength of the mark is relative to the gradient at the cut, and a client chooses the gradient at the
logits. One that multiplies it by a huge number makes the capped mark vanish beside it, one that sends the
same batch twice with two factors reads the mark off the difference. But the server knows the logits S that it
sent, and the agreed loss leaves a client no freedom but its labels. For the mean cross-entropy of N samples

    G = (softmax(S) - Y) / N,    so    Y = softmax(S) - N G

must be a table of labels: one-hot rows, or what smoothing or mixing makes of them.

In U-shaped split learning the server can therefore compute every label from what it is sent: that is a
property of the setting, not of this check. The check keeps none and returns nothing but its outcome.

Losses that leave more freedom (:attr:`Loss.kind` ``"any"``) cannot be judged this way: any smaller gradient
is one of theirs. There the mark must be homogeneous in the gradient (``Injector(..., cap=False)``) and
:func:`normalised` keeps the backward pass within the number format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from sigil import arguments
from sigil.errors import ConfigError, LossError, ShapeError

# Unit roundoff of the formats in which logits and gradients travel.
_ROUNDOFF: Final = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
}
_ABSOLUTE: Final = 1e-5
_RATIO: Final = 1e-3
# Below this residual per sample its scale can neither be measured nor matter.
_FITTED: Final = 1e-3


@dataclass(frozen=True)
class Loss:
    """The loss that server and clients agreed on, as far as the server needs to know it.

    ``kind`` is ``"cross-entropy"`` for class labels or ``"any"`` for a loss that the server cannot judge.
    ``smoothing`` is the ε of label smoothing; ``mixing`` allows two classes per sample (mixup, cutmix);
    ``reduction`` says whether the loss is the mean over the batch or its sum.
    """

    kind: Literal["cross-entropy", "any"] = "cross-entropy"
    smoothing: float = 0.0
    mixing: bool = False
    reduction: Literal["mean", "sum"] = "mean"

    def __post_init__(self) -> None:
        if self.kind not in ("cross-entropy", "any") or self.reduction not in ("mean", "sum"):
            raise ConfigError(
                f"There is no loss {self.kind!r} with the reduction {self.reduction!r}; "
                'choose "cross-entropy" or "any", reduced by "mean" or "sum".'
            )
        if not 0.0 <= self.smoothing < 1.0:
            raise ConfigError(
                f"The label smoothing is {self.smoothing}, but it must be at least 0 and less than 1."
            )


CROSS_ENTROPY: Final = Loss()


@torch.no_grad()
def check_logit_gradient(logits: Tensor, gradient: Tensor, loss: Loss = CROSS_ENTROPY) -> None:
    """Raise `LossError` unless `gradient` is one that `loss` can have at these `logits`.

    `logits` (N, classes) are those that were *sent*, after any rounding on the way; `gradient` is what came
    back, in the narrowest format that either travelled in.

    >>> import torch, torch.nn.functional as F
    >>> logits = torch.randn(4, 10, requires_grad=True)
    >>> (gradient,) = torch.autograd.grad(F.cross_entropy(logits, torch.tensor([1, 2, 3, 4])), logits)
    >>> check_logit_gradient(logits, gradient)
    >>> check_logit_gradient(logits, 1000 * gradient)
    Traceback (most recent call last):
    ...
    sigil.errors.LossError: The logit gradient is not one of the agreed loss ...
    """
    for what, given in (("logits", logits), ("logit gradient", gradient)):
        arguments.tensor(what, given)
        if given.dtype not in _ROUNDOFF:
            raise ShapeError(f"The {what} are of type {given.dtype}, but floating point is wanted.")
    if gradient.shape != logits.shape or logits.ndim != 2 or logits.numel() == 0:
        raise ShapeError(
            f"The logit gradient has the shape {tuple(gradient.shape)}, but the logits had "
            f"{tuple(logits.shape)}; both must be (samples, classes)."
        )
    if not bool(torch.isfinite(gradient).all()):
        raise LossError("The logit gradient holds values that are not finite.")
    if loss.kind == "any":
        return
    roundoff = _ROUNDOFF[gradient.dtype]
    samples = len(logits) if loss.reduction == "mean" else 1
    expected = torch.softmax(logits.double(), dim=1)
    given = gradient.double() * samples
    if not bool(torch.isfinite(expected).all()):
        raise LossError(
            "The logits are not finite, so no gradient of the agreed loss can be told from others."
        )

    labels = _nearest_labels(expected - given, loss)
    residual = expected - labels
    allowed = 4 * roundoff * torch.maximum(expected, given.abs()) + _ABSOLUTE
    if bool(((residual - given).abs() > allowed).any()):
        raise _refusal(loss)
    energy = residual.square().sum()
    if energy > _FITTED * len(logits):
        ratio = (given * residual).sum() / energy
        if (ratio - 1).abs() > 4 * roundoff + _RATIO:
            raise _refusal(loss)


def normalised(gradient: Tensor) -> tuple[Tensor, float]:
    """The gradient times a power of two that brings its largest entry near 1, and that power.

    The power is 1 where the gradient lies well within the format, so that ordinary training is untouched bit
    for bit. The backward pass is linear: what comes out of it is divided by the power again.
    """
    largest = float(gradient.abs().amax()) if gradient.numel() else 0.0
    if largest == 0.0 or not 0.0 < largest < float("inf") or 1e-12 < largest < 1e6:
        return gradient, 1.0
    exponent = int(torch.frexp(torch.tensor(largest, dtype=torch.float64)).exponent)
    power = 2.0 ** -max(-120, min(120, exponent))
    return gradient * power, power


def _nearest_labels(table: Tensor, loss: Loss) -> Tensor:
    """The table of targets that this loss allows and that is nearest to `table` (N, classes)."""
    classes = table.shape[1]
    base = loss.smoothing / classes
    sharp = (table - base) / (1.0 - loss.smoothing)
    nearest = torch.zeros_like(sharp)
    if loss.mixing and classes > 1:
        best = sharp.topk(2, dim=1)
        first = ((best.values[:, :1] - best.values[:, 1:] + 1.0) / 2).clamp(0.0, 1.0)
        nearest.scatter_(1, best.indices, torch.cat([first, 1.0 - first], dim=1))
    else:
        nearest.scatter_(1, sharp.argmax(dim=1, keepdim=True), 1.0)
    return nearest * (1.0 - loss.smoothing) + base


def _refusal(loss: Loss) -> LossError:
    agreed = "cross-entropy"
    if loss.smoothing:
        agreed += f" with label smoothing {loss.smoothing:g}"
    if loss.mixing:
        agreed += " with mixed labels"
    return LossError(
        f"The logit gradient is not one of the agreed loss ({agreed}, {loss.reduction} over the batch): "
        "a factor, class weights, ignored samples, clipping, accumulation or another loss "
        "must be agreed on with the server first."
    )
