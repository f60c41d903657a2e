"""Permutation: reorder and scale the channels at the cut, and undo it in the layers behind.

Which layers share channels is the architecture's own description (:mod:`sigil.models.topology`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from sigil.attacks.halves import ModelOrHalves, check_not_negative, cut_of, same_kind, whole_copy
from sigil.errors import AttackError
from sigil.models import Model
from sigil.models.building import rows_of
from sigil.models.spec import channel_topology, check_cut
from sigil.models.topology import Link, Topology, parted, weight_of
from sigil.seeds import generator


def permute(
    model: ModelOrHalves,
    *,
    cut: str | None = None,
    seed: int = 0,
    permutation: bool = True,
    scale: float = 0.5,
) -> ModelOrHalves:
    """Reorder the channels at the cut at random and scale each by a random positive number.

    Every layer that writes to these channels or reads from them changes with them (all blocks of a residual
    stage, every layer of a dense block), so the copy computes the same function as the model while its
    activation at the cut looks different: the paper's first limitation.

    ``scale`` is the deviation σ of the scales' logarithm, exp(σ·N(0, 1)); 0 scales nothing. The default of
    0.5, most scales between 0.4 and 2.7, is the trial's that showed the attack. ``permutation=False`` only
    scales. ``cut`` is none where the halves meet, or for a whole model the paper's cut.

    Two places are narrower. Behind ReLU6 (``mobilenetv2`` at ``conv1``, ``conv2``, ``avgpool`` and
    ``flatten``) a scale would move the bound, so channels are only reordered. In ``densenet121`` a channel
    must stay among those of the layer that writes it, because earlier layers cannot read it.

    A client half alone cannot be disguised: the layer behind the cut must change too.
    """
    check_not_negative("deviation of the scales", scale)
    cut = cut_of(model, cut)
    attacked = whole_copy(model)
    order, factors = _draw(attacked, cut, seed, permutation, scale)
    disguise(attacked, cut, order=order, scale=factors)
    return same_kind(attacked, model)


def _draw(model: Model, cut: str, seed: int, permutation: bool, sigma: float) -> tuple[Tensor, Tensor]:
    """An order and scales for the channels at a cut, (C,) each, as far as their spaces allow."""
    bounded = channel_topology(model.spec).bounded
    random = generator(seed, "attack", "permute")
    orders, factors, start = [], [], 0
    for space, size in spaces_at(model, cut).items():
        shuffled = torch.randperm(size, generator=random)
        normal = torch.randn(size, generator=random, dtype=torch.float64)
        orders.append(start + (shuffled if permutation else torch.arange(size)))
        factors.append(torch.ones_like(normal) if space in bounded else torch.exp(sigma * normal))
        start += size
    return torch.cat(orders), torch.cat(factors)


def spaces_at(model: Model, cut: str) -> dict[str, int]:
    """The spaces whose channels lie at a cut, in their order there, and how many channels each has.

    Any order of the channels is possible within a space, and none across: in DenseNet a channel must stay
    among those that the same layer writes, because the layers before it cannot read it.
    """
    check_cut(model.spec.name, cut)
    topology = channel_topology(model.spec)
    sizes = topology.sizes(model)
    return {space: sizes[space] for space in topology.cuts[cut]}


def disguise(model: Model, cut: str, *, order: Tensor, scale: Tensor) -> None:
    """Reorder and scale the channels at a cut, in place, so that the outputs of the model stay the same.

    Afterwards channel c of the activation at the cut is ``scale[c]`` times what channel ``order[c]`` was.
    ``order`` (C,) is a permutation of the channels at the cut that keeps to their spaces, ``scale`` (C,) is
    float64: positive, but for channels that no rectifier follows. Outputs stay the same in evaluation mode.
    """
    spaces = list(spaces_at(model, cut))
    rows = rows_of(replace(model.spec, part="client", cut=cut))
    disguise_spaces(model, spaces, order=order, scale=scale, rows=rows)


@torch.no_grad()
def disguise_spaces(
    model: Model, spaces: Sequence[str], *, order: Tensor, scale: Tensor, rows: Collection[str] = ()
) -> None:
    """The same for the channels of ``spaces``, one after the other, wherever they are in a whole model.

    ``rows`` are those up to the cut. Where it separates a layer from its batch norm, the scale lies between
    the two; otherwise it lies behind the norms of the layers that write and before those that read.
    """
    topology = channel_topology(model.spec)
    change = _Change(model, topology, spaces, order, scale)
    here = [
        link
        for link in topology.links
        if link.writes in change.orders or change.orders.keys() & link.reads
        if parted(link.layer, link.after, rows) or parted(link.layer, link.before, rows)
    ]
    for link in topology.links:
        if link.writes in change.orders:
            change.write(link, between=link in here, outside=not here)
        if change.orders.keys() & link.reads:
            change.read(link, between=link in here, outside=not here)


class _Change:
    """The new order and scale of some spaces, and how the layers that write and read them take them up."""

    def __init__(
        self, model: Model, topology: Topology, spaces: Sequence[str], order: Tensor, scale: Tensor
    ) -> None:
        self.model = model
        self.sizes = topology.sizes(model)
        self.orders: dict[str, Tensor] = {}
        self.scales: dict[str, Tensor] = {}
        start = 0
        for space in spaces:
            part = slice(start, start + self.sizes[space])
            self.orders[space], self.scales[space] = order[part] - start, scale[part]
            start = part.stop
            if space in topology.bounded and bool((scale[part] != 1).any()):
                raise AttackError(
                    f"The channels of {space!r} have passed ReLU6, whose bound moves with no scale; "
                    "only reorder them."
                )

    def write(self, link: Link, *, between: bool, outside: bool) -> None:
        """Outputs in the new order; the scale lies between layer and norm, outside of both, or elsewhere."""
        index, factor = self.orders[link.writes], self.scales[link.writes]
        unscaled = torch.ones_like(factor)
        directly = between or (outside and link.after is None)
        layer = self.model.get_submodule(link.layer)
        for value in (layer.weight, layer.bias):
            if isinstance(value, Tensor):
                _rewrite(value, value[index], factor if directly else unscaled)
        if link.after is not None:
            norm = self.model.get_submodule(link.after)
            _renormalise(norm, index, factor if between else unscaled, factor if outside else unscaled)

    def read(self, link: Link, *, between: bool, outside: bool) -> None:
        """Inputs in the new order; the scale lies between norm and layer, outside of both, or elsewhere."""
        orders, factors, start = [], [], 0
        for space in link.reads:
            size = self.sizes[space]
            orders.append(start + self.orders.get(space, torch.arange(size)))
            factors.append(self.scales.get(space, torch.ones(size, dtype=torch.float64)))
            start += size
        index, factor = torch.cat(orders), torch.cat(factors)
        unscaled = torch.ones_like(factor)
        directly = between or (outside and link.before is None)
        weight = weight_of(self.model, link.layer)
        _rewrite(weight, weight[:, index], 1 / (factor if directly else unscaled), axis=1)
        if link.before is not None:
            norm = self.model.get_submodule(link.before)
            _renormalise(norm, index, factor if outside else unscaled, factor if between else unscaled)


def _renormalise(norm: nn.Module, index: Tensor, read: Tensor, written: Tensor) -> None:
    """A batch norm whose inputs were scaled by ``read`` and whose outputs shall be scaled by ``written``.

    γ (x − μ)/√(σ² + ε): with x, μ and σ all times s the ε is in the way, so γ also takes
    √(s²σ² + ε) / (s √(σ² + ε)), which is 1 but for ε.
    """
    assert isinstance(norm, nn.BatchNorm2d)
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None
    assert variance is not None
    old = variance[index].double()
    correction = (read.square() * old + norm.eps).sqrt() / (read * (old + norm.eps).sqrt())
    _rewrite(norm.weight, norm.weight[index], written * correction)
    _rewrite(norm.bias, norm.bias[index], written)
    _rewrite(mean, mean[index], read)
    _rewrite(variance, variance[index], read.square())


def _rewrite(target: Tensor, values: Tensor, factor: Tensor, *, axis: int = 0) -> None:
    """target = values · factor along an axis, computed in float64."""
    shape = [1] * values.ndim
    shape[axis] = -1
    target.copy_(values.double() * factor.view(shape))
