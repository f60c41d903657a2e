"""Put the channels of a suspect back: which is which, and at which scale."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sigil import models
from sigil.alignment.correlations import (
    CONSTANT,
    FEWEST,
    Floats,
    Match,
    correlation_matrix,
    match_by_correlations,
    turned,
)
from sigil.alignment.initial_weights import search_known
from sigil.alignment.own_layers import has_layers, search_own
from sigil.alignment.references import Reference, check_channels, fingerprint
from sigil.alignment.unknown_layers import search_unknown
from sigil.errors import AlignmentError, ShapeError
from sigil.models import Model
from sigil.probing import (
    Suspect,
    activations,
    check_finite,
    filters_of,
    input_shape_of,
    module_of,
    noise,
    undisturbed,
)

NOISE_INPUTS = 1_024
"""Random inputs from which the order is found where there are no images."""

MIN_PROBES = 32
"""Fewer images say too little about correlations."""

MOST_ABOVE = 8.0
"""How many times as much as the usual channel one may vary once its scale was undone."""

# Channels that vary together this closely are one channel and its copies.
_COPY = 0.9999

Probes = Tensor | npt.NDArray[np.uint8] | npt.NDArray[np.float32]


class Spread:
    """The standard deviation of each channel over all probes and positions, what is not finite left out.

    It is a function of the suspect's activations alone, so dividing by it moves no p-value.
    """

    def __init__(self) -> None:
        self._count = self._sum = self._squares = torch.zeros(())

    def add(self, activation: Tensor) -> None:
        """Take up activations (n, C, …)."""
        known = activation.isfinite()
        values = torch.where(known, activation.double(), 0.0)
        others = [0, *range(2, activation.ndim)]
        self._count = self._count + known.sum(others)
        self._sum = self._sum + values.sum(others)
        self._squares = self._squares + values.square().sum(others)

    @property
    def deviations(self) -> Tensor:
        """One number per channel, (C,); 0 where it is constant but for rounding."""
        count = self._count.clamp_min(1)
        size = self._squares / count
        variance = size - (self._sum / count).square()
        return torch.where(variance > CONSTANT**2 * size, variance, 0.0).sqrt()


@dataclass(frozen=True, kw_only=True)
class Alignment(Match):
    """How to put a suspect's channels back; ``source`` and ``fingerprint`` say what was compared."""

    source: str
    fingerprint: str

    def __call__(self, activation: Tensor, deviations: Tensor | None = None) -> Tensor:
        """Activations (n, C′, …) of the suspect, in the owner's order and at unit scale, (n, C, …).

        Each channel is divided by its scale or, where that is not known, by its own one of ``deviations``
        (C′,), which are those of these activations if none are given. A channel that is constant is zero.
        """
        if deviations is None:
            spread = Spread()
            spread.add(activation)
            deviations = spread.deviations
        for turn in self.turns if activation.ndim == 4 else ():
            activation = turned(activation, turn)
        order = torch.from_numpy(self.order)
        sizes = torch.where(order < 0, 0.0, deviations[order])
        divisors = self._divisors(sizes) * (1 if self.signs is None else torch.from_numpy(self.signs))
        shape = (-1, *[1] * (activation.ndim - 2))
        return (activation[:, order].double() / divisors.view(shape)).to(activation.dtype)

    @torch.no_grad()
    def deviations(self, suspect: Suspect, batches: Iterable[Tensor]) -> Tensor:
        """The standard deviation of each of the suspect's channels over all inputs, (C′,).

        It is taken in front of the last rectifier if that is known, where a batch norm sets it: behind, it
        also depends on how often a channel responds.
        """
        spread, module = Spread(), module_of(suspect)
        hook, factor = None, torch.ones(())
        if self.gauge is not None and module is not None:
            layer, norm = (module.get_submodule(name) for name in self.gauge)
            assert isinstance(norm, _BatchNorm)
            assert norm.running_var is not None
            factor = norm.weight.abs().double().cpu() / (norm.running_var.double().cpu() + norm.eps).sqrt()
            hook = layer.register_forward_hook(lambda *seen: spread.add(seen[2].detach().cpu()))
        try:
            with undisturbed(suspect, seed=0):
                for batch in batches:
                    activation = activations(suspect, batch)
                    if hook is None:
                        spread.add(activation)
        finally:
            if hook is not None:
                hook.remove()
        return spread.deviations * factor

    def _divisors(self, sizes: Tensor) -> Tensor:
        """What to divide each channel by, given their deviations in the owner's order; infinite for zero."""
        wanted = sizes.clone()
        if self.scales is not None:
            scales = torch.from_numpy(self.scales)
            known = scales.isfinite() & (sizes > 0)
            if known.any():
                # Of a channel that hardly responds its columns say nothing, and may say anything.
                usual = float((sizes / scales)[known].median())
                wanted /= usual
                wanted = torch.where(known, torch.maximum(scales, wanted / MOST_ABOVE), wanted)
        return torch.where(sizes > 0, wanted, torch.inf)


