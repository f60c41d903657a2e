"""Averaging of halves: the mean weighted by sample count, and averages that a few clients cannot steer.

The weighted mean keeps only a running sum, so its memory does not grow with the number of clients. The others
need every client's number at each place, and keep all halves of a round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, Protocol, Self

import torch
from torch import Tensor

from sigil.errors import TrainingError

State = dict[str, Tensor]
AverageKind = Literal["mean", "trimmed-mean", "median"]

_DIFFERENT = "Two halves with different tensors cannot be averaged; all clients must hold the same half."
_NOTHING = "There is nothing to average: no client finished the round."


class Average(Protocol):
    """Takes the states of clients one by one and says what they come to together."""

    def add(self, state: Mapping[str, Tensor], *, weight: float) -> None:
        """Take one client's state in."""

    def merge(self, other: Self) -> None:
        """Take over everything that another average of the same kind has seen."""

    def result(self) -> State:
        """The average so far, in the dtypes that came in."""


def make_average(kind: AverageKind = "mean", *, trim: float = 0.0) -> Average:
    """An average of this kind that has seen nothing yet; `trim` is for the trimmed mean."""
    if kind == "mean":
        return WeightedAverage()
    return OrderedAverage(trim if kind == "trimmed-mean" else 0.5)


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
        if self._sums and state.keys() != self._sums.keys():
            raise TrainingError(_DIFFERENT)
        for name, value in state.items():
            wide = value.detach().to("cpu", torch.float64)
            if name in self._sums:
                self._sums[name].add_(wide, alpha=weight)
            else:
                self._sums[name] = wide * weight
                self._dtypes[name] = value.dtype
        self.weight += weight

    def merge(self, other: Self) -> None:
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
        if self.weight <= 0:
            raise TrainingError(_NOTHING)
        return {
            name: _in_dtype(total / self.weight, self._dtypes[name]) for name, total in self._sums.items()
        }


class OrderedAverage:
    """Coordinate-wise trimmed mean: at each place the largest and smallest numbers are left out.

    A share `trim` of the clients is left out at each end, rounded down but at least one client as soon as
    there are three; 0.5 is the coordinate-wise median. All clients count alike, whatever they hold: a weight
    would be one more thing to steer by. The order in which clients are added changes no bit of the result.

    >>> average = OrderedAverage(0.25)
    >>> for value in (1.0, 2.0, 3.0, 1e6):
    ...     average.add({"w": torch.tensor([value])}, weight=1)
    >>> average.result()["w"]
    tensor([2.5000])
    """

    def __init__(self, trim: float) -> None:
        self.trim = trim
        self._states: list[State] = []

    def add(self, state: Mapping[str, Tensor], *, weight: float) -> None:
        if self._states and state.keys() != self._states[0].keys():
            raise TrainingError(_DIFFERENT)
        # A copy: the live half that it is a view of trains the next client.
        self._states.append({name: value.detach().to("cpu", copy=True) for name, value in state.items()})

    def merge(self, other: Self) -> None:
        self._states += other._states

    def result(self) -> State:
        if not self._states:
            raise TrainingError(_NOTHING)
        count = len(self._states)
        ends = min(max(math.floor(self.trim * count), 1), (count - 1) // 2)
        averages = {}
        for name, value in self._states[0].items():
            ordered = torch.stack([state[name] for state in self._states]).sort(dim=0).values
            averages[name] = _in_dtype(ordered[ends : count - ends].double().mean(dim=0), value.dtype)
        return averages


def _in_dtype(value: Tensor, dtype: torch.dtype) -> Tensor:
    return (value if dtype.is_floating_point else value.round()).to(dtype)
