"""The server: the second half of the network and the injector, behind two methods.

It is given activations and logit gradients and nothing else; there is no method through which an image, a
label or a client parameter could reach it (`tests/federation/test_server.py` walks the object to prove it).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sigil.errors import ShapeError, TrainingError
from sigil.federation.messages import Activation, CutGradient, LogitGradient, Logits
from sigil.federation.observers import ServerObserver, Step
from sigil.federation.precision import Precision
from sigil.injector import Injector


class ServerEnd(Protocol):
    """All that a client can do with a server, in this process or behind a network."""

    def forward(self, message: Activation) -> Logits: ...
    def backward(self, message: LogitGradient, *, at: Step) -> CutGradient: ...


class Server:
    """The server's side of U-SFL: `forward` and `backward`, in turns."""

    def __init__(
        self,
        half: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        shape: tuple[int, ...],
        precision: Precision,
        injector: Injector | None = None,
        observers: Sequence[ServerObserver] = (),
    ) -> None:
        self.half = half
        self.optimizer = optimizer
        self.shape = shape
        self.precision = precision
        self.injector = injector
        self.observers = observers
        self._activation: Tensor | None = None
        self._logits: Tensor | None = None

    def forward(self, message: Activation) -> Logits:
        """Lines 3-4 of the embedding algorithm: finish the forward pass and send the logits."""
        return Logits(self._run(message).detach())

    def backward(self, message: LogitGradient, *, at: Step) -> CutGradient:
        """Lines 7-12: go back through the server half, update it with the clean gradient, add the mark."""
        if self._logits is None:
            raise TrainingError("A logit gradient arrived for which no logits were sent.")
        if message.values.shape != self._logits.shape:
            raise ShapeError(
                f"The logit gradient has the shape {tuple(message.values.shape)}, but the logits had "
                f"{tuple(self._logits.shape)}."
            )
        return self._finish(message.values.to(self._logits.dtype), at)

    def _run(self, message: Activation) -> Tensor:
        if tuple(message.values.shape[1:]) != self.shape:
            raise ShapeError(
                f"An activation of the shape {tuple(message.values.shape)} arrived, but the cut has "
                f"{self.shape} a sample; client and server must agree on the cut."
            )
        # An alias that is a leaf: no copy, and the gradient stops here.
        self._activation = message.values.detach().requires_grad_()
        with self.precision.autocast():
            self._logits = self.half(self._activation)
        assert self._logits is not None
        return self._logits

    def _finish(self, gradient: Tensor, at: Step) -> CutGradient:
        activation, logits = self._activation, self._logits
        self._activation = self._logits = None
        assert activation is not None
        assert logits is not None
        self.optimizer.zero_grad(set_to_none=True)
        logits.backward(gradient)
        self.optimizer.step()
        main = activation.grad
        assert main is not None
        activation = activation.detach()
        final = main if self.injector is None else self.injector(activation, main)
        for observer in self.observers:
            observer.on_gradient_sent(at, activation=activation, main=main, final=final)
        return CutGradient(final)


class LabelServer(Server):
    """The server of plain split (federated) learning: labels come with the activation, no logits go back."""

    def forward_with_labels(
        self, message: Activation, labels: Tensor, *, at: Step
    ) -> tuple[CutGradient, Tensor]:
        """Forward, loss and backward in one turn; also returns the loss for the record."""
        logits = self._run(message)
        leaf = logits.detach().float().requires_grad_()
        loss = F.cross_entropy(leaf, labels)
        (gradient,) = torch.autograd.grad(loss, leaf)
        return self._finish(gradient.to(logits.dtype), at), loss.detach()
