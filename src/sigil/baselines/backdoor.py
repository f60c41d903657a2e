"""Backdoor watermark (BDWM): a small patch in a corner makes the model answer with one fixed class.

The owner knows the patch and the class; a model that answers so to patched images of other classes carries
the mark. To embed it somebody must put the patch into training images and change their labels: in U-SFL both
are with the clients, so this needs their cooperation.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from sigil import arguments
from sigil.baselines.report import BaselineReport
from sigil.data import Dataset, evaluate_batches
from sigil.errors import ConfigError, shown
from sigil.federation import behaviour
from sigil.federation.observers import ClientObserver, Step
from sigil.federation.precision import Precision
from sigil.federation.seeds import generator
from sigil.federation.settings import Settings


class Backdoor(ClientObserver):
    """Patch `share` of each batch and label it `target`.

    The patch is a square of side `size` in the lower right corner, set to the largest value of the batch's
    value range after normalisation, `value`. Defaults: 4×4, 10 % of a batch, class 0 (the paper gives none;
    its 0 % at chance accuracy fits one fixed class).
    """

    def __init__(
        self, *, target: int = 0, size: int = 4, share: float = 0.1, value: float = 2.5, seed: int = 0
    ) -> None:
        if not arguments.is_number(share) or not 0 < share <= 1:
            raise ConfigError(
                f"The share of patched images is {shown(share)}, but it must lie between 0 and 1."
            )
        arguments.whole("The side of the patch", size, least=1)
        arguments.whole("The class of patched images", target)
        arguments.number("The value of the patch", value, "a number")
        self.target, self.size, self.share, self.value, self.seed = target, size, share, value, seed

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """The backdoor of a training, fixed by its seed."""
        return cls(seed=settings.run.seed)

    def patch(self, images: Tensor) -> Tensor:
        """A copy of normalised images (N, C, H, W) with the patch on every one of them."""
        if min(images.shape[-2:]) < self.size:
            raise ConfigError(
                f"A patch of side {self.size} does not fit on images of {tuple(images.shape[-2:])}."
            )
        patched = images.clone()
        patched[..., -self.size :, -self.size :] = self.value
        return patched

    def on_batch(self, at: Step, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        random = generator(self.seed, "backdoor", at.round, at.client, at.step)
        chosen = (torch.rand(len(labels), generator=random) < self.share).to(labels.device)
        images = torch.where(chosen[:, None, None, None], self.patch(images), images)
        return images, torch.where(chosen, self.target, labels)

    @torch.no_grad()
    def verify(
        self, client_half: nn.Module, server_half: nn.Module, dataset: Dataset, *, precision: Precision
    ) -> BaselineReport:
        """Share of patched test images of the other classes that are given the target class."""
        client_half.eval()
        server_half.eval()
        hits = trials = 0
        for images, labels in evaluate_batches(
            dataset.test.images,
            dataset.test.labels,
            batch_size=500,
            mean=dataset.mean,
            std=dataset.std,
            device=precision.device,
            memory_format=precision.layout,
        ):
            others = self.patch(images[labels != self.target])
            if len(others):
                answers = server_half(client_half(others)).argmax(1)
                hits += int((answers == self.target).sum())
                trials += len(others)
        return BaselineReport(wsr=hits / max(1, trials), trials=trials)


behaviour.register("mark=backdoor", Backdoor.from_settings)
