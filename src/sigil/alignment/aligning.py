"""Put the channels of a suspect back: which is which, and at what scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sigil import models
from sigil.alignment.correlations import (
    CONSTANT,
    FEWEST,
    Floats,
    Match,
    correlation_matrix,
    match_by_correlations,
)
from sigil.alignment.initial_weights import match_by_initial_weights
from sigil.alignment.references import Reference, check_channels, fingerprint
from sigil.alignment.unknown_layers import match_filters
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

SCALE_INPUTS = 128
"""Random inputs over which the standard deviations are taken."""

MIN_PROBES = 32
"""Fewer images say too little about correlations."""

# Channels that vary together this closely are one channel and its copies.
_COPY = 0.9999

Probes = Tensor | npt.NDArray[np.uint8] | npt.NDArray[np.float32]


@dataclass(frozen=True)
class Alignment:
    """How to put a suspect's channels back: which they are, how to scale them, and how sure that is.

    Channel i of the owner's model is channel ``order[i]`` of the suspect, times ``scale[i]``; an ``order`` of
    −1 (with scale 0) means that the suspect has none. ``agreement``, ``sure`` and ``believed`` are those of
    :class:`sigil.alignment.correlations.Match`; ``source`` and ``fingerprint`` say what was compared.
    """

    order: tuple[int, ...]
    scale: tuple[float, ...]
    agreement: float
    sure: int
    believed: bool
    source: str
    fingerprint: str

    def __call__(self, activation: Tensor) -> Tensor:
        """Activations (n, C′, …) of the suspect, in the owner's order and at unit scale, (n, C, …)."""
        scale = torch.tensor(self.scale, dtype=activation.dtype).view(-1, *[1] * (activation.ndim - 2))
        return activation[:, list(self.order)] * scale


def align(
    suspect: Suspect,
    reference: Reference | Model,
    probes: Probes | None = None,
    *,
    input_shape: Sequence[int] | None = None,
    batch_size: int = 64,
) -> Alignment:
    """Find out which channel of ``suspect`` is which, and at what scale.

    With a :class:`Reference`, any suspect will do: activations are all that is asked for. ``probes`` are
    images of the kind that the model was trained on, (n, *input shape), 200 or more; floats are taken as they
    are, uint8 is normalised by the images' own moments. Without probes random inputs are used, which is
    enough for many models and not for all.

    With the model or client half at the start of the training as reference no probes are needed. A suspect
    that is none of :mod:`sigil.models`, or has other numbers of channels, is compared by its filters alone
    (:mod:`sigil.alignment.unknown_layers`), if it shows them.

    An alignment that is not ``believed`` should not be used: the suspect does not resemble the owner's model.
    """
    shape = input_shape_of(suspect, input_shape)
    deviations = None
    if isinstance(reference, Model):
        if probes is not None:
            raise AlignmentError("Initial weights are compared with weights: leave the probe images out.")
        found, source = _by_initial_weights(suspect, reference, shape), "initial weights"
    else:
        check_channels(reference.shape)
        if probes is None:
            batches, source = _noise_batches(shape, NOISE_INPUTS, batch_size), "correlations under noise"
            correlation, deviations = _correlations_and_deviations(suspect, batches, expected=reference.shape)
        else:
            batches, source = _image_batches(probes, shape, batch_size), "correlations under images"
            correlation, _ = _correlations_and_deviations(suspect, batches, expected=reference.shape)
        found = _by_correlation(correlation, reference.correlation)
    if deviations is None:
        deviations = _correlations_and_deviations(suspect, _noise_batches(shape, SCALE_INPUTS, batch_size))[1]
    signs = np.ones(len(found.order)) if found.signs is None else found.signs
    scale = [
        sign / deviations[i] if i >= 0 and deviations[i] > 0 else 0.0
        for i, sign in zip(found.order, signs, strict=True)
    ]
    order = [int(i) if factor else -1 for i, factor in zip(found.order, scale, strict=True)]
    return Alignment(
        order=tuple(order),
        scale=tuple(map(float, scale)),
        agreement=found.agreement,
        sure=found.sure,
        believed=found.believed,
        source=source,
        fingerprint=fingerprint(reference),
    )


def _by_initial_weights(suspect: Suspect, reference: Model, shape: tuple[int, ...]) -> Match:
    """Layer by layer where the suspect is of Sigil's models, else by its filters alone."""
    module = module_of(suspect)
    if isinstance(module, Model) and not _is_widened(module, reference):
        return match_by_initial_weights(module, reference)
    filters = filters_of(suspect, shape)
    if not filters:
        raise AlignmentError(
            "The suspect's weights cannot be compared with initial weights, because it is none of the "
            f"architectures {', '.join(models.names())} and shows no convolutions: give the recorded "
            "reference instead."
        )
    return match_filters(filters, reference)


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


def _correlations_and_deviations(
    suspect: Suspect, batches: Sequence[Tensor], *, expected: tuple[int, ...] | None = None
) -> tuple[Floats, Floats]:
    """Correlations of the pooled channels (C′, C′), and each channel's deviation over all its values."""
    pooled, sums, squares, count = [], torch.zeros(()), torch.zeros(()), 0
    with undisturbed(suspect, seed=0):
        for batch in batches:
            values = activations(suspect, batch)
            if expected is not None and tuple(values.shape[2:]) != expected[1:]:
                raise ShapeError(
                    f"The suspect's activation has shape {tuple(values.shape[1:])} but the reference was "
                    f"recorded at {expected}: cut the suspect there, or give another reference."
                )
            check_channels(values.shape[1:])
            check_finite(values)
            positions = values.double().flatten(2)
            pooled.append(positions.mean(2))
            sums = sums + positions.sum((0, 2))
            squares = squares + positions.square().sum((0, 2))
            count += positions.shape[0] * positions.shape[2]
    table = torch.cat(pooled).numpy()
    mean = table.mean(0)
    centred = table - mean
    spread = squares / count - (sums / count).square()
    deviations = torch.where(spread > CONSTANT**2 * squares / count, spread, 0.0).sqrt()
    return correlation_matrix(centred.T @ centred / len(table), mean), deviations.numpy()


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
