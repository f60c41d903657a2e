"""Combination: a client asks about one image with every label, and lets the task cancel in the answers.

The gradient of cross-entropy at the logits is p − e_y, with p the softmax and e_y the label. Weighted by p_y
and summed over all labels y it is p − p = 0. The server's backward pass is linear in it, so the same sum over
the answers has nothing of the task but what batch norm couples between samples, and all of the mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sigil.attacks.checks import check_at_least
from sigil.errors import AttackError
from sigil.federation.observers import ClientObserver, Step
from sigil.federation.recording import GradientRecorder


class Combine(ClientObserver):
    """Ask about copies of an image with all labels, and record what the weighted answers have in common.

    Every ``every``-th batch of ``client`` is replaced: its first images, as many as there is room for, each
    with all ``classes`` labels. The answers of the copies are summed with the softmax of the logits as
    weights, one row per image, and written to ``folder``; the client does not learn from such a batch.
    ``shape`` is that of one activation at the cut. The folder is a recording like any other, and what it
    holds is the mark: give it to :func:`~sigil.attacks.reverse` or :func:`~sigil.attacks.subspace`.

    The strength is the number of images asked about: more with a smaller ``every``, up to ``limit_mb``. Use
    it as a client observer: ``train(settings, folder, client_observers=[Combine(...)])``.
    """

    def __init__(
        self,
        folder: Path,
        shape: Sequence[int],
        *,
        classes: int,
        client: int = 0,
        every: int = 10,
        limit_mb: int = 512,
    ) -> None:
        check_at_least("classes", classes, 2)
        check_at_least("every", every, 1)
        self.classes, self.client, self.every = classes, client, every
        self.recorder = GradientRecorder(folder, shape, clients=[client], limit_mb=limit_mb)
        self._softmax: Tensor | None = None

    def on_batch(self, at: Step, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The batch, or copies of its first images with all labels."""
        if not self._asks(at):
            return images, labels
        room = len(images) // self.classes
        if room == 0:
            raise AttackError(
                f"A batch of {len(images)} images has no room for one with all {self.classes} labels; "
                "raise federation.batch_size."
            )
        copies = images[:room].repeat_interleave(self.classes, 0)
        every = torch.arange(self.classes, device=labels.device, dtype=labels.dtype).repeat(room)
        return copies, every

    @torch.no_grad()
    def on_logit_gradient(self, at: Step, gradient: Tensor, *, logits: Tensor, labels: Tensor) -> Tensor:
        """The gradient as it is; the softmax is remembered."""
        if self._asks(at):
            self._softmax = torch.softmax(logits.double(), 1).gather(1, labels[:, None])
        return gradient

    @torch.no_grad()
    def on_gradient_received(self, at: Step, gradient: Tensor, labels: Tensor) -> Tensor | None:
        """Record the weighted sums over the copies of each image; no update."""
        if not self._asks(at) or self._softmax is None:
            return gradient
        weights, self._softmax = self._softmax, None
        sums = (gradient.flatten(1).double() * weights).view(-1, self.classes, gradient[0].numel()).sum(1)
        self.recorder.on_gradient_received(at, sums.float(), labels[:: self.classes])
        return None

    def on_round_end(self, round_number: int) -> None:
        self.recorder.on_round_end(round_number)

    def state_dict(self) -> dict[str, Any]:
        return self.recorder.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.recorder.load_state_dict(state)

    def close(self) -> None:
        self.recorder.close()

    def _asks(self, at: Step) -> bool:
        return at.client == self.client and at.step % self.every == 0
