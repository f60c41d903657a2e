"""Batch normalisation and ReLU as one module: the rows ``bn1+relu`` and ``norm_final``."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class BatchNormReLU(nn.BatchNorm2d):
    """Normalise (N, C, H, W) over the batch, then ReLU: max(0, γ (x − μ)/√(σ² + ε) + β).

    Being a batch norm itself, its state-dict keys are those of a plain one: ``bn1.weight``, not
    ``bn1.0.weight``.
    """

    def forward(self, input: Tensor) -> Tensor:
        # In place is safe: the backward pass of batch norm needs its input, not its output.
        return F.relu(super().forward(input), inplace=True)
