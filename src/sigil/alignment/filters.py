"""Filters of a layer in any order, without regard to scale, in little memory.

Each channel of a copy may have any scale: a layer that writes it then has other rows, and one that reads it
other columns, by factors from 2^-500 to 2^500 if somebody likes. So what is compared first has its rows and
columns divided by their norms in turns, as Sinkhorn and Knopp do with matrices: the outcome is the same for
all scales. Exponents are taken off before anything is squared. What is not finite is zero.

Both sides may be as large as the model. They are looked at where they lie, block by block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import torch
from torch import Tensor

from sigil.alignment.correlations import Floats, Order, turned

TURNS: Final = 30
"""How often rows and columns are divided by their norms at most."""
SETTLED: Final = 1e-7
"""The share by which the norms of rows may change in the last turn."""
BLOCK: Final = 1 << 21
"""Numbers of a layer that are held in double precision at a time."""


@dataclass(frozen=True, eq=False)
class Filters:
    """The weights (outputs, inputs, height, width) of a layer, rows and columns in some order, times factors.

    Row i is that of output ``row_order[i]`` times ``row_factors[i]``, and columns are alike. ``original`` is
    the shape of the layer's own tensor.
    """

    weight: Tensor
    row_order: Order
    column_order: Order
    row_factors: Floats
    column_factors: Floats
    original: tuple[int, ...]

    @classmethod
    def of(cls, weight: Tensor, channels: int | None = None) -> Filters:
        """The filters of a layer as they are; a linear one may read several numbers of each channel."""
        values = weight.detach().cpu()
        inputs = values.shape[1] if channels is None or values.ndim > 2 else channels
        taken = values if values.ndim == 4 else values.reshape(len(values), inputs, 1, -1)
        rows, columns = taken.shape[:2]
        shape = tuple(values.shape)
        return cls(taken, np.arange(rows), np.arange(columns), np.ones(rows), np.ones(columns), shape)

    def __len__(self) -> int:
        return len(self.row_order)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Outputs, inputs, height and width."""
        return len(self.row_order), len(self.column_order), self.weight.shape[2], self.weight.shape[3]

    @property
    def numbers(self) -> int:
        """How many numbers one filter has."""
        _, inputs, height, width = self.shape
        return inputs * height * width

    def rows(self, order: Order, factors: Floats | None = None) -> Filters:
        """These filters in another order, zeros for -1, times factors."""
        taken, scaled = _reordered(self.row_order, self.row_factors, order, factors)
        return replace(self, row_order=taken, row_factors=scaled)

    def columns(self, order: Order, factors: Floats | None = None) -> Filters:
        """The same for their inputs."""
        taken, scaled = _reordered(self.column_order, self.column_factors, order, factors)
        return replace(self, column_order=taken, column_factors=scaled)

    def summed(self, first: Order) -> Filters:
        """With each column replaced by the sum of all that have the same number in ``first``."""
        weight = torch.zeros(self.shape, dtype=torch.float64)
        for part in self._parts():
            weight.index_add_(1, torch.from_numpy(first[part]), torch.from_numpy(self.block(part)))
        return replace(Filters.of(weight), original=self.original).columns(first)

    def turned(self, turn: int) -> Filters:
        """With their kernels turned, if these are square."""
        height, width = self.weight.shape[2:]
        return replace(self, weight=turned(self.weight, turn)) if turn and height == width > 1 else self

    def swapped(self) -> Filters:
        """With inputs as rows and outputs as columns."""
        return Filters(
            self.weight.transpose(0, 1),
            self.column_order,
            self.row_order,
            self.column_factors,
            self.row_factors,
            self.original,
        )

    @cached_property
    def evened(self) -> Filters:
        """With rows and columns of the same norm, and rows of length one; kept, as ours are asked often."""
        return _unit(fitted(self))

    def tensor(self) -> Tensor:
        """All of them, as numbers of half the precision that they are computed in."""
        outputs, inputs, *kernel = self.shape
        found = torch.empty(outputs, inputs, *kernel)
        for part in self._parts():
            found[:, part] = torch.from_numpy(self.block(part))
        return found

    def beside(self, other: Filters) -> Iterator[tuple[Floats, Floats]]:
        """Blocks of the same columns of both."""
        for part in self._parts():
            yield self.block(part), other.block(part)

    def block(self, part: slice) -> Floats:
        """Some columns in double precision."""
        columns, factors = self.column_order[part], self.column_factors[part]
        taken = self.weight[:, torch.from_numpy(columns)][torch.from_numpy(self.row_order)].double().numpy()
        found: Floats = np.where(np.isfinite(taken), taken, 0.0)
        found *= self.row_factors[:, None, None, None]
        found *= factors[:, None, None]
        return found

    def _parts(self) -> Iterator[slice]:
        outputs, inputs, height, width = self.shape
        step = max(1, BLOCK // max(1, outputs * height * width))
        return (slice(start, min(start + step, inputs)) for start in range(0, inputs, step))


def cosines(ours: Filters, theirs: Filters) -> Floats:
    """Cosines of all our filters with all of theirs, whatever the scales of rows and columns."""
    ours, theirs = ours.evened, theirs.evened
    found = np.zeros((len(ours), len(theirs)))
    for mine, others in ours.beside(theirs):
        found += mine.reshape(len(mine), -1) @ others.reshape(len(others), -1).T
    return found


def fitted(filters: Filters, like: Filters | None = None) -> Filters:
    """Filters whose rows and columns have the norms of those of ``like``, or all the same if there is none.

    Entries where ``like`` is zero decide nothing.
    """
    rows, columns = _exponents(filters)
    even = filters.rows(np.arange(len(filters)), rows).columns(np.arange(len(columns)), columns)
    squares = np.zeros((len(rows), len(columns)))
    wanted = np.ones_like(squares)
    for part in even._parts():
        values = even.block(part)
        if like is not None:
            others = like.block(part)
            values[others == 0] = 0.0
            wanted[:, part] = (others**2).sum((2, 3))
        squares[:, part] = (values**2).sum((2, 3))
    over, under = wanted.sum(1), wanted.sum(0)
    row_factors, column_factors = np.ones(len(rows)), np.ones(len(columns))
    for _ in range(TURNS):
        before = row_factors
        row_factors = _divided(over, squares @ column_factors)
        column_factors = _divided(under, row_factors @ squares)
        if (np.abs(row_factors - before) <= SETTLED * before).all():
            break
    return even.rows(np.arange(len(rows)), np.sqrt(row_factors)).columns(
        np.arange(len(columns)), np.sqrt(column_factors)
    )


def _unit(filters: Filters) -> Filters:
    """Filters of length one."""
    squares = np.zeros(len(filters))
    for part in filters._parts():
        squares += (filters.block(part) ** 2).sum((1, 2, 3))
    return filters.rows(np.arange(len(filters)), np.sqrt(_divided(np.ones(len(squares)), squares)))


def _exponents(filters: Filters) -> tuple[Floats, Floats]:
    """Powers of two for rows and columns, after which the largest numbers are about one."""
    sizes = np.zeros(filters.shape[:2])
    for part in filters._parts():
        sizes[:, part] = np.abs(filters.block(part)).max((2, 3))
    exponents = np.where(sizes > 0, np.frexp(sizes)[1], -(1 << 20))
    rows = np.maximum(exponents.max(1, initial=-(1 << 20)), -1100)
    columns = np.maximum((exponents - rows[:, None]).max(0, initial=-(1 << 20)), -1100)
    return np.ldexp(1.0, np.minimum(-rows, 1000)), np.ldexp(1.0, np.minimum(-columns, 1000))


def _divided(wanted: Floats, found: Floats) -> Floats:
    """``wanted`` / ``found``, zero where there is nothing."""
    return np.divide(wanted, found, out=np.zeros_like(wanted), where=found > 0)


def _reordered(taken: Order, scaled: Floats, order: Order, factors: Floats | None) -> tuple[Order, Floats]:
    """An order of an order, and factors on top of factors."""
    found = np.where(order < 0, 0.0, scaled[order])
    return taken[order], found if factors is None else found * factors
