"""Initial weights against a network of unknown layers: nothing but its filters, in the order of computing.

A copy may come as a graph without the names of its layers, with channels split or idle ones added, so that no
tensor has the shape that it had. The filters are still there. Each layer of ours looks for its own among
theirs, from the images to the cut: it must have the same kernel in its middle, read as many channels as were
written before it, and, once its filters are assigned, resemble ours the most. Two layers with nothing between
them, as in MobileNetV2, may be one of theirs. A second guess takes the filters of each kernel one after the
other, which is right for every plain export. Maps may be turned or mirrored in the whole network, and all
kernels with them; so all eight ways are tried. The guess under which all filters together are most alike is
searched like a known model (:class:`sigil.alignment.initial_weights.Search`).

All of it follows from the suspect and from those initial weights that are not held out, so that the test of
the others stays exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import scipy  # loads scipy.optimize, which takes a second, only where it is used
import torch
from torch import Tensor, nn

from sigil.alignment.correlations import TURNS, Floats
from sigil.alignment.filters import Filters, cosines, fitted
from sigil.alignment.initial_weights import Search, filters_in, topology_of
from sigil.alignment.own_layers import watched
from sigil.models import Model
from sigil.models.topology import HalfTopology, Link

MOST_FILTERS: Final = 2048
"""Layers of a suspect that are looked at, all that a graph shows: the four architectures have at most 120."""
MOST_TIMES_WIDER: Final = 8
"""How many times as many channels as ours a layer may have."""
AS_GOOD: Final = 0.01
"""The share of the largest likeness by which another layer may have less and be as good."""
KEPT: Final = 0.2
"""How much of a larger kernel must lie in its middle."""


def search_unknown(
    filters: Sequence[Tensor], initial: nn.Module, shape: Sequence[int] | None = None
) -> Search:
    """Compare a suspect of which only its filters are known with a client half at the start of the training.

    ``filters`` are the weights (outputs, inputs, height, width) of its convolutions up to the cut, in the
    order of computing. Entries of ``initial`` that are zero decide nothing. ``shape`` is that of one input,
    which a module that is none of Sigil's models is watched with.
    """
    if isinstance(initial, Model):
        topology, channels = topology_of(initial), initial.spec.channels
    else:
        assert shape is not None
        topology, channels = watched(initial, shape), shape[0]
    ours = filters_in(initial, topology, channels, signed=False)
    widest = MOST_TIMES_WIDER * max(map(len, ours.values()))
    most_read = MOST_TIMES_WIDER * max(one.numbers for one in ours.values())
    theirs = [
        Filters.of(one)
        for one in filters[:MOST_FILTERS]
        if one.ndim == 4 and 0 < len(one) <= widest and 0 < one.shape[1] <= most_read
    ]
    searches: list[Search] = []
    for turn in range(TURNS):
        now = [one.turned(turn) for one in theirs]
        guesses = (_by_kernel(topology, ours, now), _by_likeness(topology, ours, now, channels))
        searches += [
            Search(topology, ours, guess, channels=channels, lean=True, turns=(turn,)).run()
            for guess in guesses
            if guess is not None
        ]
        best = max(searches, key=_agreement)
        if best.result().believed:
            # Much of a kernel looks the same from another side, so that an order may be found before that.
            other = max((best.turned(further) for further in range(TURNS)), key=_agreement)
            return best if other.turns[-1] == 0 else other.run()
    return best


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
    kernels = {mine.shape[2:] for mine in ours.values()}
    sized = {kernel: [_sized(one, kernel) for one in theirs] for kernel in kernels}
    apart: dict[str, set[str]] = {}
    for number, link in enumerate(topology.links):
        if link.layer in search.theirs or not all(name in search.orders for name in link.reads):
            continue
        if not link.reads and link.writes not in search.orders:
            continue
        mine = ours[link.layer]
        fitting = [
            (place, one)
            for place, one in ((place, sized[mine.shape[2:]][place]) for place in left)
            if one is not None and _fits(link, one, search.widths)
        ]
        following = next((one for one in topology.links[number + 1 :] if one.reads == (link.writes,)), None)
        alike = [_alike(mine, search.read(one, link.reads)) for _, one in fitting]
        if link.writes in topology.linear and following is not None:
            likeness, place = _together(search, link, following, left, sized.get((1, 1), ()))
            if place >= 0 and likeness > max(alike, default=-np.inf):
                left.remove(place)
                search.theirs |= _taken_apart(search, link, following, sized[(1, 1)][place])
                apart.setdefault(link.writes, set()).update((link.layer, following.layer))
                search.match(link.writes)
                search.match(following.writes)
                continue
        if fitting:
            # What a graph does to channels, which comes last, has them in one order throughout.
            least = max(alike) - AS_GOOD * abs(max(alike))
            place, search.theirs[link.layer] = fitting[max(n for n, one in enumerate(alike) if one >= least)]
            left.remove(place)
            search.match(link.writes)
    return _in_one_order(search, apart)


def _together(
    search: Search, first: Link, second: Link, left: Sequence[int], theirs: Sequence[Filters | None]
) -> tuple[float, int]:
    """How alike two layers of ours with nothing between them are to one of theirs, and to which."""
    best = (-np.inf, -1)
    pointwise = all(search.ours[link.layer].shape[2:] == (1, 1) for link in (first, second))
    between = search.widths.get(first.writes, search.sizes[first.writes]) == search.sizes[first.writes]
    if pointwise and between and second.layer not in search.theirs:
        both = _product(search, first, second)
        reads = sum(search.widths[name] for name in first.reads)
        for place in left:
            other = theirs[place]
            written = search.widths.get(second.writes)
            if other is not None and other.shape[1] == reads and written in (None, len(other)):
                best = max(best, (_alike(both, search.read(other, first.reads)), place))
    return best


def _product(search: Search, first: Link, second: Link) -> Filters:
    """What two of our layers without a kernel do together."""
    before, after = (_matrix(search.ours[link.layer]) for link in (first, second))
    return _pointwise(after @ before)


def _taken_apart(search: Search, first: Link, second: Link, theirs: Filters | None) -> dict[str, Filters]:
    """One layer of theirs as the two of ours that do the same together.

    How the channels between them are ordered and scaled does not show, and they get our order. Each layer is
    what is left once the other one's start is divided out, by least squares.
    """
    assert theirs is not None
    both = _product(search, first, second)
    read = search.read(theirs, first.reads)
    likeness = np.abs(cosines(both, read))
    rows, columns = scipy.optimize.linear_sum_assignment(likeness, maximize=True)
    order = np.full(len(both), -1)
    order[rows] = columns
    # At our scale, or the largest channels would decide everything; and with the signs of ours.
    inner = fitted(read.rows(order), both)
    leaning = sum(((ours * other).sum((1, 2, 3)) for ours, other in both.beside(inner)), np.zeros(len(both)))
    values = _matrix(inner.rows(np.arange(len(both)), np.where(leaning < 0, -1.0, 1.0)))
    before, after = (_matrix(search.ours[link.layer]) for link in (first, second))
    written = np.zeros((len(theirs), before.shape[0]))
    written[columns] = (values @ np.linalg.pinv(before))[rows]
    # Back to their order of what is read.
    reads = _matrix(search.read(_pointwise(np.eye(theirs.shape[1])), first.reads))
    return {
        first.layer: _pointwise(np.linalg.pinv(after) @ values @ reads.T),
        second.layer: _pointwise(written),
    }


def _matrix(filters: Filters) -> Floats:
    """Filters without a kernel as a matrix."""
    return filters.tensor()[:, :, 0, 0].double().numpy()


def _pointwise(matrix: Floats) -> Filters:
    return Filters.of(torch.from_numpy(matrix)[:, :, None, None])


def _in_one_order(search: Search, apart: Mapping[str, set[str]]) -> dict[str, Filters]:
    """Leave out layers that were taken apart where others show the channels between in their real order."""
    for space, layers in apart.items():
        known = {link.layer for link in search.topology.links if space in (link.writes, *link.reads)}
        if any(layer not in layers for layer in known & search.theirs.keys()):
            for layer in layers & known:
                del search.theirs[layer]
    return search.theirs


def _fits(link: Link, theirs: Filters, widths: Mapping[str, int]) -> bool:
    """Whether a layer of theirs reads what was written, and writes what fits its space."""
    reads = sum(widths[name] for name in link.reads) if link.reads else 1
    written = widths.get(link.writes, len(theirs))
    return theirs.shape[1] == reads and written == len(theirs)


def _sized(theirs: Filters, kernel: Sequence[int]) -> Filters | None:
    """A layer of theirs with a kernel of our size, about the middle; None if most of it lies elsewhere.

    Zeros around a kernel mean nothing. The mean of four pixels behind it makes four equal kernels of one. A
    linear layer behind a flattening reads all numbers of each channel.
    """
    if theirs.shape[2:] == tuple(kernel):
        return theirs
    weight = theirs.weight
    if kernel[0] == 1 < kernel[1] and theirs.shape[2:] == (1, 1):
        whole = theirs.shape[1] % kernel[1] == 0
        return Filters.of(weight.reshape(len(theirs), -1, *kernel)) if whole else None
    cut = [(here - wanted) // 2 for here, wanted in zip(weight.shape[2:], kernel, strict=True)]
    kept = torch.nn.functional.pad(weight, (-cut[1], -cut[1], -cut[0], -cut[0]))
    if kept.shape[2:] != tuple(kernel):
        return None
    sizes = [float(some.double().nan_to_num(0.0, 0.0, 0.0).abs().sum()) for some in (kept, weight)]
    return Filters.of(kept) if sizes[0] > KEPT * sizes[1] else None


def _alike(ours: Filters, theirs: Filters) -> float:
    """How much more likely their filters are if they began as ours, in the best order, signs left aside.

    A filter of n numbers with the cosine c makes that (1 - c²)^(-n/2) times more likely, one of m candidates
    is as good as the best of them by chance; the logarithms are added up.
    """
    likeness = np.abs(cosines(ours, theirs)).clip(0.0, 1 - 1e-9)
    rows, columns = scipy.optimize.linear_sum_assignment(likeness, maximize=True)
    evidence = -ours.numbers / 2 * np.log1p(-(likeness[rows, columns] ** 2)) - np.log(len(theirs))
    return float(evidence.sum())


def _agreement(search: Search) -> float:
    """How alike all filters are in the order that was found, each number of ours counting once."""
    total, numbers = 0.0, 0
    for link in search.topology.links:
        ours = search.ours[link.layer]
        numbers += len(ours) * ours.numbers
        if search.is_known(link):
            total += float(np.abs(cosines(ours, search.in_order(link)[0]).diagonal()).sum()) * ours.numbers
    return total / max(1, numbers)
