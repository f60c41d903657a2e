"""Observers: code that looks on at named moments of the training and knows nothing of the rest.

A :class:`ServerObserver` sees what the server sees (activations and gradients, never labels); a
:class:`ClientObserver` sees what a client sees (incoming gradients and its own labels, never G_main). Both
are base classes whose methods do nothing, so an observer implements only the moments that it needs.

An observer whose data spans rounds gives it to ``state_dict`` and takes it back in ``load_state_dict``:
it then survives an interruption with the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Step:
    """Which step this is: round and step count from 1, step is within the round of this client."""

    round: int
    client: int
    step: int


class Observer:
    """What both kinds of observers share: the rounds, and memory across interruptions."""

    def on_round_start(self, round_number: int) -> None:
        """A round begins."""

    def on_round_end(self, round_number: int) -> None:
        """All clients of a round are done and averaged."""

    def state_dict(self) -> dict[str, Any]:
        """What must be remembered across an interruption, as JSON values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` returned at the end of the last finished round."""

    def close(self) -> None:
        """The training is over (or was interrupted): release files."""


class ServerObserver(Observer):
    """Looks on from the server.

    ``mergeable`` observers keep sums only: copies of them look on in several worker processes, and after
    each round :meth:`collect` of every copy is given to :meth:`merge` of the original.
    """

    mergeable = False

    def collect(self) -> dict[str, Tensor]:
        """The sums of this round, to be merged."""
        return {}

    def merge(self, sums: dict[str, Tensor]) -> None:
        """Add the sums that a copy has collected."""

    def on_gradient_sent(self, at: Step, *, activation: Tensor, main: Tensor, final: Tensor) -> None:
        """The server is about to send `final` (G_final), made from `main` (G_main), for `activation`."""


class ClientObserver(Observer):
    """Looks on from a client, and may act for it: an observer can be a detector or an attack."""

    def on_batch(self, at: Step, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The client is about to use a batch: return the images and labels to use."""
        return images, labels

    def on_labels(self, at: Step, labels: Tensor) -> Tensor:
        """The client is about to compute its loss: return the labels to use (SplitGuard sends wrong ones)."""
        return labels

    def on_logit_gradient(self, at: Step, gradient: Tensor, *, logits: Tensor, labels: Tensor) -> Tensor:
        """The client is about to send the gradient of its loss at the `logits`: return what to send."""
        return gradient

    def on_gradient_received(self, at: Step, gradient: Tensor, labels: Tensor) -> Tensor | None:
        """A gradient arrived: return what the client shall use, or None for a batch without an update."""
        return gradient

    def on_update(self, at: Step, half: nn.Module) -> None:
        """The client is about to update its half: the gradients of its parameters may be added to."""
