"""Initial weights against a network of unknown layers: nothing but its filters, in the order of computing.

A copy may come as a graph without the names of its layers, with channels split or idle ones added, so that no
tensor has the shape that it had. The filters are still there. Each layer of ours looks for its own among
theirs, from the images to the cut: it must have the same kernel, read as many channels as were written before
it, and, once its filters are assigned, resemble ours the most. A second guess takes the filters of each
kernel one after the other, which is right for every plain export. The guess under which all filters together
are most alike is searched like a known model (:class:`sigil.alignment.initial_weights.Search`).

All of it follows from the suspect and from those initial weights that are not held out, so that the test of
the others stays exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import scipy  # loads scipy.optimize, which takes a second, only where it is used
from torch import Tensor

from sigil.alignment.correlations import Match
from sigil.alignment.filters import Filters, cosines
from sigil.alignment.initial_weights import Restored, Search, topology_of
from sigil.models import Model
from sigil.models.topology import HalfTopology, Link, weight_of

MOST_FILTERS: Final = 512
"""Layers of a suspect that are looked at: the four architectures have at most 120."""
MOST_TIMES_WIDER: Final = 8
"""How many times as many channels as ours a layer may have."""


def match_filters(filters: Sequence[Tensor], initial: Model) -> Match:
    """Find the order of the channels at the cut of a suspect of which only its filters are known.

    ``filters`` are the weights (outputs, inputs, height, width) of its convolutions up to the cut, in the
    order of computing; ``initial`` is the client half at the start of the training.
    """
    return _search(filters, initial).result()


def restored_unknown(filters: Sequence[Tensor], initial: Model) -> Restored:
    """Those filters that correspond to layers of ``initial``, in its order, shape, scale and signs, by name.

    Channels without a partner are zeros. Entries of ``initial`` that are zero decide nothing.
    """
    return _search(filters, initial).restored()


def _search(filters: Sequence[Tensor], initial: Model) -> Search:
    topology = topology_of(initial)
    ours = {link.layer: Filters.of(weight_of(initial, link.layer)) for link in topology.links}
    widest = MOST_TIMES_WIDER * max(map(len, ours.values()))
    theirs = [
        Filters.of(one)
        for one in filters[:MOST_FILTERS]
        if one.ndim == 4 and 0 < len(one) <= widest and 0 < one.shape[1] <= widest
    ]
    guesses = (
        _by_kernel(topology, ours, theirs),
        _by_likeness(topology, ours, theirs, initial.spec.channels),
    )
    searches = [
        Search(topology, ours, guess, channels=initial.spec.channels, lean=True).run()
        for guess in guesses
        if guess is not None
    ]
    return max(searches, key=_agreement)


def _by_kernel(
    topology: HalfTopology, ours: Mapping[str, Filters], theirs: Sequence[Filters]
) -> dict[str, Filters] | None:
    """Of each kernel the first with the first, the second with the second; None if that does not fit."""
    found: dict[str, Filters] = {}
    widths: dict[str, int] = {}
    waiting: dict[tuple[int, ...], list[Filters]] = {}
    for one in theirs:
        waiting.setdefault(one.shape[2:], []).append(one)
    for link in topology.links:
        mine = ours[link.layer]
        if not (left := waiting.get(mine.shape[2:])):
            return None
        other = left.pop(0)
        reads = sum(widths.get(name, mine.shape[1]) for name in link.reads) if link.reads else 1
        if other.shape[1] != reads or widths.setdefault(link.writes, len(other)) != len(other):
            return None
        found[link.layer] = other
    return found


def _by_likeness(
    topology: HalfTopology, ours: Mapping[str, Filters], theirs: Sequence[Filters], channels: int
) -> dict[str, Filters]:
    """For each layer of ours, from the images on, the one among theirs that fits and resembles it most."""
    search = Search(topology, ours, {}, channels=channels, lean=True)
    left = list(range(len(theirs)))
    for link in topology.links:
        widths = search.widths
        if not all(name in search.orders for name in link.reads):
            continue
        if not link.reads and link.writes not in search.orders:
            continue
        fitting = [place for place in left if _fits(link, ours[link.layer], theirs[place], widths)]
        if not fitting:
            continue
        best = max(
            fitting, key=lambda place: _alike(ours[link.layer], search.read(theirs[place], link.reads))
        )
        left.remove(best)
        search.theirs[link.layer] = theirs[best]
        search.match(link.writes)
    return search.theirs


def _fits(link: Link, ours: Filters, theirs: Filters, widths: Mapping[str, int]) -> bool:
    """Whether a layer of theirs has our kernel, reads what was written, and writes what fits its space."""
    reads = sum(widths[name] for name in link.reads) if link.reads else 1
    written = widths.get(link.writes, len(theirs))
    return theirs.shape[2:] == ours.shape[2:] and theirs.shape[1] == reads and written == len(theirs)


def _alike(ours: Filters, theirs: Filters) -> float:
    """The mean cosine of filters, signs left aside, in the order in which it is largest."""
    likeness = np.abs(cosines(ours, theirs))
    rows, columns = scipy.optimize.linear_sum_assignment(likeness, maximize=True)
    return float(likeness[rows, columns].sum() / len(ours))


def _agreement(search: Search) -> float:
    """How alike all filters are in the order that was found, each number of ours counting once."""
    total, numbers = 0.0, 0
    for link in search.topology.links:
        ours = search.ours[link.layer]
        numbers += len(ours) * ours.numbers
        if search.is_known(link):
            total += float(np.abs(cosines(ours, search.in_order(link)[0]).diagonal()).sum()) * ours.numbers
    return total / max(1, numbers)
