"""Starving: a client scales its logit gradients so that the mark vanishes beside them, or before them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sigil.attacks.halves import check_positive
from sigil.federation.observers import ClientObserver, Step


class Starve(ClientObserver):
    """Multiply the logit gradients that are sent by a factor, and divide the answers by it.

    The backward pass of the server is linear, so that the task's part of the answer is what it would have
    been. The mark's part is not: it is capped at G_wm itself (the paper's s ≤ 1), so that beside a task
    gradient of 10,000 times the size it all but disappears; and a server whose norms underflow finds no
    gradient to take a share of when the factor is 1e-26. ``factor`` is the strength.

    The server's own half is trained with the scaled gradients too, which an optimizer that divides by their
    size (Adam) does not notice, and plain SGD does. ``clients`` are those that do it; none given: all. Use
    it as a client observer: ``train(settings, folder, client_observers=[Starve(1e4)])``.

    A server that checks what the agreed loss can produce (:mod:`sigil.logit_gradients`) refuses every factor
    that could matter, and the answer of one without the cap scales with the gradient.
    """

    def __init__(self, factor: float, *, clients: Sequence[int] | None = None) -> None:
        check_positive("factor", factor)
        self.factor = float(factor)
        self.clients = None if clients is None else frozenset(map(int, clients))

    @torch.no_grad()
    def on_logit_gradient(self, at: Step, gradient: Tensor, *, logits: Tensor, labels: Tensor) -> Tensor:
        """The gradient times the factor."""
        return gradient * self.factor if self._acts(at) else gradient

    @torch.no_grad()
    def on_gradient_received(self, at: Step, gradient: Tensor, labels: Tensor) -> Tensor:
        """The answer divided by the factor, in its own dtype and layout; the answer itself is untouched."""
        if not self._acts(at):
            return gradient
        return torch.empty_like(gradient).copy_(gradient.double() / self.factor)

    def _acts(self, at: Step) -> bool:
        return self.clients is None or at.client in self.clients
