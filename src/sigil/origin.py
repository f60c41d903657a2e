"""The origin test: does a suspect descend from initial weights that only this key could draw?

The owner draws the initial weights w0 of the clients' half from its key (:meth:`sigil.Key.initialise`). Each
sign is a fair coin that no stranger's model can know, and training keeps most of them: a weight mostly stays
on its side of zero. So the test counts the weights that have the sign of their initial value,

    p = P(Bin(n, 1/2) >= count),

over all tensors that the key drew, zeros left out. Nothing is assumed about the suspect: given its weights
and the sizes of w0, only the signs are random, so the p-value is exact. It needs no data and no probes. Signs
do not move when filters are scaled in front of a batch norm, which would dodge a test of correlations.

It shows descent and nothing more. Every client holds w0, so one who trains alone from it scores as high, and
so does a stranger's model to which a little of w0 was added: what descends was not necessarily stolen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sigil.binomial import log10_tail

Initial = Callable[[str, tuple[int, ...]], Tensor]
"""The initial value of a tensor, by its name and shape."""


@dataclass(frozen=True)
class Origin:
    """What the origin test found: `agreeing` of `tested` weights have the sign of their initial value.

    `tensors` were tested; `skipped` are those that the suspect lacks or has in another shape.
    """

    agreeing: int
    tested: int
    tensors: tuple[str, ...]
    skipped: tuple[str, ...]

    @property
    def share(self) -> float:
        """The share of the tested weights that agree; one half by chance, and where nothing was tested."""
        return self.agreeing / self.tested if self.tested else 0.5

    @property
    def log10_p(self) -> float:
        """The decimal logarithm of the probability of so many agreements by chance."""
        return log10_tail(self.agreeing, self.tested)


@torch.no_grad()
def compare(suspect: Mapping[str, Tensor], drawn: Mapping[str, tuple[int, ...]], initial: Initial) -> Origin:
    """Count the signs that a suspect's tensors share with their initial values.

    `suspect` are its tensors by name; `drawn` are the names and shapes of all tensors that the key draws for
    this architecture, none of which is left out by choice; `initial` draws one of them.
    """
    agreeing = tested = 0
    tensors, skipped = [], []
    for name, shape in _once(drawn, suspect):
        found = suspect.get(name)
        if found is None or tuple(found.shape) != tuple(shape) or not found.is_floating_point():
            skipped.append(name)
            continue
        agree, count = count_signs(initial(name, tuple(shape)), found)
        agreeing, tested = agreeing + agree, tested + count
        tensors.append(name)
    return Origin(agreeing, tested, tuple(tensors), tuple(skipped))


def count_signs(initial: Tensor, found: Tensor) -> tuple[int, int]:
    """How many entries have the same sign in both, and how many are zero or not a number in neither."""
    signs = torch.sign(initial).cpu().flatten()
    # Not a number compares with nothing; numbers of any size have a sign.
    values = torch.nan_to_num(found.detach().cpu().float().flatten(), nan=0.0)
    product = signs * torch.sign(values)
    return int((product > 0).sum()), int((product != 0).sum())


def _once(
    drawn: Mapping[str, tuple[int, ...]], suspect: Mapping[str, Tensor]
) -> Iterable[tuple[str, tuple[int, ...]]]:
    """Names and shapes, leaving out a second name of the same memory: a shared tensor counts once."""
    seen = set()
    for name, shape in drawn.items():
        tensor = suspect.get(name)
        place = None if tensor is None else (tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
        if place is not None and tensor is not None and tensor.numel() and place in seen:
            continue
        seen.add(place)
        yield name, shape
