"""Times that can be compared: variants in turns within one run, and the server's step as the unit of cost."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from sigil import eager
from sigil.federation.messages import Activation, LogitGradient
from sigil.federation.precision import Precision
from sigil.federation.server import Server


def interleaved(
    variants: Mapping[str, Callable[[], object]],
    repeats: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds of each variant, run in turns; the first turn warms up and is not counted.

    A busy machine disturbs all variants alike, so their ratios mean more than their seconds. With
    `time.process_time` as the clock they are seconds of this process alone.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(repeats + 1):
        for name, run in variants.items():
            began = clock()
            run()
            if turn:
                times[name].append(clock() - began)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


class ServerStep:
    """The server's part of one U-SFL step without a mark: forward, backward and update of its half.

    Every call goes through the same `activation` (N, *shape) and returns G_main of the same shape.
    """

    def __init__(self, half: nn.Module, activation: Tensor, *, precision: Precision) -> None:
        self.server = Server(
            half,
            eager.SGD(half.parameters(), lr=1e-4, momentum=0.9, fused=True),
            shape=tuple(activation.shape[1:]),
            precision=precision,
        )
        self.activation = Activation(activation)
        self.gradient: Tensor | None = None

    def __call__(self) -> Tensor:
        logits = self.server.forward(self.activation).values
        if self.gradient is None:
            # That of a mean loss has this size; which loss it is does not change the arithmetic.
            random = torch.Generator().manual_seed(0)
            self.gradient = torch.randn(logits.shape, generator=random).to(logits) / len(logits)
        return self.server.backward(LogitGradient(self.gradient)).values
