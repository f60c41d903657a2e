"""One batch of U-SFL training with Sigil: the paper's embedding algorithm (Algorithm 1), line by line."""

from __future__ import annotations

from torch import Tensor

from sigil.federation.client import Client
from sigil.federation.observers import Step
from sigil.federation.server import LabelServer, ServerEnd


def step(client: Client, server: ServerEnd, images: Tensor, labels: Tensor, *, at: Step) -> None:
    """Train both halves on one batch; images and labels stay with the client."""
    # Client i executes:
    #   1  A ← f_c(X)
    #   2  send A
    activation = client.forward(images)

    # Server executes:
    #   3  S ← f_s(A)
    #   4  send S
    logits = server.forward(activation)

    # Client i executes:
    #   5  G_initial ← ∂ L_main(S, y) / ∂ S
    #   6  send G_initial
    initial = client.loss_gradient(logits, labels, at=at)

    # Server executes:
    #   7  θ_s ← update(θ_s, G_initial)                          clean: the mark is for the client only
    #   8  G_main ← backprop(G_initial, A)
    #   9  G_wm ← ∂ L_wm(A, M, b) / ∂ A                           sigil.injector: in closed form
    #  10  G_wm' ← min(1, λ ‖G_main‖ / (‖G_wm‖ + ε)) · G_wm
    #  11  G_final ← G_main + G_wm'
    #  12  send G_final
    final = server.backward(initial)

    # Client i executes:
    #  13  θ_c ← update(θ_c, G_final)
    client.backward(final, at=at)


def step_with_labels(
    client: Client, server: LabelServer, images: Tensor, labels: Tensor, *, at: Step
) -> None:
    """The same for plain SFL and SL, where the server holds the labels: one message each way."""
    activation = client.forward(images)
    final, loss = server.forward_with_labels(activation, labels)
    client.account(labels, loss)
    client.backward(final, at=at)
