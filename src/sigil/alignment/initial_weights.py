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

from collections.abc import Mapping
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
    return _search(half, initial).restored()


def _search(half: Model, initial: Model) -> Search:
    """All orders and signs, after going through the spaces several times."""
    initial = _fitting(half, initial)
    topology = topology_of(half)
    ours, theirs = (
        {link.layer: _weights(model, link) for link in topology.links} for model in (initial, half)
    )
    return Search(topology, ours, theirs, channels=initial.spec.channels).run()


def topology_of(half: Model) -> HalfTopology:
    """Which layers of a client half share channels."""
    assert half.spec.cut is not None
    rows = {name for name, _ in half.named_children()}
    return channel_topology(half.spec).client_half(half.spec.cut, rows)


class Search:
    """The orders and signs found so far, and how to find more.

    ``ours`` are the initial weights of all layers, ``theirs`` the suspect's of those that are known, which
    may have more or fewer channels: channel i of ours is channel ``orders[space][i]`` of theirs, or none if
    that is -1. ``channels`` is the number of the images' channels. With ``lean`` nothing is known of batch
    norms, so that each of their filters is taken with the sign with which it leans to ours.
    """

    def __init__(
        self,
        topology: HalfTopology,
        ours: Mapping[str, Floats],
        theirs: Mapping[str, Floats],
        *,
        channels: int,
        lean: bool = False,
    ) -> None:
        self.topology, self.ours, self.theirs, self.lean = topology, ours, dict(theirs), lean
        self.sizes = {link.writes: len(ours[link.layer]) for link in topology.links} | {IMAGE: channels}
        self.orders: dict[str, Order] = {IMAGE: np.arange(channels)}
        self.signs: dict[str, Order] = {IMAGE: np.ones(channels, np.int64)}

    @property
    def widths(self) -> dict[str, int]:
        """How many channels the suspect has in each space that is known."""
        known = (link for link in self.topology.links if link.layer in self.theirs)
        return {link.writes: len(self.theirs[link.layer]) for link in known} | {IMAGE: self.sizes[IMAGE]}

    def run(self) -> Search:
        """Go through the spaces several times."""
        for _ in range(PASSES):
            for space in dict.fromkeys(link.writes for link in self.topology.links):
                self.match(space)
        return self

    def match(self, space: str) -> None:
        """Find the order of a space by all of its links whose other side is in order."""
        likeness = self.likeness(space)
        if likeness is None:
            return
        rows, columns = scipy.optimize.linear_sum_assignment(np.abs(likeness), maximize=True)
        order, signs = (np.full(self.sizes[space], value, np.int64) for value in (-1, 1))
        order[rows], signs[rows] = columns, np.where(likeness[rows, columns] < 0, -1, 1)
        self.orders[space], self.signs[space] = order, signs

    def likeness(self, space: str) -> Floats | None:
        """Cosines of all filters of a space with all, each link weighted by its numbers per filter.

        That is the weight of a link in the likelihood: ten numbers say ten times as much as one. Behind a
        rectifier a sign is that of a γ alone, which may have crossed zero in training, and does not count.
        None where nothing of it is in order.
        """
        total, numbers = np.zeros((self.sizes[space], self.widths.get(space, 0))), 0
        for link in self.topology.links:
            for ours, theirs, signed in self._filters(link, space):
                count = ours[0].size
                cosines = unit(ours) @ unit(theirs).T
                total += count * (cosines if signed else np.abs(cosines))
                numbers += count
        return total / numbers if numbers else None

    def _filters(self, link: Link, space: str) -> list[tuple[Floats, Floats, bool]]:
        """Our and their filters of a link for each channel of a space, as far as the rest is in order.

        And whether their signs count. What leans is compared with its sign where it is read: behind a
        rectifier a channel is never negative, so that a copy that is read with the other sign is another.
        """
        if link.layer not in self.theirs:
            return []
        ours, theirs = self.ours[link.layer], self.theirs[link.layer]
        linear = space in self.topology.linear
        found = []
        if link.writes == space and all(name in self.orders for name in link.reads):
            found.append((ours, self.read(theirs, link.reads), linear))
        if space in link.reads and link.writes in self.orders and link.writes != space:
            mine, other = (
                sum(sizes[name] for name in link.reads[: link.reads.index(space)])
                for sizes in (self.sizes, self.widths)
            )
            written = taken(theirs, self.orders[link.writes], 0) * self._written_signs(link)
            found.append(
                (
                    ours[:, mine : mine + self.sizes[space]].swapaxes(0, 1),
                    written[:, other : other + self.widths[space]].swapaxes(0, 1),
                    linear or self.lean,
                )
            )
        return found

    def _written_signs(self, link: Link) -> Floats:
        """The signs with which their filters of a link are taken, in our order, for all other axes."""
        if self.lean and all(name in self.orders for name in link.reads):
            return np.where(self._in_order(link)[1] < 0, -1.0, 1.0)
        return self.signs[link.writes][:, None, None, None].astype(np.float64)

    def _in_order(self, link: Link) -> tuple[Floats, Floats]:
        """Their filters of a link in our order, and how far each leans to ours, negative if away from it."""
        theirs = taken(self.read(self.theirs[link.layer], link.reads), self.orders[link.writes], 0)
        return theirs, (self.ours[link.layer] * theirs).sum((1, 2, 3), keepdims=True)

    def read(self, filters: Floats, spaces: tuple[str, ...]) -> Floats:
        """Filters with their inputs in our order and with our signs."""
        if not spaces:
            return filters
        signs = np.concatenate([self.signs[name] for name in spaces])
        return taken(filters, self._order(spaces), 1) * signs[None, :, None, None]

    def _order(self, spaces: tuple[str, ...]) -> Order:
        """The order of several spaces that lie one after the other."""
        starts = np.cumsum([0, *(self.widths[name] for name in spaces)])
        orders = [(self.orders[name], start) for name, start in zip(spaces, starts, strict=False)]
        return np.concatenate([np.where(order < 0, -1, order + start) for order, start in orders])

    def restored(self) -> dict[str, Tensor]:
        """Their filters in our order, each with the sign with which it leans to ours, by names of weights."""
        found = {}
        for link in self.topology.links:
            known = link.writes in self.orders and all(name in self.orders for name in link.reads)
            if link.layer in self.theirs and self.ours[link.layer].ndim == 4 and known:
                theirs, leaning = self._in_order(link)
                found[f"{link.layer}.weight"] = torch.from_numpy(np.where(leaning < 0, -theirs, theirs))
        return found

    def result(self) -> Match:
        """The order at the cut, and how sure it is."""
        at_cut = self.topology.at_cut
        sure, cosines = 0, []
        for space in at_cut:
            found = self.likeness(space)
            likeness = np.abs(np.zeros((self.sizes[space], 1)) if found is None else found).clip(0, 1 - 1e-9)
            if found is None:
                self.orders[space] = np.full(self.sizes[space], -1)
                self.signs[space] = np.ones(self.sizes[space], np.int64)
            own = self.orders[space]
            every = np.flatnonzero(own >= 0)
            partner = own[every]
            agreeing = likeness[every, partner]
            likeness[every, partner] = 0.0
            others = likeness.max(axis=0)[partner]
            sure += int((np.arctanh(agreeing) > CLEAR * np.arctanh(others)).sum())
            kept = np.full(len(own), np.nan)
            kept[every] = np.where(agreeing > others, agreeing, np.nan)
            cosines.append(kept)
        cosine = np.concatenate(cosines)
        known = np.isfinite(cosine)
        agreement = float(cosine[known].mean()) if known.any() else 0.0
        signs = np.concatenate([self.signs[space] for space in at_cut])
        order = (
            self._order(at_cut) if all(space in self.widths for space in at_cut) else np.full(len(known), -1)
        )
        return Match(
            order=np.where(known, order, -1),
            agreement=agreement,
            sure=sure,
            believed=bool(known.sum() >= FEWEST * len(known) and sure >= SURE * known.sum()),
            signs=np.ones_like(signs) if self.topology.rectified else signs,
        )


def taken(values: Floats, order: Order, axis: int) -> Floats:
    """The entries of an axis in this order, zeros for -1."""
    found = values.take(order, axis)
    if (order < 0).any():
        found[(slice(None),) * axis + (order < 0,)] = 0.0
    return found


def _weights(model: Model, link: Link) -> Floats:
    found: Floats = weight_of(model, link.layer).detach().double().cpu().numpy()
    for norm, shape in ((link.after, (-1, 1, 1, 1)), (link.before, (1, -1, 1, 1))):
        if norm is not None:
            gamma = weight_of(model, norm)
            found = found * np.where(gamma.detach().cpu().numpy() < 0, -1, 1).reshape(shape)
    return found


def unit(filters: Floats) -> Floats:
    """Filters as rows of length one."""
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
