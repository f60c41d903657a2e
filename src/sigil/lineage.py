"""Follow the channels of a suspect back to the initial weights of a training, layer by layer.

A trained filter still resembles the random one that it began as, and no other: random vectors of many numbers
are almost orthogonal. So whoever knows the initial weights of a training, which follow from its seed, can
tell which channel of a suspect is which, without any image and without having seen the trained model.

The initial weights were drawn without the key. An order that follows from them and from the suspect alone is
therefore as independent of the key as the suspect itself, and the test that follows is exact.

Channels that share an order form a *space* (all blocks of a residual stage add to one); a *link* is a
convolution that reads some spaces and writes one. Going through the spaces from the images to the cut and
round again, each is matched by all of its links whose other side is already in order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment
from torch import nn

from sigil import models
from sigil.errors import AlignmentError
from sigil.matching import Floats, Match, Order
from sigil.models import Model
from sigil.models.densenet121 import BLOCKS
from sigil.models.mobilenetv2 import GROUPS

PASSES = 3
CLEAR = 2.0  # how many times more similar than to any other
IMAGE = "image"


@dataclass(frozen=True)
class Link:
    """A convolution: the spaces that it reads, one after the other, and the one that it writes.

    A depthwise convolution, which reads each channel by itself, has ``reads`` empty.
    """

    layer: str
    reads: tuple[str, ...]
    writes: str


def trace(half: Model, initial: Model) -> Match:
    """Find the order of the channels at the cut of ``half`` by the weights of ``initial``.

    ``half`` is a client half, ``initial`` the client half or the whole model at the start of the training.
    Channel i of a model trained from ``initial`` is channel ``order[i]`` of ``half``. ``agreement`` is the
    mean cosine of matched filters, about 0 for a model of other origin; ``sure`` counts the channels at the
    cut whose partner is twice as similar to them as to any other. A channel has none (−1) if what is left for
    it resembles another one more: copies of channels in the suspect find no place.
    """
    initial = _fitting(half, initial)
    links, at_cut = _links(half)
    ours, theirs = ({link.layer: _weights(some, link.layer) for link in links} for some in (initial, half))
    sizes = {link.writes: len(ours[link.layer]) for link in links}
    sizes[IMAGE] = half.spec.channels
    tracer = _Tracer(links, ours, theirs, sizes)
    for _ in range(PASSES):
        for space in dict.fromkeys(link.writes for link in links):
            tracer.match(space)
    return tracer.result(at_cut)


class _Tracer:
    """The orders found so far, and how to find one more."""

    def __init__(
        self, links: list[Link], ours: dict[str, Floats], theirs: dict[str, Floats], sizes: dict[str, int]
    ) -> None:
        self.links, self.ours, self.theirs, self.sizes = links, ours, theirs, sizes
        # Nobody can reorder red, green and blue: they come from outside.
        self.orders: dict[str, Order] = {IMAGE: np.arange(sizes[IMAGE])}

    def match(self, space: str) -> None:
        likeness = self.likeness(space)
        self.orders[space] = np.asarray(linear_sum_assignment(likeness, maximize=True)[1], np.int64)

    def likeness(self, space: str) -> Floats:
        """Cosines of all filters of a space with all, each link weighted by its numbers a filter.

        That is the weight of a link in the likelihood: ten numbers say ten times as much as one.
        """
        total, numbers = np.zeros((self.sizes[space],) * 2), 0
        for link in self.links:
            for ours, theirs in self._filters(link, space):
                count = ours[0].size
                total += count * (_unit(ours) @ _unit(theirs).T)
                numbers += count
        return total / numbers

    def _filters(self, link: Link, space: str) -> list[tuple[Floats, Floats]]:
        """Our and their filters of a link for each channel of a space, as far as the rest is in order."""
        ours, theirs = self.ours[link.layer], self.theirs[link.layer]
        found = []
        if link.writes == space and all(name in self.orders for name in link.reads):
            found.append((ours, theirs[:, self._order(link.reads)] if link.reads else theirs))
        if space in link.reads and link.writes in self.orders and link.writes != space:
            start = sum(self.sizes[name] for name in link.reads[: link.reads.index(space)])
            part = slice(start, start + self.sizes[space])
            written = self.orders[link.writes]
            found.append((ours[:, part].swapaxes(0, 1), theirs[written][:, part].swapaxes(0, 1)))
        return found

    def _order(self, spaces: tuple[str, ...]) -> Order:
        """The order of several spaces that lie one after the other."""
        starts = np.cumsum([0, *(self.sizes[name] for name in spaces)])
        return np.concatenate(
            [self.orders[name] + start for name, start in zip(spaces, starts, strict=False)]
        )

    def result(self, at_cut: tuple[str, ...]) -> Match:
        order = self._order(at_cut)
        sure, cosines = 0, []
        for space in at_cut:
            likeness = self.likeness(space)
            every, own = np.arange(self.sizes[space]), self.orders[space]
            found = likeness[every, own]
            likeness[every, own] = -1.0
            others = likeness.max(axis=0)[own]
            sure += int((found > np.maximum(0.0, CLEAR * others)).sum())
            cosines.append(np.where(found > others, found, np.nan))
        cosine = np.concatenate(cosines)
        known = np.isfinite(cosine)
        agreement = float(cosine[known].mean()) if known.any() else 0.0
        return Match(np.where(known, order, -1), agreement, sure)


def _weights(model: Model, layer: str) -> Floats:
    found = model.get_submodule(layer)
    assert isinstance(found, nn.Conv2d)
    return found.weight.detach().double().cpu().numpy()


def _unit(filters: Floats) -> Floats:
    rows: npt.NDArray[np.float64] = filters.reshape(len(filters), -1)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12)


def _fitting(half: Model, initial: Model) -> Model:
    if initial.spec.part == "whole" and half.spec.cut is not None:
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


def _links(half: Model) -> tuple[list[Link], tuple[str, ...]]:
    """The links of a client half in the order of the data, and the spaces at its end."""
    rows = {name for name, _ in half.named_children()}
    match half.spec.name:
        case "resnet18":
            return _resnet18(rows)
        case "vgg11":
            return _chain(half)
        case "mobilenetv2":
            return _mobilenetv2(half, rows)
        case _:
            return _densenet121(rows)


def _resnet18(rows: set[str]) -> tuple[list[Link], tuple[str, ...]]:
    """One space a stage, and one inside each block."""
    links, space = [Link("conv1", (IMAGE,), "layer1")], "layer1"
    for stage in ("layer1", "layer2", "layer3", "layer4"):
        if stage not in rows:
            break
        for block in (f"{stage}.0", f"{stage}.1"):
            links.append(Link(f"{block}.conv1", (space,), block))
            links.append(Link(f"{block}.conv2", (block,), stage))
            if space != stage:
                links.append(Link(f"{block}.downsample.0", (space,), stage))
            space = stage
    return links, (space,)


def _chain(half: Model) -> tuple[list[Link], tuple[str, ...]]:
    """Every convolution reads what the one before it wrote."""
    links, space = [], IMAGE
    for name, layer in half.named_modules():
        if isinstance(layer, nn.Conv2d):
            links.append(Link(name, (space,), name))
            space = name
    return links, (space,)


def _mobilenetv2(half: Model, rows: set[str]) -> tuple[list[Link], tuple[str, ...]]:
    """Blocks add to one space as long as shapes allow; the widened channels inside each are one as well."""
    links, space = [Link("conv1.conv", (IMAGE,), "conv1")], "conv1"
    for number, (expansion, _, repetitions, _) in enumerate(GROUPS, start=1):
        if f"group{number}" not in rows:
            break
        for index in range(repetitions):
            block = f"group{number}.{index}"
            inside = space
            if expansion > 1:
                inside = f"{block} inside"
                links.append(Link(f"{block}.expand.conv", (space,), inside))
            links.append(Link(f"{block}.depthwise.conv", (), inside))
            if not half.get_submodule(block).residual:
                space = block
            links.append(Link(f"{block}.project.conv", (inside,), space))
    if "conv2" in rows:
        links.append(Link("conv2.conv", (space,), "conv2"))
        space = "conv2"
    return links, (space,)


def _densenet121(rows: set[str]) -> tuple[list[Link], tuple[str, ...]]:
    """Each layer reads all spaces of its block so far and appends one of its own."""
    links = [Link("conv_initial.conv", (IMAGE,), "conv_initial")]
    spaces: tuple[str, ...] = ("conv_initial",)
    for number, layers in enumerate(BLOCKS, start=1):
        if f"block{number}" not in rows:
            break
        for index in range(layers):
            layer = f"block{number}.{index}"
            links.append(Link(f"{layer}.conv1", spaces, f"{layer} inside"))
            links.append(Link(f"{layer}.conv2", (f"{layer} inside",), layer))
            spaces = (*spaces, layer)
        if f"trans{number}" in rows:
            links.append(Link(f"trans{number}.conv", spaces, f"trans{number}"))
            spaces = (f"trans{number}",)
    return links, spaces