def align(
    suspect: Suspect,
    reference: Reference | nn.Module,
    probes: Probes | None = None,
    *,
    input_shape: Sequence[int] | None = None,
    batch_size: int = 64,
) -> Alignment:
    """Find out which channel of ``suspect`` is which.

    With a :class:`Reference`, any suspect will do: activations are all that is asked for. ``probes`` are
    images of the kind that the model was trained on, (n, *input shape), 200 or more; floats are taken as they
    are, uint8 is normalised by the images' own moments. Without probes random inputs are used, which is
    enough for many models and not for all.

    With the model or client half at the start of the training as reference no probes are needed. A suspect
    that is none of :mod:`sigil.models`, or has other numbers of channels, is compared by its filters alone
    (:mod:`sigil.alignment.unknown_layers`), if it shows them. Of a module of one's own, the reference is the
    same module with its initial weights.

    An alignment that is not ``believed`` should not be used: the suspect does not resemble the owner's model.
    """
    shape = input_shape_of(suspect, input_shape)
    if not isinstance(reference, Reference):
        if probes is not None:
            raise AlignmentError("Initial weights are compared with weights: leave the probe images out.")
        found, source = _by_initial_weights(suspect, reference, shape), "initial weights"
    else:
        check_channels(reference.shape)
        if probes is None:
            batches, source = _noise_batches(shape, NOISE_INPUTS, batch_size), "correlations under noise"
        else:
            batches, source = _image_batches(probes, shape, batch_size), "correlations under images"
        correlation = _correlations(suspect, batches, expected=reference.shape)
        found = _by_correlation(correlation, reference.correlation)
    return Alignment(**vars(found), source=source, fingerprint=fingerprint(reference))


def _by_initial_weights(suspect: Suspect, reference: nn.Module, shape: tuple[int, ...]) -> Match:
    """Layer by layer where the suspect is of Sigil's models or the reference's, else by its filters alone."""
    module = module_of(suspect)
    if isinstance(module, Model):
        check_channels(models.activation_shape(module, shape))
    if isinstance(reference, Model):
        if isinstance(module, Model) and not _is_widened(module, reference):
            return search_known(module, reference).result()
    elif module is not None and has_layers(module, reference):
        return search_own(module, reference, shape).result()
    filters = filters_of(suspect, shape)
    if not filters:
        raise AlignmentError(
            "The suspect's weights cannot be compared with initial weights, because it is none of the "
            f"architectures {', '.join(models.names())} and shows no convolutions: give the recorded "
            "reference instead."
        )
    found = search_unknown(filters, reference, shape).result()
    named = isinstance(reference, Model) and isinstance(module, Model)
    return found if named else replace(found, gauge=None)  # named by layers that the suspect may not have


def _is_widened(half: Model, reference: Model) -> bool:
    """Whether two client halves differ in nothing but their width, as if channels had been split."""
    ours, theirs = reference.spec, half.spec
    return theirs.width > ours.width and replace(ours, classes=theirs.classes, width=theirs.width) == theirs


def _by_correlation(correlation: Floats, known: Floats) -> Match:
    """Match the suspect's channels that vary, less copies, with the owner's that vary."""
    ours, theirs = _varying(known), _originals(correlation)
    if len(ours) < 2 or len(theirs) < 2:
        raise AlignmentError(
            "All but one channel are constant, in the suspect or in the reference: nothing to align."
        )
    found = match_by_correlations(known[np.ix_(ours, ours)], correlation[np.ix_(theirs, theirs)])
    order = np.full(len(known), -1)
    order[ours] = np.where(found.order >= 0, theirs[found.order], -1)
    # Of the channels that never vary nothing is known; those that do must be a fair part of all.
    believed = found.believed and (order >= 0).sum() >= FEWEST * len(order)
    return Match(order, found.agreement, found.sure, bool(believed))


def _correlations(suspect: Suspect, batches: Sequence[Tensor], *, expected: tuple[int, ...]) -> Floats:
    """Correlations of the pooled channels (C′, C′)."""
    pooled = []
    with undisturbed(suspect, seed=0):
        for batch in batches:
            values = activations(suspect, batch)
            if tuple(values.shape[2:]) != expected[1:]:
                raise ShapeError(
                    f"The suspect's activation has shape {tuple(values.shape[1:])} but the reference was "
                    f"recorded at {expected}: cut the suspect there, or give another reference."
                )
            check_channels(values.shape[1:])
            check_finite(values)
            pooled.append(values.double().flatten(2).mean(2))
    table = torch.cat(pooled).numpy()
    mean = table.mean(0)
    centred = table - mean
    return correlation_matrix(centred.T @ centred / len(table), mean)


def _varying(correlation: Floats) -> npt.NDArray[np.int64]:
    return np.flatnonzero(correlation.diagonal() > 0)


def _originals(correlation: Floats) -> npt.NDArray[np.int64]:
    """The channels that vary, and of each set of copies the first: an attacker may have duplicated some."""
    copies = np.tril(correlation > _COPY, -1).any(axis=1)
    return np.flatnonzero((correlation.diagonal() > 0) & np.logical_not(copies))


def _noise_batches(shape: tuple[int, ...], count: int, batch_size: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)  # not the probes of the test, whose seed is 0 by default
    return list(noise(shape, count, generator=generator).split(batch_size))


def _image_batches(probes: Probes, shape: tuple[int, ...], batch_size: int) -> list[Tensor]:
    images = probes if isinstance(probes, Tensor) else torch.from_numpy(np.array(probes))
    if tuple(images.shape[1:]) != shape:
        raise ShapeError(
            f"The probe images have shape {tuple(images.shape[1:])}, but the suspect takes {shape}: resize "
            "them."
        )
    if len(images) < MIN_PROBES:
        raise AlignmentError(
            f"{len(images)} probe images are too few to tell channels apart: give at least {MIN_PROBES}, "
            "better 200."
        )
    if images.dtype == torch.uint8:
        images = images.float() / 255
        dimensions = [0, *range(2, images.ndim)]
        deviation = images.std(dimensions, keepdim=True).clamp_min(1e-3)
        images = (images - images.mean(dimensions, keepdim=True)) / deviation
    if not images.is_floating_point() or not bool(torch.isfinite(images).all()):
        raise AlignmentError("The probe images must be uint8 or finite floating-point numbers.")
    return list(images.float().split(batch_size))
