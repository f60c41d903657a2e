"""Which layers share channels: what must change together when the channels of a model are reordered.

Channels that have one order in common form a *space*. In a residual network all blocks of a stage add to the
same channels, so each stage is one space; in DenseNet every layer appends a space of its own to those that it
read. A *link* is a layer that reads some spaces and writes one.

Each architecture describes its links once, in ``topology`` beside its rows, and
:data:`sigil.models.spec.ARCHITECTURES` registers it. Alignment follows the links of a client half back to its
initial weights; the permutation attack carries an order through the links of a whole model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

IMAGE = "image"
"""The channels of the images, which come from outside: nobody can reorder red, green and blue."""

LOGITS = "logits"
"""The classes, whose order everybody sees."""


@dataclass(frozen=True)
class Link:
    """A convolution or linear layer: the spaces that it reads, one after the other, and the one it writes.

    ``after`` is the batch norm through which it writes; ``before`` is the batch norm, with a rectifier,
    through which it reads. A depthwise convolution, which passes each channel on by itself, has ``reads``
    empty.
    """

    layer: str
    reads: tuple[str, ...]
    writes: str
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True)
class HalfTopology:
    """The links of a client half in the order of the data, and the spaces whose channels its cut shows.

    The channels of a ``linear`` space may have changed sign, because no rectifier follows; with ``rectified``
    there is one between the linear spaces and the cut, so that signs do not show.
    """

    links: tuple[Link, ...]
    at_cut: tuple[str, ...]
    linear: frozenset[str]
    rectified: bool


@dataclass(frozen=True)
class Topology:
    """The links of a whole architecture in the order of the data, and the spaces that each cut shows.

    ``cuts`` names for every cut point the spaces whose channels lie there, one after the other. No rectifier
    follows a ``linear`` space. A ``bounded`` space has passed ReLU6, whose upper bound moves with no scale:
    its channels can be reordered but not scaled.
    """

    links: tuple[Link, ...]
    cuts: Mapping[str, tuple[str, ...]]
    linear: frozenset[str] = frozenset()
    bounded: frozenset[str] = frozenset()

    def client_half(self, cut: str, rows: Collection[str]) -> HalfTopology:
        """The part that lies in the ``rows`` of a client half, which ends with the row ``cut``."""
        links, linear = [], set(self.linear)
        for link in self.links:
            if not within(link.layer, rows):
                continue
            if link.after is not None and not within(link.after, rows):
                # The cut lies between the layer and its batch norm, so that nothing rectifies it.
                links.append(replace(link, after=None))
                linear.add(link.writes)
            else:
                links.append(link)
        rectified = any(parted(link.layer, link.before, rows) for link in self.links)
        return HalfTopology(tuple(links), self.cuts[cut], frozenset(linear), rectified)

    def sizes(self, model: nn.Module) -> dict[str, int]:
        """How many channels each space has that the layers of ``model`` write."""
        return {link.writes: len(weight_of(model, link.layer)) for link in self.links}


def within(layer: str, rows: Collection[str]) -> bool:
    """Whether a layer, named by its path in the model, lies in one of these rows."""
    return layer.partition(".")[0] in rows


def parted(layer: str, norm: str | None, rows: Collection[str]) -> bool:
    """Whether a cut behind these rows separates a layer from its batch norm."""
    return norm is not None and within(layer, rows) != within(norm, rows)


def weight_of(model: nn.Module, layer: str) -> Tensor:
    """The weights of a layer, (outputs, inputs, …)."""
    weight = model.get_submodule(layer).weight
    assert isinstance(weight, Tensor)
    return weight
