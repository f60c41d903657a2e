"""The four messages of U-shaped split learning: all that client and server ever say to each other.

======================  ================  ==========================================================
message                 direction         content
======================  ================  ==========================================================
:class:`Activation`     client → server   output of the client half, (N, *shape at the cut)
:class:`Logits`         server → client   output of the server half, (N, classes)
:class:`LogitGradient`  client → server   d loss / d logits, (N, classes)
:class:`CutGradient`    server → client   d loss / d activation, with the mark in it, (N, *shape at the cut)
======================  ================  ==========================================================

Images, labels and client parameters have no message, so they cannot be sent. Every tensor here is cut off
from its autograd graph: a message carries values, never a way back into the sender's network.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sigil.errors import TrainingError


@dataclass(frozen=True, slots=True)
class _Message:
    values: Tensor

    def __post_init__(self) -> None:
        if self.values.requires_grad or self.values.grad_fn is not None:
            raise TrainingError(
                f"A {type(self).__name__} message holds a tensor with an autograd graph, which would hand "
                "the sender's network over with it; detach it first."
            )


class Activation(_Message):
    """What a client sends first: the activations of one batch at the cut."""


class Logits(_Message):
    """What the server answers: the outputs of its half, on which the client computes its loss."""


class LogitGradient(_Message):
    """What a client sends second: the gradient of its loss with respect to the logits."""


class CutGradient(_Message):
    """What the server answers: the gradient at the cut, G_final in the paper."""
