"""Parameter watermark (PWM): bits in the weights of the client half's last convolution.

With w the kernel averaged over its output channels and flattened, X a secret k×|w| matrix with N(0,1)
entries and b the secret bits, training adds the gradient of 0.01 · Σ_j BCE(sigmoid(X w)_j, b_j) to that
kernel's own. Bit j reads 1 where (X w)_j ≥ 0. To embed it somebody must add to the gradient of a client
parameter: in U-SFL the server has none of them, so this needs the clients' cooperation.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from sigil import arguments
from sigil.baselines.report import BaselineReport
from sigil.errors import ConfigError, shown
from sigil.federation import behaviour
from sigil.federation.observers import ClientObserver, Step
from sigil.federation.settings import Settings

PAPER_BITS = 50


class ParameterMark(ClientObserver):
    """Pull the projected mean kernel towards the bits; 50 bits fit the paper's 98.0 % = 49 of 50."""

    def __init__(self, *, bits: int = PAPER_BITS, weight: float = 0.01, seed: int = 0) -> None:
        arguments.whole("The number of bits", bits, least=1)
        if not arguments.is_number(weight) or not 0 <= weight < float("inf"):
            raise ConfigError(f"The weight is {shown(weight)}, but it must be a number of at least 0.")
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
    arguments.module("client half", half)
    kernels = [layer.weight for layer in half.modules() if isinstance(layer, nn.Conv2d) and layer.groups == 1]
    if not kernels:
        raise ConfigError("A parameter mark needs a convolution in the client half; cut the model later.")
    return kernels[-1]


behaviour.register("mark=parameter", ParameterMark.from_settings)
