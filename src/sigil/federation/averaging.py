"""Averaging of halves, weighted by sample count, one client at a time.

Only a running sum is kept, so the memory does not grow with the number of clients.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sigil.errors import TrainingError

State = dict[str, Tensor]


class WeightedAverage:
    """Running weighted mean of state dicts: parameters and batch-norm statistics alike.

    Sums are kept in float64 on the CPU (not every accelerator has float64), so that the result does not
    depend on how small one client's share is. Whole numbers (batch counters) are averaged and rounded.

    >>> average = WeightedAverage()
    >>> average.add({"w": torch.tensor([0.0])}, weight=1)
    >>> average.add({"w": torch.tensor([4.0])}, weight=3)
    >>> average.result()["w"]
    tensor([3.])
    """

    def __init__(self) -> None:
        self._sums: State = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self.weight = 0.0

    def add(self, state: Mapping[str, Tensor], *, weight: float) -> None:
        """Take one client's state into the mean."""
        if self._sums and state.keys() != self._sums.keys():
            raise TrainingError(
                "Two halves with different tensors cannot be averaged; all clients must hold the same half."
            )
        for name, value in state.items():
            wide = value.detach().to("cpu", torch.float64)
            if name in self._sums:
                self._sums[name].add_(wide, alpha=weight)
            else:
                self._sums[name] = wide * weight
                self._dtypes[name] = value.dtype
        self.weight += weight

    def merge(self, other: WeightedAverage) -> None:
        """Take over everything that another running mean has seen."""
        if not other._sums:
            return
        if not self._sums:
            self._dtypes = dict(other._dtypes)
            self._sums = {name: value.clone() for name, value in other._sums.items()}
        else:
            for name, value in other._sums.items():
                self._sums[name].add_(value)
        self.weight += other.weight

    def result(self) -> State:
        """The mean so far, in the dtypes that came in."""
        if self.weight <= 0:
            raise TrainingError("There is nothing to average: no client finished the round.")
        mean = {}
        for name, total in self._sums.items():
            dtype = self._dtypes[name]
            value = total / self.weight
            mean[name] = (value if dtype.is_floating_point else value.round()).to(dtype)
        return mean
