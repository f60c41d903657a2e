"""Who sends the same samples twice? Near-repeated activations, counted within a batch and within an epoch.

A client that sends one image with every label, or one batch again and again, can cancel the task in what
comes back and is left with the mark. Honest clients send each sample once per local epoch. So the server
remembers each activation by a few numbers, z = R a with a secret random R, and counts rows whose z is nearer
to an earlier one than :data:`NEAR` of the usual distance between samples.

The server is not told where a local epoch begins. A batch of which too much is known already is taken for
the start of the next one as long as there is one left, and the memory starts anew: so no honest client is
refused for its later epochs, and a dishonest one gains one repeated batch per additional local epoch.
"""

from __future__ import annotations

import hashlib
from typing import Final

import torch
from torch import Tensor

from sigil.errors import RepetitionError

NUMBERS: Final = 8
NEAR: Final = 0.02
# The usual distance is at least this share of an activation's norm: a batch of copies has none of its own.
_LEAST_SPREAD: Final = 0.1
# Rows that are remembered; an epoch of more samples is remembered in part.
MEMORY: Final = 8_192
# Natural data hold a few doubles: a batch is refused for more of them than two and this share of its rows.
TOLERATED: Final = 1 / 8


def projection(secret: Tensor, dimension: int) -> Tensor:
    """R, float32 (d, NUMBERS), which follows from `secret` alone: any values that clients do not know."""
    digest = hashlib.sha256(b"sigil repetition" + secret.cpu().contiguous().numpy().tobytes()).digest()
    random = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    numbers = torch.randn(dimension, NUMBERS, generator=random) / NUMBERS**0.5
    return numbers.T.contiguous().T  # column by column, as products with a batch read it twice as fast


class Repetitions:
    """Counts the near-repeated activations of one client in one round of `epochs` local epochs.

    >>> import torch
    >>> seen = Repetitions(projection(torch.zeros(1), 64))
    >>> batch = torch.randn(16, 64, generator=torch.Generator().manual_seed(0))
    >>> seen.count(batch), seen.count(batch), seen.total
    (0, 16, 16)
    """

    def __init__(self, matrix: Tensor, *, epochs: int = 1, refuse: bool = False) -> None:
        self.total = 0
        self.refuse = refuse
        self._matrix = matrix
        self._epochs_left = epochs - 1
        self._known = torch.empty(0, NUMBERS)
        self._spread = 0.0

    @torch.no_grad()
    def count(self, activation: Tensor) -> int:
        """How many rows of (N, *shape) were there before; `RepetitionError` if that is to be refused."""
        rows = _flat(activation)
        if self._matrix.device != rows.device:
            self._matrix = self._matrix.to(rows.device)
        sent = (rows.float() @ self._matrix).cpu()
        size = float(sent.square().sum(1).mean().sqrt())
        spread = float(sent.var(0, correction=0).sum().mul(2).sqrt())
        self._spread = max(self._spread, spread, _LEAST_SPREAD * size)
        near = NEAR * self._spread

        within = (torch.cdist(sent, sent) < near).tril(-1).any(dim=1)
        before = _any_near(sent, self._known, near)
        tolerated = max(2, TOLERATED * len(sent))
        if self._epochs_left and int(before.sum()) > tolerated:
            self._epochs_left -= 1
            self._known = torch.empty(0, NUMBERS)
            before = torch.zeros_like(before)
        self._known = torch.cat([self._known, sent])[-MEMORY:]
        repeated = int((within | before).sum())
        self.total += repeated
        if self.refuse and repeated > tolerated:
            raise RepetitionError(
                f"{repeated} of the {len(sent)} samples of this batch were sent before in this epoch, and "
                "repeated activations are refused here; send each sample once per local epoch."
            )
        return repeated


def _any_near(sent: Tensor, known: Tensor, near: float) -> Tensor:
    if not len(known):
        return torch.zeros(len(sent), dtype=torch.bool)
    # |s − k|² = |s|² + (|k|² − 2 s·k), and the roots of two million distances are not needed.
    rest = torch.addmm(known.square().sum(1), sent, known.T, alpha=-2).amin(1)
    return sent.square().sum(1) + rest < near**2


def _flat(activation: Tensor) -> Tensor:
    """(N, d) in memory order, so that a channels-last tensor is not copied."""
    if activation.ndim == 4 and activation.is_contiguous(memory_format=torch.channels_last):
        return activation.permute(0, 2, 3, 1).flatten(1)
    return activation.flatten(1)
