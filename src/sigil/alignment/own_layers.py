"""Which layers of a module of one's own share channels: seen while it computes one answer.

A key that states no model draws initial weights for the names of layers, and nothing tells how these belong
together. So the module is watched on one random input: a convolution or linear layer reads the channels of
its input and writes new ones, a sum has the channels of all that it adds, a concatenation one after the
other, and everything else that keeps the number of channels passes them on. So does a flattening, behind
which a linear layer reads several numbers of each. What is not understood takes no part.

The order of channels then follows as for a known model (:mod:`sigil.alignment.initial_weights`), from the
suspect and its initial weights alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sigil.alignment.initial_weights import Search, filters_in
from sigil.eager import Mode
from sigil.errors import AlignmentError
from sigil.models.topology import IMAGE, HalfTopology, Link
from sigil.probing import activations, noise, undisturbed

LAYERS: Final = "layers-"
"""How the model that a key states begins if it is a digest of the layers of a module."""

# Operators behind which a channel may still have the other sign.
_LINEAR = (
    *("add", "sub", "mul", "div", "cat", "mean", "avg_pool", "batch_norm", "clone", "copy", "view"),
    *("reshape", "detach", "to", "contiguous", "pad", "slice", "dropout", "upsample"),
)


def search_own(suspect: nn.Module, initial: nn.Module, shape: Sequence[int]) -> Search:
    """Compare a module with its own layers at the start of the training, under the same names.

    ``shape`` is that of one input. Entries of ``initial`` that are zero decide nothing.
    """
    topology = watched(suspect, shape)
    ours, theirs = (filters_in(module, topology, shape[0]) for module in (initial, suspect))
    return Search(topology, ours, theirs, channels=shape[0]).run()


def has_layers(module: nn.Module, initial: nn.Module) -> bool:
    """Whether a module has the layers of another, under the same names."""
    theirs, ours = ({name: one.shape for name, one in each.named_parameters()} for each in (module, initial))
    return theirs == ours


def layers_of(module: nn.Module, shape: Sequence[int]) -> str:
    """What a key states as its ``model`` if it draws the initial weights of a module of one's own.

    It is a digest of the names and shapes of all layers, of the order in which they compute and, as far as it
    can be seen, of how they share channels, up to the answer of the module: it settles the cut. A key draws
    weights for names. Who could choose these afterwards, layer by layer, would find some that suit any model.
    """
    watch = _watch(module, shape)
    found = watch.topology() or HalfTopology((), (), frozenset(), rectified=False)
    shapes = [(name, list(one.shape)) for name, one in module.named_parameters()]
    links = [list(vars(link).values()) for link in found.links]
    said = [shapes, watch.used, links, found.at_cut, sorted(found.linear), found.rectified]
    return LAYERS + hashlib.sha256(json.dumps(said).encode()).hexdigest()


def watched(module: nn.Module, shape: Sequence[int]) -> HalfTopology:
    """Which layers of a module share channels; raises AlignmentError if nothing leads to its answer."""
    found = _watch(module, shape).topology()
    if found is None:
        raise AlignmentError(
            "It cannot be seen which layers of the module write the channels of its answer: give the "
            "recorded reference instead."
        )
    return found


def _watch(module: nn.Module, shape: Sequence[int]) -> _Watch:
    batch = noise(shape, 1, generator=torch.Generator().manual_seed(0))
    watch = _Watch(module, shape[0])
    hooks = [module.register_forward_pre_hook(watch.begin), module.register_forward_hook(watch.end)]
    try:
        with undisturbed(module, seed=0), watch:
            activations(module, batch)
    finally:
        for hook in hooks:
            hook.remove()
    return watch


class _Watch(Mode):
    """Notes which spaces of channels each tensor of a computation has, and the layers between them."""

    def __init__(self, module: nn.Module, channels: int) -> None:
        super().__init__()
        known = dict(module.named_modules())
        self._sizes = {IMAGE: channels}
        self._layers = {_place(one.weight): name for name, one in known.items() if _is_layer(one)}
        self._norms = {_place(one.weight): name for name, one in known.items() if _is_norm(one)}
        self.used: list[str] = []  # layers in the order in which their weights are first computed with
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
        for one in args:
            layer = self._layers.get(_place(one)) if isinstance(one, Tensor) else None
            if layer is not None and layer not in self.used:
                self.used.append(layer)
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
            self._link(made, args[1], spaces, norm, groups=args[8])
        elif operator in ("addmm", "mm"):
            self._link(made, args[-1].t(), spaces, norm)
        elif operator == "cat":
            dimension = args[1] if len(args) > 1 else 0
            whole = len(known) == len(given) and all(self._is_whole(one, each) for one, each, *_ in known)
            if dimension in (1, 1 - made.ndim) and whole:
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
        elif made.ndim == 2 and made.shape == known[0][0].flatten(1).shape:
            self._note(made, spaces, norm=norm)

    def _is_whole(self, tensor: Tensor, spaces: tuple[str, ...]) -> bool:
        """Whether a tensor has its channels as they are, and not flattened."""
        return tensor.shape[1] == sum(self._sizes[space] for space in spaces)

    def _link(
        self, made: Tensor, weight: Tensor, spaces: tuple[str, ...], norm: str | None, groups: int = 1
    ) -> None:
        layer = self._layers.get(_place(weight))
        if layer is None or layer in self._links:
            return
        self._sizes[layer] = len(weight)
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
        answer, at_cut, _, norm = self._seen[id(self._answer)]
        if not self._is_whole(answer, at_cut):
            return None
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


def _is_layer(layer: nn.Module) -> bool:
    kinds = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear
    return isinstance(layer, kinds) and isinstance(layer._parameters.get("weight"), Tensor)


def _is_norm(layer: nn.Module) -> bool:
    return isinstance(layer, _BatchNorm) and layer.affine and layer.running_var is not None
