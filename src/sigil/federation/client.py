"""A client: images, labels, the first half of the network. Nobody else sees any of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sigil.eager import backward
from sigil.errors import TrainingError
from sigil.federation.messages import Activation, CutGradient, LogitGradient, Logits
from sigil.federation.observers import ClientObserver, Step
from sigil.federation.precision import Precision
from sigil.logit_gradients import CROSS_ENTROPY, Loss


@dataclass(eq=False)
class Client:
    """One participant of a round, with its half of the network and an optimizer that starts fresh.

    The half may be shared by all clients of a simulation, one after another: what a client learned is read
    off with ``half.state_dict()`` when its round is over. `agreed` is the loss that server and clients agreed
    on; this client computes cross-entropy with its label smoothing and reduction.
    """

    index: int
    half: nn.Module
    optimizer: torch.optim.Optimizer
    _: KW_ONLY
    precision: Precision
    observers: Sequence[ClientObserver] = ()
    agreed: Loss = CROSS_ENTROPY

    def __post_init__(self) -> None:
        self.steps = 0
        self.loss = torch.zeros((), device=self.precision.device)
        self._graph: Tensor | None = None
        self._labels: Tensor | None = None

    def forward(self, images: Tensor) -> Activation:
        """Lines 1-2 of the embedding algorithm: run the client half and send the activation."""
        with self.precision.autocast():
            self._graph = self.half(images)
        return Activation(self._graph.detach())

    def loss_gradient(self, logits: Logits, labels: Tensor, *, at: Step) -> LogitGradient:
        """Lines 5-6: compute the loss on the own labels and send its gradient."""
        for observer in self.observers:
            labels = observer.on_labels(at, labels)
        outputs = logits.values.float().requires_grad_()
        loss = F.cross_entropy(
            outputs, labels, label_smoothing=self.agreed.smoothing, reduction=self.agreed.reduction
        )
        (gradient,) = torch.autograd.grad(loss, outputs)
        for observer in self.observers:
            gradient = observer.on_logit_gradient(at, gradient, logits=outputs.detach(), labels=labels)
        self.account(labels, loss.detach())
        return LogitGradient(gradient)

    def account(self, labels: Tensor, loss: Tensor) -> None:
        """Remember the labels of the batch under way and add its loss to the record."""
        self._labels = labels
        self.loss += loss
        self.steps += 1

    def backward(self, gradient: CutGradient, *, at: Step) -> None:
        """Line 13: go back through the client half and update it."""
        if self._graph is None or self._labels is None:
            raise TrainingError("A gradient arrived for which no activation was sent.")
        received: Tensor | None = gradient.values
        for observer in self.observers:
            if received is not None:
                received = observer.on_gradient_received(at, received, self._labels)
        graph, self._graph, self._labels = self._graph, None, None
        if received is None:
            return
        self.optimizer.zero_grad(set_to_none=True)
        backward(graph, received.to(graph.dtype))
        for observer in self.observers:
            observer.on_update(at, self.half)
        self.optimizer.step()
