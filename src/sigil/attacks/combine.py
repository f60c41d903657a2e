"""Combination: a client asks about one image with many labels, and lets the task cancel in the answers.

The gradient of cross-entropy at the logits is p − e_y, with p the softmax and e_y the label. Its mean over
labels that are distributed as p says is p − p = 0. The server's backward pass is linear in it, so the same
mean over the answers has nothing of the task, and all of the mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from sigil.attacks.halves import check_at_least, check_choice
from sigil.errors import AttackError
from sigil.federation.observers import ClientObserver, Step
from sigil.federation.recording import GradientRecorder
from sigil.seeds import generator

Way = Literal["answers", "labels", "gradients"]


class Combine(ClientObserver):
    """Ask about copies of an image with different labels, and record what the answers have in common.

    Every ``every``-th batch of ``client`` is replaced by ``copies`` (as many as there are ``classes``, if
    not said) of its first images, as many as there is room for. One row per image is written to ``folder``;
    the client does not learn from such a batch. By ``way``,

    - ``answers``: the copies have all labels in turn, and the answers are summed with their softmax as
      weights. What batch norms behind the cut couple between samples does not cancel;
    - ``labels``: the labels are drawn so that their shares are those of the softmax, which the client knows
      before it has to choose them, and the answers are summed as they are. Each batch cancels but for
      rounding, batch norms or not, and no gradient is other than the loss could give;
    - ``gradients``: the copies have all labels, each gradient is sent multiplied by its softmax, and the
      answers are summed. That cancels exactly, and a server that checks the gradients refuses it.

    ``shape`` is that of one activation at the cut. The folder is a recording like any other, and what it
    holds is the mark: give it to :func:`~sigil.attacks.reverse` or :func:`~sigil.attacks.subspace`. The
    strength is the number of images asked about: more with a smaller ``every``, up to ``limit_mb``. Use it as
    a client observer: ``train(settings, folder, client_observers=[Combine(...)])``.
    """

    def __init__(
        self,
        folder: Path,
        shape: Sequence[int],
        *,
        classes: int,
        way: Way = "answers",
        copies: int | None = None,
        client: int = 0,
        every: int = 10,
        limit_mb: int = 512,
        seed: int = 0,
    ) -> None:
        check_at_least("classes", classes, 2)
        check_at_least("every", every, 1)
        check_choice("way of combining", way, ("answers", "labels", "gradients"))
        self.classes, self.way, self.client, self.every, self.seed = classes, way, client, every, seed
        self.copies = classes if copies is None else copies
        check_at_least("copies", self.copies, 2)
        if way != "labels" and self.copies != classes:
            raise AttackError(
                f"There are {self.copies} copies of an image for {classes} classes, but one with each label "
                "is needed unless the way is 'labels'."
            )
        self.recorder = GradientRecorder(folder, tuple(shape), clients=[client], limit_mb=limit_mb)
        self._weights: Tensor | None = None

    def on_batch(self, at: Step, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The batch, or copies of its first images with the labels in turn."""
        if not self._asks(at):
            return images, labels
        room = len(images) // self.copies
        if room == 0:
            raise AttackError(
                f"A batch of {len(images)} images has no room for {self.copies} copies of one; "
                "raise federation.batch_size."
            )
        inside = torch.arange(self.copies, device=labels.device, dtype=labels.dtype) % self.classes
        return images[:room].repeat_interleave(self.copies, 0), inside.repeat(room)

    @torch.no_grad()
    def on_logit_gradient(self, at: Step, gradient: Tensor, *, logits: Tensor, labels: Tensor) -> Tensor:
        """The gradient to send: as it is, of other labels, or weighted."""
        if not self._asks(at):
            return gradient
        softmax = torch.softmax(logits.double(), 1)
        mine = softmax.gather(1, labels[:, None])
        self._weights = mine if self.way == "answers" else torch.ones_like(mine)
        if self.way == "gradients":
            return gradient * mine.to(gradient.dtype)
        if self.way == "labels":
            drawn = self._drawn(at, softmax).to(labels)
            return ((softmax - F.one_hot(drawn, softmax.shape[1])) / len(softmax)).to(gradient.dtype)
        return gradient

    @torch.no_grad()
    def on_gradient_received(self, at: Step, gradient: Tensor, labels: Tensor) -> Tensor | None:
        """Record the weighted sums over the copies of each image; no update."""
        if not self._asks(at) or self._weights is None:
            return gradient
        weights, self._weights = self._weights, None
        sums = (gradient.flatten(1).double() * weights).view(-1, self.copies, gradient[0].numel()).sum(1)
        self.recorder.on_gradient_received(at, sums.float(), labels[:: self.copies])
        return None

    def _drawn(self, at: Step, softmax: Tensor) -> Tensor:
        """Labels for the copies of each image whose shares are the softmax of its first copy.

        Taken at equal distances along the cumulated softmax from a random start: each label comes as often
        as it should, rounded up or down, and on average exactly so.
        """
        stream = generator(self.seed, "combine", at.round, at.client, at.step)
        start = torch.rand(len(softmax) // self.copies, 1, generator=stream, dtype=torch.float64)
        places = (start + torch.arange(self.copies)) / self.copies
        ends = softmax[:: self.copies].cpu().cumsum(1)
        return torch.searchsorted(ends, places).clamp(max=softmax.shape[1] - 1).flatten()

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
