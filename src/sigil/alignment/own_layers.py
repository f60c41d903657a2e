"""Which layers of a module of one's own share channels: seen while it computes one answer.

A key that states no model draws initial weights for the names of layers, and nothing tells how these belong
together. So the module is watched on one random input: a convolution reads the channels of its input and
writes new ones, a sum has the channels of all that it adds, a concatenation one after the other, and
everything else that keeps the number of channels passes them on. What is not understood, as a layer behind a
flattening, takes no part.

The order of channels then follows as for a known model (:mod:`sigil.alignment.initial_weights`), from the
suspect and its initial weights alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sigil.alignment.initial_weights import Search, signed_filters
from sigil.errors import AlignmentError
from sigil.models.topology import IMAGE, HalfTopology, Link
from sigil.probing import activations, noise, undisturbed

# Operators behind which a channel may still have the other sign.
_LINEAR = (
    *("add", "sub", "mul", "div", "cat", "mean", "avg_pool", "batch_norm", "clone", "copy", "view"),
    *("reshape", "detach", "to", "contiguous", "pad", "slice", "dropout", "upsample"),
)


def search_own(suspect: nn.Module, initial: nn.Module, shape: Sequence[int]) -> Search:
    """Compare a module with its own layers at the start of the training, under the same names.

    ``shape`` is that of one input. Entries of ``initial`` that are zero decide nothing.
    """
    topology = _watched(suspect, shape)
    ours, theirs = (
        {link.layer: signed_filters(module, link) for link in topology.links} for module in (initial, suspect)
    )
    return Search(topology, ours, theirs, channels=shape[0]).run()


def _watched(module: nn.Module, shape: Sequence[int]) -> HalfTopology:
    """Which layers of a module share channels; raises AlignmentError if nothing leads to its answer."""
    batch = noise(shape, 1, generator=torch.Generator().manual_seed(0))
    watch = _Watch(module)
    hooks = [module.register_forward_pre_hook(watch.begin), module.register_forward_hook(watch.end)]
    try:
        with undisturbed(module, seed=0), watch:
            activations(module, batch)
    finally:
        for hook in hooks:
            hook.remove()
    found = watch.topology()
    if found is None:
        raise AlignmentError(
            "It cannot be seen which convolutions of the module write the channels of its answer: give the "
            "recorded reference instead."
        )
    return found


class _Watch(TorchDispatchMode):
    """Notes which spaces of channels each tensor of a computation has, and the convolutions between them."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        known = dict(module.named_modules())
        self._convolutions = {_place(one.weight): name for name, one in known.items() if _is_convolution(one)}
        self._norms = {_place(one.weight): name for name, one in known.items() if _is_norm(one)}
        self._links: dict[str, Link] = {}
        self._same: dict[str, str] = {}
        self._rectified: set[str] = set()
        # By the number of a tensor: itself, or another could get the number; its spaces; the layer that wrote
        # it, if nothing is between; and the batch norm through which it is read.
        self._seen: dict[int, tuple[Tensor, tuple[str, ...], str | None, str | None]] = {}
        self._answer: Tensor | None = None

    def begin(self, module: nn.Module, images: tuple[Any, ...]) -> None:
        """Take up the input."""
        if images and isinstance(images[0], Tensor):
            self._note(images[0], (IMAGE,))

    def end(self, module: nn.Module, images: tuple[Any, ...], answer: Any) -> None:
        """Take up the answer."""
        self._answer = answer if isinstance(answer, Tensor) else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        made = out[0] if isinstance(out, tuple | list) and out else out
        operator = str(func.overloadpacket.__name__)
        if isinstance(made, Tensor):
            self._step(operator, list(args), made)
        return out

    def _step(self, operator: str, args: list[Any], made: Tensor) -> None:
        given = args[0] if args and isinstance(args[0], tuple | list) else args
        known = [self._seen[id(one)] for one in given if isinstance(one, Tensor) and id(one) in self._seen]
        if not known:
            return
        _, spaces, writer, norm = known[0]
        if operator == "convolution":
            self._convolve(made, args[1], spaces, norm, groups=args[8])
        elif operator == "cat":
            dimension = args[1] if len(args) > 1 else 0
            if dimension in (1, 1 - made.ndim) and len(known) == len(given):
                self._note(made, tuple(space for _, each, _, _ in known for space in each))
        elif made.ndim > 1 and all(one.shape[1] == made.shape[1] for one, *_ in known):
            if "batch_norm" in operator:
                found = self._norms.get(_place(args[1])) if isinstance(args[1], Tensor) else None
                if writer is not None:
                    self._links[writer] = replace(self._links[writer], after=found)
                else:
                    norm = found
            for _, others, _, _ in known[1:]:
                self._unite(spaces, others)
            if norm is None and not any(word in operator for word in _LINEAR):
                self._rectified.update(spaces)
            self._note(made, spaces, norm=norm)

    def _convolve(
        self, made: Tensor, weight: Tensor, spaces: tuple[str, ...], norm: str | None, groups: int
    ) -> None:
        layer = self._convolutions.get(_place(weight))
        if layer is None or layer in self._links:
            return
        if groups == 1:
            self._links[layer] = Link(layer, spaces, layer, before=norm)
            self._note(made, (layer,), layer)
        elif groups == len(weight) and weight.shape[1] == 1 and len(spaces) == 1:
            self._links[layer] = Link(layer, (), spaces[0], before=norm)
            self._note(made, spaces, layer)

    def _note(
        self, tensor: Tensor, spaces: tuple[str, ...], writer: str | None = None, norm: str | None = None
    ) -> None:
        self._seen[id(tensor)] = (tensor, spaces, writer, norm)

    def _unite(self, spaces: tuple[str, ...], others: tuple[str, ...]) -> None:
        """Channels that are added are the same."""
        for one, other in zip(spaces, others, strict=False) if len(spaces) == len(others) else ():
            first, second = self._root(one), self._root(other)
            if first != second:
                kept = first if second != IMAGE else second
                self._same[second if kept == first else first] = kept

    def _root(self, space: str) -> str:
        while space in self._same:
            space = self._same[space]
        return space

    def topology(self) -> HalfTopology | None:
        """The layers that share channels; None if nothing is known of the answer's."""
        if self._answer is None or id(self._answer) not in self._seen:
            return None
        _, at_cut, _, norm = self._seen[id(self._answer)]
        links = tuple(
            replace(link, reads=tuple(map(self._root, link.reads)), writes=self._root(link.writes))
            for link in self._links.values()
        )
        written = {link.writes for link in links}
        rectified = {self._root(space) for space in self._rectified}
        spaces = tuple(map(self._root, at_cut))
        if not written.issuperset(spaces):
            return None
        return HalfTopology(links, spaces, frozenset(written - rectified), rectified=norm is not None)


def _place(tensor: Tensor) -> tuple[int, tuple[int, ...]]:
    return tensor.data_ptr(), tuple(tensor.shape)


def _is_convolution(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Conv2d) and isinstance(layer._parameters.get("weight"), Tensor)


def _is_norm(layer: nn.Module) -> bool:
    return isinstance(layer, nn.BatchNorm2d) and layer.affine and layer.running_var is not None
