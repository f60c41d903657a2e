"""Follow the channels of a suspect back to the initial weights of a training, layer by layer.

A trained filter still resembles the random one that it began as, and no other: random vectors of many numbers
are almost orthogonal. So the initial weights of a training, which follow from its seed, tell which channel of
a suspect is which, without any image and without the trained model.

The initial weights were drawn without the key. An order that follows from them and from the suspect alone is
therefore as independent of the key as the suspect itself, and the test that follows is exact.

Channels that share an order form a *space*, and a *link* is a layer that reads some spaces and writes one
(:mod:`sigil.models.topology`). Going through the spaces from the images to the cut and back, each is matched
by all of its links whose other side is already in order. The first layers have few numbers and move most, so
that their order may be found last: a link counts as much as its other side can be trusted, by how much better
the channels there fit than any others of ours would.

A filter and the scale γ of its batch norm can change sign together without any effect, so filters are taken
times the sign of γ. Where no rectifier follows, a whole channel can change sign; such spaces are *linear*,
and the sign is found with the order.

Scales mean nothing: filters are compared after the rows and the columns of each layer were divided by their
norms in turns (:mod:`sigil.alignment.filters`). And they are found again where a layer of the half reads the
channels at the cut: its columns hold their inverses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import scipy  # loads scipy.optimize, which takes a second, only where it is used
from torch import Tensor, nn

from sigil import models
from sigil.alignment.correlations import FEWEST, Floats, Match, Order
from sigil.alignment.filters import Filters, cosines, fitted
from sigil.errors import AlignmentError
from sigil.models import Model
from sigil.models.spec import channel_topology
from sigil.models.topology import IMAGE, HalfTopology, Link, weight_of

PASSES, LEAST_PASSES = 20, 4
GAIN = 1.02  # how much more alike a pass must make the filters for another one to follow
CLEAR = 2.0  # how many times more similar than to any other
SURE = 0.75  # the share of channels with a partner that must be sure; between unrelated models none is
SAME = 0.99  # the cosine from which two filters are copies of each other


def search_known(half: Model, initial: Model) -> Search:
    """Compare a client half with the client half or the whole model at the start of the training.

    Entries of ``initial`` that are zero decide nothing, so that they can be held out.
    """
    initial = _fitting(half, initial)
    topology, channels = topology_of(half), initial.spec.channels
    ours, theirs = (filters_in(model, topology, channels) for model in (initial, half))
    return Search(topology, ours, theirs, channels=channels).run()


def topology_of(half: Model) -> HalfTopology:
    """Which layers of a client half share channels."""
    assert half.spec.cut is not None
    rows = {name for name, _ in half.named_children()}
    return channel_topology(half.spec).client_half(half.spec.cut, rows)


class Search:
    """The orders and signs found so far, and how to find more.

    ``ours`` are the initial weights of all layers, ``theirs`` the suspect's of those that are known, which
    may have more or fewer channels: channel i of ours is channel ``orders[space][i]`` of theirs, or none if
    that is -1. ``trust`` is the share of the likeness in a space that no other partner has. ``channels`` is
    the number of the images' channels. With ``lean`` nothing is known of batch norms, so that each of their
    filters is taken with the sign with which it leans to ours. Theirs were turned by ``turns``.
    """

    def __init__(
        self,
        topology: HalfTopology,
        ours: Mapping[str, Filters],
        theirs: Mapping[str, Filters],
        *,
        channels: int,
        lean: bool = False,
        turns: tuple[int, ...] = (),
    ) -> None:
        self.topology, self.ours, self.theirs = topology, ours, dict(theirs)
        self.lean, self.turns = lean, turns
        self.sizes = {link.writes: len(ours[link.layer]) for link in topology.links} | {IMAGE: channels}
        self.orders: dict[str, Order] = {IMAGE: np.arange(channels)}
        self.signs: dict[str, Order] = {IMAGE: np.ones(channels, np.int64)}
        self.trust = {IMAGE: 1.0}
        self._firsts: dict[tuple[str, ...], Order] = {}
        self._ours_read: dict[tuple[str, str], Filters] = {}

    @property
    def widths(self) -> dict[str, int]:
        """How many channels the suspect has in each space that is known."""
        known = (link for link in self.topology.links if link.layer in self.theirs)
        return {link.writes: len(self.theirs[link.layer]) for link in known} | {IMAGE: self.sizes[IMAGE]}

    def turned(self, turn: int) -> Search:
        """The same order of filters that are turned once more."""
        theirs = {layer: one.turned(turn) for layer, one in self.theirs.items()}
        found = Search(
            self.topology,
            self.ours,
            theirs,
            channels=self.sizes[IMAGE],
            lean=self.lean,
            turns=(*self.turns, turn),
        )
        found.orders, found.signs, found.trust = dict(self.orders), dict(self.signs), dict(self.trust)
        return found

    def run(self) -> Search:
        """Go through the spaces, from the images to the cut and back, as long as it helps."""
        spaces = list(dict.fromkeys(link.writes for link in self.topology.links))
        alike: list[float] = []
        for turn in range(PASSES):
            found = [self.match(space) for space in (spaces if turn % 2 == 0 else reversed(spaces))]
            alike.append(sum(found) / len(found))
            if turn >= LEAST_PASSES and alike[-1] < GAIN * max(alike[-3:-1]):
                break
        return self

    def match(self, space: str) -> float:
        """Find the order of a space by all of its links whose other side is in order; returns how alike."""
        likeness = self.likeness(space)
        if likeness is None:
            return 0.0
        sizes = np.abs(likeness)
        rows, columns = scipy.optimize.linear_sum_assignment(sizes, maximize=True)
        order, signs = (np.full(self.sizes[space], value, np.int64) for value in (-1, 1))
        order[rows], signs[rows] = columns, np.where(likeness[rows, columns] < 0, -1, 1)
        self.orders[space], self.signs[space] = order, signs
        own = sizes[rows, columns].copy()
        sizes[rows, columns] = 0.0
        # Others of ours: theirs may be copies of each other.
        clear = np.clip(own - sizes[:, columns].max(0), 0.0, None)
        self.trust[space] = float(clear.sum() / own.sum()) if own.any() else 0.0
        return float(own.mean())

    def likeness(self, space: str) -> Floats | None:
        """Cosines of all filters of a space with all, each link weighted by its numbers per filter.

        That is the weight of a link in the likelihood: ten numbers say ten times as much as one. Behind a
        rectifier a sign is that of a γ alone, which may have crossed zero in training, and does not count.
        None where nothing of it is in order.
        """
        widths = self.widths
        total, numbers = np.zeros((self.sizes[space], widths.get(space, 0))), 0.0
        for link in self.topology.links:
            for ours, theirs, signed, trust in self._sides(link, space, widths):
                count = ours.numbers * trust
                likeness = cosines(ours, theirs)
                total += count * (likeness if signed else np.abs(likeness))
                numbers += count
        return total / numbers if numbers else None

    def _sides(
        self, link: Link, space: str, widths: Mapping[str, int]
    ) -> list[tuple[Filters, Filters, bool, float]]:
        """Our and their filters of a link for each channel of a space, as far as the rest is in order.

        And whether their signs count. What leans is compared with its sign where it is read: behind a
        rectifier a channel is never negative, so that a copy that is read with the other sign is another.
        """
        if space != link.writes and space not in link.reads:
            return []
        if link.layer not in self.theirs or not all(name in widths for name in link.reads):
            return []
        ours, theirs = self.ours[link.layer], self.theirs[link.layer]
        linear = space in self.topology.linear
        found = []
        if link.writes == space and all(name in self.orders for name in link.reads):
            trust = min((self.trust[name] for name in link.reads), default=1.0)
            found.append((ours, self.read(theirs, link.reads), linear, trust))
        if space in link.reads and link.writes in self.orders and link.writes != space:
            written = self._whole(theirs, link.reads).rows(
                self.orders[link.writes], self._written_signs(link)
            )
            found.append(
                (*self._read_by(link, space, written, widths), linear or self.lean, self.trust[link.writes])
            )
        return found

    def _read_by(
        self, link: Link, space: str, theirs: Filters, widths: Mapping[str, int]
    ) -> tuple[Filters, Filters]:
        """Our and their columns of a link that reads a space, as rows."""
        if (link.layer, space) not in self._ours_read:
            self._ours_read[link.layer, space] = _columns(self.ours[link.layer], link, space, self.sizes)
        return self._ours_read[link.layer, space], _columns(theirs, link, space, widths)

    def _written_signs(self, link: Link) -> Floats:
        """The signs with which their filters of a link are taken, in our order."""
        if self.lean and all(name in self.orders for name in link.reads):
            return self.in_order(link)[1]
        return self.signs[link.writes].astype(np.float64)

    def in_order(self, link: Link) -> tuple[Filters, Floats]:
        """Their filters of a link in our order and scale, and the sign with which each leans to ours."""
        ours = self.ours[link.layer]
        theirs = self.read(self.theirs[link.layer], link.reads).rows(self.orders[link.writes])
        theirs = fitted(theirs, ours)
        leaning = sum(
            ((mine * others).sum((1, 2, 3)) for mine, others in ours.beside(theirs)), np.zeros(len(ours))
        )
        return theirs, np.where(leaning < 0, -1.0, 1.0)

    def read(self, filters: Filters, spaces: tuple[str, ...]) -> Filters:
        """Filters with their inputs in our order and with our signs."""
        if not spaces:
            return filters
        signs = np.concatenate([self.signs[name] for name in spaces])
        return self._whole(filters, spaces).columns(self._order(spaces), signs.astype(np.float64))

    def _whole(self, filters: Filters, spaces: tuple[str, ...]) -> Filters:
        """Filters that read each copy of a channel as the whole channel: with the sum of the copies' weights.

        Who splits channels chooses the weights of the parts, 5 and -4 times the old ones, say. Which of
        the copies is then taken for ours does not matter.
        """
        if not self.lean or not spaces:
            return filters
        first = self._in_a_row({name: self._first_copies(name) for name in spaces}, spaces)
        return filters if np.array_equal(first, np.arange(len(first))) else filters.summed(first)

    def _first_copies(self, space: str) -> Order:
        """For each of their channels the first with the same filters in all known layers that write it."""
        writers = [link.layer for link in self.topology.links if link.writes == space]
        known = tuple(layer for layer in writers if layer in self.theirs)
        if not known:
            return np.arange(self.widths[space])
        if known not in self._firsts:
            alike = [cosines(self.theirs[layer], self.theirs[layer]) > SAME for layer in known]
            # A filter of zeros resembles nothing, itself neither.
            self._firsts[known] = np.logical_or(np.all(alike, 0), np.eye(len(alike[0]), dtype=bool)).argmax(1)
        return self._firsts[known]

    def _order(self, spaces: tuple[str, ...]) -> Order:
        """The order of several spaces that lie one after the other."""
        return self._in_a_row(self.orders, spaces)

    def _in_a_row(self, orders: Mapping[str, Order], spaces: tuple[str, ...]) -> Order:
        """Orders of spaces as one order of all their channels."""
        widths = self.widths
        starts = np.cumsum([0, *(widths[name] for name in spaces)])
        each = [(orders[name], start) for name, start in zip(spaces, starts, strict=False)]
        return np.concatenate([np.where(order < 0, -1, order + start) for order, start in each])

    def restored(self) -> Restored:
        """Their filters in our order and scale, each with the sign with which it leans to ours.

        By the names of their weights.
        """
        return Restored(self)

    def is_known(self, link: Link) -> bool:
        """Whether the filters of a link, and what they read and write, were found."""
        known = link.writes in self.orders and all(name in self.orders for name in link.reads)
        return link.layer in self.theirs and known

    def result(self) -> Match:
        """The order at the cut, and how sure it is.

        Channel i of a model trained from ours is channel ``order[i]`` of theirs. ``agreement`` is the mean
        cosine of matched filters, about 0 for a model of other origin; ``sure`` counts the channels whose
        partner is twice as similar to them as to any other (in artanh of the cosine, whose error does not
        depend on it). A channel has none (−1) if what is left for it resembles another one more: copies of
        channels in the suspect find no place.
        """
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
            scales=self._scales(),
            gauge=self._gauge(),
            turns=self.turns,
        )

    def _scales(self) -> Floats | None:
        """The suspect's scale of each of our channels at the cut, up to a common factor; None if unknown.

        A layer that reads channels has their inverse scales in its columns. What columns had before is the
        training's and differs little from the start, so that the ratio of the norms shows them. A layer that
        reads through a batch norm of its own shows nothing.
        """
        readers = [
            link
            for link in self.topology.links
            if link.reads == self.topology.at_cut and link.before is None and self.is_known(link)
        ]
        if not readers:
            return None
        scales = np.abs(self.in_order(readers[-1])[0].column_factors)
        return np.where(scales > 0, scales, np.nan)

    def _gauge(self) -> tuple[str, str] | None:
        """The only layer that writes what the cut shows, and its batch norm, if a rectifier lies between."""
        writers = [link for link in self.topology.links if (link.writes,) == self.topology.at_cut]
        if len(writers) != 1 or writers[0].writes in self.topology.linear or writers[0].after is None:
            return None
        return writers[0].layer, writers[0].after


class Restored(Mapping[str, Tensor]):
    """The filters that a search found, by the names of their weights; one is computed when it is asked for.

    All of them at once would take as much memory as the model.
    """

    def __init__(self, search: Search) -> None:
        self._search = search
        self._links = {
            f"{link.layer}.weight": link for link in search.topology.links if search.is_known(link)
        }

    def __getitem__(self, name: str) -> Tensor:
        filters, signs = self._search.in_order(self._links[name])
        shape = self._search.ours[self._links[name].layer].original
        return filters.rows(np.arange(len(filters)), signs).tensor().reshape(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._links)

    def __len__(self) -> int:
        return len(self._links)


def _columns(filters: Filters, link: Link, space: str, sizes: Mapping[str, int]) -> Filters:
    """The columns of a link that read a space, as rows; ``sizes`` are those of all spaces."""
    start = sum(sizes[name] for name in link.reads[: link.reads.index(space)])
    return filters.columns(np.arange(start, start + sizes[space])).swapped()


def filters_in(
    model: nn.Module, topology: HalfTopology, channels: int, *, signed: bool = True
) -> dict[str, Filters]:
    """The filters of all layers, with the signs of the batch norms around them if they are ``signed``."""
    weights = {link.layer: weight_of(model, link.layer) for link in topology.links}
    sizes = {link.writes: len(weights[link.layer]) for link in topology.links} | {IMAGE: channels}
    found = {}
    for link in topology.links:
        filters = Filters.of(weights[link.layer], sum(sizes[name] for name in link.reads))
        if signed and link.after is not None:
            filters = filters.rows(np.arange(filters.shape[0]), _signs(model, link.after))
        if signed and link.before is not None:
            filters = filters.columns(np.arange(filters.shape[1]), _signs(model, link.before))
        found[link.layer] = filters
    return found


def _signs(model: nn.Module, norm: str) -> Floats:
    gamma = weight_of(model, norm).detach().cpu().double().numpy()
    return np.where(gamma < 0, -1.0, 1.0)


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
