"""What the server remembers of its clients' activations: running sums over the current round.

The sums are enough for the correlations between channels, by which a permuted and rescaled copy of the model
can be put back in order (:mod:`sigil.alignment`). They hold nothing of a single sample.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from sigil.alignment import save_sums
from sigil.federation.observers import ServerObserver, Step


class ReferenceRecorder(ServerObserver):
    """Sums of pooled activations, of their products and of squares, for each channel at the cut.

    With a the activation of one sample averaged over its positions, (C,): ``count``, ``pooled`` = Σ a,
    ``products`` = Σ a aᵀ, and ``squares`` = Σ of the mean square over positions. The sums start anew each
    round, so that after training they describe the model that left.
    """

    mergeable = True

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.on_round_start(0)

    def on_round_start(self, round_number: int) -> None:
        channels = self.shape[0]
        self.sums: dict[str, Tensor] = {
            "count": torch.zeros((), dtype=torch.float64),
            "pooled": torch.zeros(channels, dtype=torch.float64),
            "products": torch.zeros(channels, channels, dtype=torch.float64),
            "squares": torch.zeros(channels, dtype=torch.float64),
        }

    @torch.no_grad()
    def on_gradient_sent(self, at: Step, *, activation: Tensor, main: Tensor, final: Tensor) -> None:
        positions = tuple(range(2, activation.ndim))
        values = activation.float()
        pooled = values.mean(positions) if positions else values
        squares = values.square().sum(tuple(i for i in range(activation.ndim) if i != 1))
        self.merge(
            {
                "count": torch.tensor(float(len(activation)), dtype=torch.float64),
                "pooled": pooled.sum(0),
                "products": pooled.mT @ pooled,
                "squares": squares * (len(activation) * activation.shape[1] / activation.numel()),
            }
        )

    def collect(self) -> dict[str, Tensor]:
        return self.sums

    def merge(self, sums: dict[str, Tensor]) -> None:
        for name, value in sums.items():
            self.sums[name] += value.to("cpu", torch.float64)

    def save(self, path: Path) -> None:
        """Write the sums in float64, a few hundred kilobytes."""
        save_sums(path, self.shape, self.sums)
