"""The origin test: does a suspect descend from initial weights that only this key could draw?

The owner draws the initial weights w0 of the clients' half from its key (:meth:`sigil.Key.initialise`). Each
sign is a fair coin that no stranger's model can know, and training keeps most of them: a weight mostly stays
on its side of zero, a large one nearly always. So the test adds up the signs that agree, large weights
counting more,

    T = sum_i q_i sign(w_i) sign(w0_i),        p = P(sum_i ±q_i >= T),

over all tensors that the key drew, zeros left out. The weight q_i follows from the octile of |w_i| among the
weights of its filter (all of one output channel), ties in the order of the tensor: 0, 0, 1, 1, 2, 4, 6, 12,
about the square of a normal weight's size. Nothing is assumed about the suspect: given its weights, and with
them the q_i, only the signs of w0 are random, so that the p-value is exact (:mod:`sigil.statistics`). It
needs no data and no probes. Octiles do not move when filters are scaled in front of a batch norm, which would
dodge a test of correlations. And a thief who turns signs, beginning with the smallest weights, pays for what
the sum loses by the squares of what it turns, where turning half of all signs would cost next to nothing.

One entry in eight is *held out*: channels that were reordered, scaled or changed in sign are put back by the
others (:func:`sigil.alignment.search_known`), and then only the held-out signs are tested. Given the
suspect and the entries that were compared, they are fair coins still. The key draws which entries these are:
a thief who knew them could disguise all layers, which costs nothing, and then turn these signs alone. So
there are two tests, of which the better one counts, and its p-value is multiplied by two. Where the layers
have no names, or other numbers of channels, the second one compares the filters that are there
(:mod:`sigil.alignment.unknown_layers`): a graph of ONNX and a copy with split channels descend as well.

It shows descent and nothing more. Every client holds w0, so one who trains alone from it scores as high, and
so does a stranger's model to which a little of w0 was added: what descends was not necessarily stolen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sigil.statistics import log10_tail

Initial = Callable[[str, tuple[int, ...]], Tensor]
"""The initial value of a tensor, by its name and shape."""

OCTILES: Final = 8
WEIGHTS: Final = (0, 0, 1, 1, 2, 4, 6, 12)
"""What a sign counts, by the octile of its weight's size."""
BLOCK: Final = 1 << 21
"""Weights that are compared at a time: one takes about 65 bytes while it is."""
# In the order as it is, and in the order that was found.
ORDERS: Final = 2


@dataclass(frozen=True)
class Origin:
    """What the origin test found: of `tested` weights in each octile, `agreeing` have their initial sign.

    `tensors` were tested; `skipped` are those that the suspect lacks or has in another shape. `restored` says
    whether channels were put back in order, and only held-out entries tested.
    """

    agreeing: tuple[int, ...]
    tested: tuple[int, ...]
    tensors: tuple[str, ...]
    skipped: tuple[str, ...]
    restored: bool = False

    @property
    def count(self) -> int:
        """How many weights were tested."""
        return sum(self.tested)

    @property
    def share(self) -> float:
        """The share of the tested signs that agree, counted by octile; one half by chance."""
        return weighted_share(self.agreeing, self.tested)

    @property
    def log10_p(self) -> float:
        """The decimal logarithm of the probability of this by chance, in either of the two orders."""
        return log10_p(self.agreeing, self.tested)


def weighted_share(agreeing: Iterable[int], tested: Iterable[int]) -> float:
    """The share of signs that agree, counted by octile; one half where nothing was tested."""
    total = sum(q * count for q, count in zip(WEIGHTS, tested, strict=True))
    return sum(q * count for q, count in zip(WEIGHTS, agreeing, strict=True)) / total if total else 0.5


def log10_p(agreeing: tuple[int, ...], tested: tuple[int, ...]) -> float:
    """The decimal logarithm of p for these counts per octile, times two for the orders; at most 0."""
    return min(0.0, log10_tail(agreeing, tested, WEIGHTS) + math.log10(ORDERS))


@torch.no_grad()
def compare(
    suspect: Mapping[str, Tensor],
    drawn: Mapping[str, tuple[int, ...]],
    initial: Initial,
    *,
    held_out: Initial | None = None,
) -> Origin:
    """Count the signs that a suspect's tensors share with their initial values, by octile.

    `suspect` are its tensors by name; `drawn` are the names and shapes of all tensors that the key draws for
    this architecture, none of which is left out by choice; `initial` draws one of them. With `held_out`,
    which says of each tensor's entries whether they are, the suspect's channels were put back in order by
    the other entries, and only the held-out ones are tested.
    """
    agreeing, tested = np.zeros(OCTILES, np.int64), np.zeros(OCTILES, np.int64)
    tensors, skipped = [], []
    seen: set[object] = set()
    for name, shape in drawn.items():
        found = suspect.get(name)
        if found is None or tuple(found.shape) != tuple(shape) or not found.is_floating_point():
            skipped.append(name)
            continue
        # A tensor that several layers share counts once; what was put back in order is new for each.
        place = (found.data_ptr(), found.stride())
        if held_out is None and found.numel() and place in seen:
            continue
        seen.add(place)
        part = None if held_out is None else held_out(name, tuple(shape))
        agree, count = count_signs(initial(name, tuple(shape)), found, part)
        agreeing, tested = agreeing + agree, tested + count
        tensors.append(name)
    return Origin(
        tuple(map(int, agreeing)),
        tuple(map(int, tested)),
        tuple(tensors),
        tuple(skipped),
        held_out is not None,
    )


def count_signs(
    initial: Tensor, trained: Tensor, part: Tensor | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """For each octile how many entries have the same sign in both, and how many are zero in neither.

    What is not a number counts as zero. `part`, bool, says which entries are tested; none: all of them.
    """
    agreeing, tested = np.zeros(OCTILES, np.int64), np.zeros(OCTILES, np.int64)
    step = max(1, BLOCK * len(trained) // max(1, trained.numel()))
    for start in range(0, len(trained), step):
        rows = slice(start, start + step)
        # Not a number compares with nothing; numbers of any size have a sign.
        values = torch.nan_to_num(trained[rows].detach().cpu().double(), nan=0.0)
        places = octiles(values)
        product = torch.sign(initial[rows]).cpu() * torch.sign(values)
        if part is not None:
            product = torch.where(part[rows], product, 0.0)
        for counts, which in ((agreeing, product > 0), (tested, product != 0)):
            counts += np.bincount(places[which].numpy(), minlength=OCTILES)
    return agreeing, tested


def octiles(values: Tensor) -> Tensor:
    """In which eighth of its filter each entry lies by its size, 0 to 7, in the shape of the tensor.

    A filter is everything behind the first axis. Equal sizes are ranked in the order of the tensor.
    """
    rows = values.abs().reshape(len(values), -1)
    order = torch.argsort(rows, dim=1, stable=True)
    ranks = torch.empty_like(order)
    ranks.scatter_(1, order, torch.arange(rows.shape[1]).expand_as(order))
    return (ranks * OCTILES // max(1, rows.shape[1])).reshape(values.shape)
