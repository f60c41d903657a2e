"""Follow the channels of a suspect back to the initial weights of a training, layer by layer.

A trained filter still resembles the random one that it began as, and no other: random vectors of many numbers
are almost orthogonal. So whoever knows the initial weights of a training, which follow from its seed, can
tell which channel of a suspect is which, without any image and without having seen the trained model.

The initial weights were drawn without the key. An order that follows from them and from the suspect alone is
therefore as independent of the key as the suspect itself, and the test that follows is exact.

Channels that share an order form a *space* (all blocks of a residual stage add to one); a *link* is a
convolution that reads some spaces and writes one. Going through the spaces from the images to the cut and
round again, each is matched by all of its links whose other side is already in order.

A filter and the scale γ of its batch norm can change sign together without any effect, so filters are taken
times the sign of γ. Where no rectifier follows, a whole channel can change sign; such spaces are *linear*,
and the sign is found with the order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from sigil import models
from sigil.errors import AlignmentError
from sigil.matching import FEWEST, Floats, Match, Order
from sigil.models import Model
from sigil.models.densenet121 import BLOCKS
from sigil.models.mobilenetv2 import GROUPS

PASSES = 3
CLEAR = 2.0  # how many times more similar than to any other
SURE = 0.75  # the share of channels with a partner that must be sure; between unrelated models none is
IMAGE = "image"


@dataclass(frozen=True)
class Link:
    """A convolution: the spaces that it reads, one after the other, and the one that it writes.

    ``before`` and ``after`` are the batch norms around it. A depthwise convolution, which reads each channel
    by itself, has ``reads`` empty.
    """

    layer: str
    reads: tuple[str, ...]
    writes: str
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True)
class Layout:
    """The links of a client half in the order of the data, the spaces at its end, and the linear ones.

    ``rectified`` means that a rectifier stands between linear spaces and the cut, so that signs do not show.
    """

    links: list[Link]
    at_cut: tuple[str, ...]
    linear: frozenset[str] = frozenset()
    rectified: bool = False


def trace(half: Model, initial: Model) -> Match:
    """Find the order of the channels at the cut of ``half`` by the weights of ``initial``.

    ``half`` is a client half, ``initial`` the client half or the whole model at the start of the training.
    Channel i of a model trained from ``initial`` is channel ``order[i]`` of ``half``. ``agreement`` is the
    mean cosine of matched filters, about 0 for a model of other origin; ``sure`` counts the channels at the
    cut whose partner is twice as similar to them as to any other (in artanh of the cosine, whose error does
    not depend on it). A channel has none (−1) if what is left for it resembles another one more: copies of
    channels in the suspect find no place.
    """
    initial = _fitting(half, initial)
    layout = _layout(half)
    tracer = _Tracer(layout, ours=initial, theirs=half)
    for _ in range(PASSES):
        for space in dict.fromkeys(link.writes for link in layout.links):
            tracer.match(space)
    return tracer.result()


class _Tracer:
    """The orders and signs found so far, and how to find more."""

    def __init__(self, layout: Layout, *, ours: Model, theirs: Model) -> None:
        self.layout = layout
        self.ours, self.theirs = (
            {link.layer: _weights(model, link) for link in layout.links} for model in (ours, theirs)
        )
        self.sizes = {link.writes: len(self.ours[link.layer]) for link in layout.links}
        self.sizes[IMAGE] = ours.spec.channels
        # Nobody can reorder red, green and blue: they come from outside.
        self.orders: dict[str, Order] = {IMAGE: np.arange(self.sizes[IMAGE])}
        self.signs: dict[str, Order] = {IMAGE: np.ones(self.sizes[IMAGE], np.int64)}

    def match(self, space: str) -> None:
        likeness = self.likeness(space)
        order = np.asarray(linear_sum_assignment(np.abs(likeness), maximize=True)[1], np.int64)
        self.orders[space] = order
        self.signs[space] = np.where(likeness[np.arange(len(order)), order] < 0, -1, 1)

    def likeness(self, space: str) -> Floats:
        """Cosines of all filters of a space with all, each link weighted by its numbers a filter.

        That is the weight of a link in the likelihood: ten numbers say ten times as much as one. Behind a
        rectifier a sign is that of a γ alone, which may have crossed zero in training, and does not count.
        """
        total, numbers = np.zeros((self.sizes[space],) * 2), 0
        for link in self.layout.links:
            for ours, theirs in self._filters(link, space):
                count = ours[0].size
                cosines = _unit(ours) @ _unit(theirs).T
                total += count * (cosines if space in self.layout.linear else np.abs(cosines))
                numbers += count
        return total / numbers

    def _filters(self, link: Link, space: str) -> list[tuple[Floats, Floats]]:
        """Our and their filters of a link for each channel of a space, as far as the rest is in order."""
        ours, theirs = self.ours[link.layer], self.theirs[link.layer]
        found = []
        if link.writes == space and all(name in self.orders for name in link.reads):
            found.append((ours, self._read(theirs, link.reads)))
        if space in link.reads and link.writes in self.orders and link.writes != space:
            start = sum(self.sizes[name] for name in link.reads[: link.reads.index(space)])
            part = slice(start, start + self.sizes[space])
            written = theirs[self.orders[link.writes]] * self.signs[link.writes][:, None, None, None]
            found.append((ours[:, part].swapaxes(0, 1), written[:, part].swapaxes(0, 1)))
        return found

    def _read(self, filters: Floats, spaces: tuple[str, ...]) -> Floats:
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
        at_cut = self.layout.at_cut
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
            signs=np.ones_like(signs) if self.layout.rectified else signs,
        )


def _weights(model: Model, link: Link) -> Floats:
    layer = model.get_submodule(link.layer)
    assert isinstance(layer, nn.Conv2d)
    found: Floats = layer.weight.detach().double().cpu().numpy()
    for norm, shape in ((link.after, (-1, 1, 1, 1)), (link.before, (1, -1, 1, 1))):
        if norm is not None:
            gamma = model.get_submodule(norm).weight
            assert isinstance(gamma, Tensor)
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


def _layout(half: Model) -> Layout:
    rows = {name for name, _ in half.named_children()}
    match half.spec.name:
        case "resnet18":
            return _resnet18(rows)
        case "vgg11":
            return _vgg11(half)
        case "mobilenetv2":
            return _mobilenetv2(half, rows)
        case _:
            return _densenet121(rows)


def _resnet18(rows: set[str]) -> Layout:
    """One space a stage, and one inside each block; only before ``bn1`` is one linear."""
    if "bn1" not in rows:
        return Layout([Link("conv1", (IMAGE,), "conv1")], ("conv1",), frozenset({"conv1"}))
    links, space = [Link("conv1", (IMAGE,), "layer1", after="bn1")], "layer1"
    for stage in ("layer1", "layer2", "layer3", "layer4"):
        if stage not in rows:
            break
        for block in (f"{stage}.0", f"{stage}.1"):
            links.append(Link(f"{block}.conv1", (space,), block, after=f"{block}.bn1"))
            links.append(Link(f"{block}.conv2", (block,), stage, after=f"{block}.bn2"))
            if space != stage:
                shortcut = f"{block}.downsample"
                links.append(Link(f"{shortcut}.0", (space,), stage, after=f"{shortcut}.1"))
            space = stage
    return Layout(links, (space,))


def _vgg11(half: Model) -> Layout:
    """Every convolution reads what the one before it wrote, through batch norm and rectifier."""
    links, space = [], IMAGE
    for name, layer in half.named_modules():
        if isinstance(layer, nn.Conv2d):
            stage, _, index = name.partition(".")
            links.append(Link(name, (space,), name, after=f"{stage}.{int(index) + 1}"))
            space = name
    return Layout(links, (space,))


def _mobilenetv2(half: Model, rows: set[str]) -> Layout:
    """Blocks add to one linear space as long as shapes allow; the widened channels inside are another."""

    def link(name: str, reads: tuple[str, ...], writes: str) -> Link:
        return Link(f"{name}.conv", reads, writes, after=f"{name}.norm")

    links, space = [link("conv1", (IMAGE,), "conv1")], "conv1"
    linear = set()
    for number, (expansion, _, repetitions, _) in enumerate(GROUPS, start=1):
        if f"group{number}" not in rows:
            break
        for index in range(repetitions):
            block = f"group{number}.{index}"
            inside = space
            if expansion > 1:
                inside = f"{block} inside"
                links.append(link(f"{block}.expand", (space,), inside))
            links.append(link(f"{block}.depthwise", (), inside))
            if not half.get_submodule(block).residual:
                space = block
                linear.add(space)
            links.append(link(f"{block}.project", (inside,), space))
    if "conv2" in rows:
        links.append(link("conv2", (space,), "conv2"))
        space = "conv2"
    return Layout(links, (space,), frozenset(linear))


def _densenet121(rows: set[str]) -> Layout:
    """Each layer reads all spaces of its block so far, through a norm, and appends a linear one."""
    links = [Link("conv_initial.conv", (IMAGE,), "conv_initial", after="conv_initial.norm")]
    spaces: tuple[str, ...] = ("conv_initial",)
    for number, layers in enumerate(BLOCKS, start=1):
        if f"block{number}" not in rows:
            break
        for index in range(layers):
            layer = f"block{number}.{index}"
            inside = f"{layer} inside"
            links.append(
                Link(f"{layer}.conv1", spaces, inside, before=f"{layer}.norm1", after=f"{layer}.norm2")
            )
            links.append(Link(f"{layer}.conv2", (inside,), layer))
            spaces = (*spaces, layer)
        if f"trans{number}" in rows:
            links.append(Link(f"trans{number}.conv", spaces, f"trans{number}", before=f"trans{number}.norm"))
            spaces = (f"trans{number}",)
    linear = frozenset(link.writes for link in links if link.after is None)
    return Layout(links, spaces, linear, rectified="norm_final" in rows)
