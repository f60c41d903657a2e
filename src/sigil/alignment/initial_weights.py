"""Follow the channels of a suspect back to the initial weights of a training, layer by layer.

A trained filter still resembles the random one that it began as, and no other: random vectors of many numbers
are almost orthogonal. So the initial weights of a training, which follow from its seed, tell which channel of
a suspect is which, without any image and without the trained model.

The initial weights were drawn without the key. An order that follows from them and from the suspect alone is
therefore as independent of the key as the suspect itself, and the test that follows is exact.

Channels that share an order form a *space*, and a *link* is a layer that reads some spaces and writes one
(:mod:`sigil.models.topology`). Going through the spaces from the images to the cut and round again, each is
matched by all of its links whose other side is already in order.

A filter and the scale γ of its batch norm can change sign together without any effect, so filters are taken
times the sign of γ. Where no rectifier follows, a whole channel can change sign; such spaces are *linear*,
and the sign is found with the order.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import scipy  # loads scipy.optimize, which takes a second, only where it is used
import torch
from torch import Tensor

from sigil import models
from sigil.alignment.correlations import FEWEST, Floats, Match, Order
from sigil.errors import AlignmentError
from sigil.models import Model
from sigil.models.spec import channel_topology
from sigil.models.topology import IMAGE, HalfTopology, Link, weight_of

PASSES = 3
CLEAR = 2.0  # how many times more similar than to any other
SURE = 0.75  # the share of channels with a partner that must be sure; between unrelated models none is


def match_by_initial_weights(half: Model, initial: Model) -> Match:
    """Find the order of the channels at the cut of ``half`` by the weights of ``initial``.

    ``half`` is a client half, ``initial`` the client half or the whole model at the start of the training.
    Channel i of a model trained from ``initial`` is channel ``order[i]`` of ``half``. ``agreement`` is the
    mean cosine of matched filters, about 0 for a model of other origin; ``sure`` counts the channels at the
    cut whose partner is twice as similar to them as to any other (in artanh of the cosine, whose error does
    not depend on it). A channel has none (−1) if what is left for it resembles another one more: copies of
    channels in the suspect find no place.
    """
    return _search(half, initial).result()


def restored_filters(half: Model, initial: Model) -> dict[str, Tensor]:
    """The filters of ``half`` in the order and with the signs of ``initial``, by the names of their weights.

    ``half`` and ``initial`` are as for :func:`match_by_initial_weights`. Each filter has the sign with which
    it leans to its initial value. Entries of ``initial`` that are zero decide nothing, so that they can be
    held out. Layers without positions are left out.
    """
    search = _search(half, initial)
    restored = {}
    for link in search.topology.links:
        ours = search.ours[link.layer]
        if ours.ndim == 4:
            theirs = search.read(search.theirs[link.layer], link.reads)[search.orders[link.writes]]
            leaning = (ours * theirs).sum((1, 2, 3), keepdims=True)
            restored[f"{link.layer}.weight"] = torch.from_numpy(np.where(leaning < 0, -theirs, theirs))
    return restored


def _search(half: Model, initial: Model) -> _Search:
    """All orders and signs, after going through the spaces several times."""
    initial = _fitting(half, initial)
    assert half.spec.cut is not None
    rows = {name for name, _ in half.named_children()}
    topology = channel_topology(half.spec).client_half(half.spec.cut, rows)
    search = _Search(topology, ours=initial, theirs=half)
    for _ in range(PASSES):
        for space in dict.fromkeys(link.writes for link in topology.links):
            search.match(space)
    return search


class _Search:
    """The orders and signs found so far, and how to find more."""

    def __init__(self, topology: HalfTopology, *, ours: Model, theirs: Model) -> None:
        self.topology = topology
        self.ours, self.theirs = (
            {link.layer: _weights(model, link) for link in topology.links} for model in (ours, theirs)
        )
        self.sizes = {link.writes: len(self.ours[link.layer]) for link in topology.links}
        self.sizes[IMAGE] = ours.spec.channels
        self.orders: dict[str, Order] = {IMAGE: np.arange(self.sizes[IMAGE])}
        self.signs: dict[str, Order] = {IMAGE: np.ones(self.sizes[IMAGE], np.int64)}

    def match(self, space: str) -> None:
        likeness = self.likeness(space)
        order = np.asarray(scipy.optimize.linear_sum_assignment(np.abs(likeness), maximize=True)[1], np.int64)
        self.orders[space] = order
        self.signs[space] = np.where(likeness[np.arange(len(order)), order] < 0, -1, 1)

    def likeness(self, space: str) -> Floats:
        """Cosines of all filters of a space with all, each link weighted by its numbers a filter.

        That is the weight of a link in the likelihood: ten numbers say ten times as much as one. Behind a
        rectifier a sign is that of a γ alone, which may have crossed zero in training, and does not count.
        """
        total, numbers = np.zeros((self.sizes[space],) * 2), 0
        for link in self.topology.links:
            for ours, theirs in self._filters(link, space):
                count = ours[0].size
                cosines = _unit(ours) @ _unit(theirs).T
                total += count * (cosines if space in self.topology.linear else np.abs(cosines))
                numbers += count
        return total / numbers

    def _filters(self, link: Link, space: str) -> list[tuple[Floats, Floats]]:
        """Our and their filters of a link for each channel of a space, as far as the rest is in order."""
        ours, theirs = self.ours[link.layer], self.theirs[link.layer]
        found = []
        if link.writes == space and all(name in self.orders for name in link.reads):
            found.append((ours, self.read(theirs, link.reads)))
        if space in link.reads and link.writes in self.orders and link.writes != space:
            start = sum(self.sizes[name] for name in link.reads[: link.reads.index(space)])
            part = slice(start, start + self.sizes[space])
            written = theirs[self.orders[link.writes]] * self.signs[link.writes][:, None, None, None]
            found.append((ours[:, part].swapaxes(0, 1), written[:, part].swapaxes(0, 1)))
        return found

    def read(self, filters: Floats, spaces: tuple[str, ...]) -> Floats:
        """Filters with their inputs in our order and with our signs."""
        if not spaces:
            return filters
        signs = np.concatenate([self.signs[name] for name in spaces])
        return filters[:, self._order(spaces)] * signs[None, :, None, None]

    def _order(self, spaces: tuple[str, ...]) -> Order:
        """The order of several spaces that lie one after the other."""
        starts = np.cumsum([0, *(self.sizes[name] for name in spaces)])
        return np.concatenate(
            [self.orders[name] + start for name, start in zip(spaces, starts, strict=False)]
        )

    def result(self) -> Match:
        at_cut = self.topology.at_cut
        sure, cosines = 0, []
        for space in at_cut:
            likeness = np.abs(self.likeness(space)).clip(0, 1 - 1e-9)
            every, own = np.arange(self.sizes[space]), self.orders[space]
            found = likeness[every, own]
            likeness[every, own] = 0.0
            others = likeness.max(axis=0)[own]
            sure += int((np.arctanh(found) > CLEAR * np.arctanh(others)).sum())
            cosines.append(np.where(found > others, found, np.nan))
        cosine = np.concatenate(cosines)
        known = np.isfinite(cosine)
        agreement = float(cosine[known].mean()) if known.any() else 0.0
        signs = np.concatenate([self.signs[space] for space in at_cut])
        return Match(
            order=np.where(known, self._order(at_cut), -1),
            agreement=agreement,
            sure=sure,
            believed=bool(known.sum() >= FEWEST * len(known) and sure >= SURE * known.sum()),
            signs=np.ones_like(signs) if self.topology.rectified else signs,
        )


def _weights(model: Model, link: Link) -> Floats:
    found: Floats = weight_of(model, link.layer).detach().double().cpu().numpy()
    for norm, shape in ((link.after, (-1, 1, 1, 1)), (link.before, (1, -1, 1, 1))):
        if norm is not None:
            gamma = weight_of(model, norm)
            found = found * np.where(gamma.detach().cpu().numpy() < 0, -1, 1).reshape(shape)
    return found


def _unit(filters: Floats) -> Floats:
    rows: npt.NDArray[np.float64] = filters.reshape(len(filters), -1)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12)


def _fitting(half: Model, initial: Model) -> Model:
    same_kind = initial.spec.name == half.spec.name
    if same_kind and initial.spec.part == "whole" and half.spec.cut is not None:
        wanted = replace(initial.spec, part="client", cut=half.spec.cut)
        if replace(half.spec, classes=wanted.classes) == wanted:
            return models.split(initial, half.spec.cut)[0]
    # The number of classes shapes the last layer only, which no client half has.
    if replace(initial.spec, classes=half.spec.classes) != half.spec or half.spec.part != "client":
        raise AlignmentError(
            f"The initial weights are those of the {initial.spec}, but the suspect is the {half.spec}: give "
            "initial weights of the same architecture, width and cut."
        )
    return initial
