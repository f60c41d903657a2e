"""The two watermarks that the paper compares with: what a server with more power could do.

Both are embedded in the same federation, by an observer of the clients, and verified by the same verb:

>>> from sigil.baselines import Backdoor, ParameterMark

``embed`` them with ``sigil.federation.train(..., client_observers=[mark])``, then ``mark.verify(...)``. That
they must be observers of a *client* is the point: see docs/attacks.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from sigil.data import Dataset, evaluate_batches
from sigil.errors import ConfigError
from sigil.federation.observers import ClientObserver, Step
from sigil.federation.precision import Precision
from sigil.federation.settings import Settings
from sigil.seeds import generator

__all__ = ["Backdoor", "BaselineReport", "ParameterMark"]

PAPER_BITS = 50


@dataclass(frozen=True)
class BaselineReport:
    """The success rate of a mark, 0 to 1, and of how many trials (images or bits) it is."""

    wsr: float
    trials: int


class Backdoor(ClientObserver):
    """Backdoor watermark (BDWM): a small patch in a corner makes the model answer with one fixed class.

    The owner knows the patch and the class; a model that answers so to patched images of other classes
    carries the mark. To embed it somebody must put the patch into training images and change their labels: in
    U-SFL both are with the clients, so this needs their cooperation. `share` of each batch is patched and
    labelled `target`.

    The patch is a square of side `size` in the lower right corner, set to the largest value of the batch's
    value range after normalisation, `value`. Defaults: 4×4, 10 % of a batch, class 0 (the paper gives none;
    its 0 % at chance accuracy fits one fixed class).
    """

    def __init__(
        self, *, target: int = 0, size: int = 4, share: float = 0.1, value: float = 2.5, seed: int = 0
    ) -> None:
        if not 0 < share <= 1:
            raise ConfigError(f"The share of patched images is {share}, but it must lie between 0 and 1.")
        if size < 1 or target < 0:
            raise ConfigError(
                f"The patch has the side {size} and the class {target}, but needs 1 and 0 or more."
            )
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
        for images, labels in evaluate_batches(dataset.test, dataset, batch_size=500, **precision.place):
            others = self.patch(images[labels != self.target])
            if len(others):
                answers = server_half(client_half(others)).argmax(1)
                hits += int((answers == self.target).sum())
                trials += len(others)
        return BaselineReport(wsr=hits / max(1, trials), trials=trials)


class ParameterMark(ClientObserver):
    """Parameter watermark (PWM): bits in the weights of the client half's last convolution.

    With w the kernel averaged over its output channels and flattened, X a secret k×|w| matrix with N(0,1)
    entries and b the secret bits, training adds the gradient of 0.01 · Σ_j BCE(sigmoid(X w)_j, b_j) to that
    kernel's own. Bit j reads 1 where (X w)_j ≥ 0. To embed it somebody must add to the gradient of a client
    parameter: in U-SFL the server has none of them, so this needs the clients' cooperation. 50 bits fit the
    paper's 98.0 % = 49 of 50.
    """

    def __init__(self, *, bits: int = PAPER_BITS, weight: float = 0.01, seed: int = 0) -> None:
        if bits < 1:
            raise ConfigError(f"The number of bits is {bits}, but it must be at least 1.")
        if not 0 <= weight < float("inf"):
            raise ConfigError(f"The weight is {weight}, but it must be a number of at least 0.")
        self.bits, self.weight, self.seed = bits, weight, seed

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """The parameter mark of a training, with as many bits as its key would have, else the paper's."""
        return cls(bits=settings.watermark.bits or PAPER_BITS, seed=settings.run.seed)

    def on_update(self, at: Step, half: nn.Module) -> None:
        kernel = _last_kernel(half)
        if kernel.grad is None:
            raise ConfigError("The last convolution has no gradient: it is frozen and cannot be marked.")
        matrix, target = self._secret(kernel)
        error = torch.sigmoid(matrix @ _mean(kernel)) - target
        # d mean / d kernel spreads the gradient evenly over the output channels.
        kernel.grad += self.weight * (error @ matrix).view(kernel.shape[1:]) / len(kernel)

    @torch.no_grad()
    def verify(self, client_half: nn.Module) -> BaselineReport:
        """Share of the bits that are read rightly from the weights."""
        kernel = _last_kernel(client_half)
        matrix, target = self._secret(kernel)
        read = (matrix @ _mean(kernel) >= 0).float()
        return BaselineReport(wsr=float((read == target).float().mean()), trials=self.bits)

    def _secret(self, kernel: Tensor) -> tuple[Tensor, Tensor]:
        random = torch.Generator().manual_seed(self.seed)
        matrix = torch.randn(self.bits, kernel[0].numel(), generator=random)
        target = torch.randint(2, (self.bits,), generator=random).float()
        return matrix.to(kernel), target.to(kernel)


def _mean(kernel: Tensor) -> Tensor:
    return kernel.detach().mean(0).flatten()


def _last_kernel(half: nn.Module) -> Tensor:
    """Weight of the last convolution that mixes channels."""
    kernels = [layer.weight for layer in half.modules() if isinstance(layer, nn.Conv2d) and layer.groups == 1]
    if not kernels:
        raise ConfigError("A parameter mark needs a convolution in the client half; cut the model later.")
    return kernels[-1]
