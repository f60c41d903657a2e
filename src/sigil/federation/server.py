"""The server: the second half of the network and the injector, behind two methods.

Each client of a round has a server object of its own, which counts its steps and records what its injector
did. It is given activations and logit gradients and nothing else; there is no method through which an image,
a label or a client parameter could be sent to it (`tests/federation/test_server.py` walks the object to
prove it). Labels follow from logits and logit gradients nevertheless (:mod:`sigil.logit_gradients`): the
server uses that to judge the gradient, and keeps none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sigil.eager import backward
from sigil.errors import ShapeError, TrainingError
from sigil.federation.messages import Activation, CutGradient, LogitGradient, Logits
from sigil.federation.observers import ServerObserver, Step
from sigil.federation.precision import Precision
from sigil.federation.repetition import Repetitions
from sigil.injector import InjectionStatistics, Injector
from sigil.logit_gradients import CROSS_ENTROPY, Loss, check_logit_gradient, normalised


class ServerEnd(Protocol):
    """All that a client can do with a server, in this process or behind a network."""

    def forward(self, message: Activation) -> Logits: ...
    def backward(self, message: LogitGradient) -> CutGradient: ...


@dataclass(eq=False)
class Server:
    """The server's side of U-SFL for one client in one round: `forward` and `backward`, in turns.

    `loss` is what logit gradients must be gradients of; others raise :class:`~sigil.errors.LossError` (none:
    they are not judged). `repetitions` looks for samples that are sent again. `statistics_every` is after how
    many steps the injection is measured again, for :attr:`injections`; with 0 the injector's own setting
    stays.
    """

    half: nn.Module
    optimizer: torch.optim.Optimizer
    _: KW_ONLY
    shape: tuple[int, ...]
    precision: Precision
    injector: Injector | None = None
    observers: Sequence[ServerObserver] = ()
    round: int = 1
    client: int = 0
    statistics_every: int = 0
    loss: Loss | None = None
    repetitions: Repetitions | None = None

    def __post_init__(self) -> None:
        self.steps = 0
        self.injections: list[InjectionStatistics] = []
        self._activation: Tensor | None = None
        self._logits: Tensor | None = None

    def forward(self, message: Activation) -> Logits:
        """Lines 3-4 of the embedding algorithm: finish the forward pass and send the logits."""
        return Logits(self._run(message).detach())

    def backward(self, message: LogitGradient) -> CutGradient:
        """Lines 7-12: go back through the server half, update it with the clean gradient, add the mark."""
        if self._logits is None:
            raise TrainingError("A logit gradient arrived for which no logits were sent.")
        if message.values.shape != self._logits.shape:
            raise ShapeError(
                f"The logit gradient has the shape {tuple(message.values.shape)}, but the logits had "
                f"{tuple(self._logits.shape)}."
            )
        if self.loss is not None:
            check_logit_gradient(self._logits.detach(), message.values, self.loss)
        return self._finish(message.values)

    def _run(self, message: Activation) -> Tensor:
        if tuple(message.values.shape[1:]) != self.shape:
            raise ShapeError(
                f"An activation of the shape {tuple(message.values.shape)} arrived, but the cut has "
                f"{self.shape} per sample; client and server must agree on the cut."
            )
        if self.repetitions is not None:
            self.repetitions.count(message.values)
        # 3  S ← f_s(A). An alias that is a leaf: no copy, and the gradient stops here.
        self._activation = message.values.detach().requires_grad_()
        with self.precision.autocast():
            self._logits = self.half(self._activation)
        assert self._logits is not None
        return self._logits

    def _finish(self, gradient: Tensor) -> CutGradient:
        activation, logits = self._activation, self._logits
        self._activation = self._logits = None
        assert activation is not None
        assert logits is not None
        # One backward pass gives the gradients of lines 7 and 8; the mark is added after both. The pass is
        # linear, so gradients near the ends of the number format go through it at an ordinary size.
        gradient, power = normalised(gradient)
        self.optimizer.zero_grad(set_to_none=True)
        backward(logits, gradient.to(logits.dtype))
        if power != 1.0:
            _scale_back(self.half, power)
        #   7  θ_s ← update(θ_s, G_initial)
        self.optimizer.step()
        #   8  G_main ← backprop(G_initial, A)
        main = activation.grad
        assert main is not None
        activation = activation.detach()
        if power != 1.0 and (self.injector is None or self.injector.cap):
            main, power = main / power, 1.0  # the cap is not homogeneous: it holds for the true size
        final = self._marked(activation, main)
        if power != 1.0:
            main, final = main / power, final / power
        self.steps += 1
        at = Step(self.round, self.client, self.steps)
        for observer in self.observers:
            observer.on_gradient_sent(at, activation=activation, main=main, final=final)
        #  12  send G_final
        return CutGradient(final)

    def _marked(self, activation: Tensor, main: Tensor) -> Tensor:
        """Lines 9-11, which :class:`Injector` computes in closed form.

        9   G_wm ← ∂ L_wm(A, M, b) / ∂ A
        10  G_wm' ← min(1, λ ‖G_main‖ / (‖G_wm‖ + ε)) · G_wm
        11  G_final ← G_main + G_wm'
        """
        if self.injector is None:
            return main
        if not self.statistics_every:
            return self.injector(activation, main)
        self.injector.statistics = measured = self.steps % self.statistics_every == 0
        final = self.injector(activation, main)
        if measured and self.injector.last is not None:
            self.injections.append(self.injector.last)
        return final


class LabelServer(Server):
    """The server of plain split (federated) learning: labels come with the activation, no logits go back."""

    def forward_with_labels(self, message: Activation, labels: Tensor) -> tuple[CutGradient, Tensor]:
        """Forward, loss and backward in one turn; also returns the loss for the record."""
        logits = self._run(message)
        leaf = logits.detach().float().requires_grad_()
        agreed = self.loss or CROSS_ENTROPY
        loss = F.cross_entropy(leaf, labels, label_smoothing=agreed.smoothing, reduction=agreed.reduction)
        (gradient,) = torch.autograd.grad(loss, leaf)
        return self._finish(gradient.to(logits.dtype)), loss.detach()


def _scale_back(half: nn.Module, power: float) -> None:
    for parameter in half.parameters():
        if parameter.grad is not None:
            parameter.grad /= power
