"""Alignment: put the channels of a disguised copy back in order before its mark is read.

Whoever permutes the channels at the cut, scales each of them, and changes the layers behind to match, has a
model that computes the same and whose mark cannot be read. Both can be undone:

- the **order** is found by comparing the suspect with what the owner knows of the training: the correlations
  between channels that the server recorded (:class:`Reference`, :mod:`sigil.matching`), or the initial
  weights (:mod:`sigil.lineage`);
- the **scale** is not restored but removed: each channel is divided by its own standard deviation over random
  inputs. Recorded scales would carry the mark and move the null hypothesis (docs/alignment.md).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sigil import files, models
from sigil.errors import AlignmentError, ShapeError, reason
from sigil.lineage import trace
from sigil.matching import FEWEST, Floats, Match, match
from sigil.models import Model
from sigil.probing import Suspect, activations, check_finite, input_shape_of, module_of, noise, undisturbed

MAX_CHANNELS = 4096
MAX_FILE_BYTES = 16 * MAX_CHANNELS**2
MAX_METADATA = 4096

NOISE_INPUTS = 1_024
"""Random inputs from which the order is found where there are no images."""

SCALE_INPUTS = 128
"""Random inputs over which the standard deviations are taken."""

MIN_PROBES = 32
"""Fewer images say too little about correlations."""

# Channels that vary together this closely are one channel and its copies.
_COPY = 0.9999
# A channel whose deviation is below this share of its size is constant but for rounding.
_CONSTANT = 1e-6

Probes = Tensor | npt.NDArray[np.uint8] | npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Reference:
    """What a server recorded of its clients' activations: sums over one round, nothing of single samples.

    With a the activation of one sample averaged over its positions, (C,): ``count`` samples, ``pooled`` =
    Σ a, ``products`` = Σ a aᵀ (C, C), ``squares`` = Σ of the mean square over positions, all float64.
    ``shape`` is that of one sample's activation. Alignment uses the correlations alone.
    """

    shape: tuple[int, ...]
    count: int
    pooled: Tensor
    products: Tensor
    squares: Tensor

    @classmethod
    def from_sums(cls, shape: Sequence[int], sums: Mapping[str, Tensor]) -> Reference:
        """Make a reference of a recorder's sums, checked."""
        shape = tuple(shape)
        check_channels(shape)
        channels = shape[0]
        wanted = {
            "count": (),
            "pooled": (channels,),
            "products": (channels, channels),
            "squares": (channels,),
        }
        if set(sums) != set(wanted):
            raise AlignmentError(f"A reference holds exactly {', '.join(wanted)}, not {', '.join(sums)}.")
        for name, size in wanted.items():
            tensor = sums[name]
            if tuple(tensor.shape) != size or tensor.dtype != torch.float64:
                found = f"{str(tensor.dtype).removeprefix('torch.')} of {tuple(tensor.shape)}"
                raise AlignmentError(
                    f"The reference's {name} must be float64 of shape {size} for activations of {shape}, but "
                    f"is {found}: record it again."
                )
            if not bool(torch.isfinite(tensor).all()):
                raise AlignmentError(
                    f"The reference's {name} holds values that are not finite: record it again."
                )
        count = float(sums["count"])
        if count < 2 or count != int(count):
            raise AlignmentError(f"The reference was recorded over {count:g} samples, but two are the least.")
        products = sums["products"]
        symmetric = torch.allclose(products, products.T, rtol=1e-4, atol=1e-6 * float(products.abs().max()))
        if not symmetric or bool((sums["squares"] < 0).any()):
            raise AlignmentError("The reference's sums are not those of any activations: record it again.")
        return cls(shape, int(count), sums["pooled"], sums["products"], sums["squares"])

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Reference:
        """Read a reference, such as the ``reference.safetensors`` of a run, within strict limits."""
        path = Path(path)
        try:
            size = path.stat().st_size
            if size > MAX_FILE_BYTES:
                raise AlignmentError(
                    f"{path} has {size:,} bytes, more than the {MAX_FILE_BYTES:,} that a reference can have."
                )
            with safe_open(path, framework="pt") as file:
                shape = _recorded_shape(path, (file.metadata() or {}).get("sigil", ""))
                sums = {name: file.get_tensor(name) for name in list(file.keys())[:8]}
        except (SafetensorError, OSError, ValueError, AttributeError) as error:
            raise AlignmentError(f"{path} cannot be read as a reference: {reason(error)}.") from error
        return cls.from_sums(shape, sums)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sums in float64, a few hundred kilobytes."""
        save_sums(path, self.shape, self.sums())

    def sums(self) -> dict[str, Tensor]:
        """The sums by name, as :meth:`from_sums` takes them."""
        return {
            "count": torch.tensor(float(self.count), dtype=torch.float64),
            "pooled": self.pooled,
            "products": self.products,
            "squares": self.squares,
        }

    @property
    def correlation(self) -> Floats:
        """Correlations between the pooled channels, (C, C); those of a channel that never varied are 0."""
        mean = self.pooled / self.count
        covariance = (self.products / self.count - torch.outer(mean, mean)).numpy()
        return _correlation(covariance, mean.numpy())


@dataclass(frozen=True)
class Alignment:
    """How to put a suspect's channels back: which they are, how to scale them, and how sure that is.

    Channel i of the owner's model is channel ``order[i]`` of the suspect, times ``scale[i]``; an ``order`` of
    −1 (with scale 0) means that the suspect has none. ``agreement``, ``sure`` and ``believed`` are those of
    :class:`sigil.matching.Match`; ``source`` and ``fingerprint`` say what was compared.
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

    With the model or client half at the start of the training as reference, the suspect must be of
    :mod:`sigil.models`, and no probes are needed.

    An alignment that is not ``believed`` should not be used: the suspect does not resemble the owner's model.
    """
    shape = input_shape_of(suspect, input_shape)
    deviations = None
    if isinstance(reference, Model):
        if probes is not None:
            raise AlignmentError("Initial weights are compared with weights: leave the probe images out.")
        module = module_of(suspect)
        if not isinstance(module, Model):
            raise AlignmentError(
                "The suspect's weights cannot be compared with initial weights, because it is none of the "
                f"architectures {', '.join(models.names())}: give the recorded reference instead."
            )
        found, source = trace(module, reference), "initial weights"
    else:
        check_channels(reference.shape)
        if probes is None:
            batches, source = _noise_batches(shape, NOISE_INPUTS, batch_size), "correlations under noise"
            correlation, deviations = _moments(suspect, batches, expected=reference.shape)
        else:
            batches, source = _image_batches(probes, shape, batch_size), "correlations under images"
            correlation, _ = _moments(suspect, batches, expected=reference.shape)
        found = _by_correlation(correlation, reference.correlation)
    if deviations is None:
        deviations = _moments(suspect, _noise_batches(shape, SCALE_INPUTS, batch_size))[1]
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


def fingerprint(reference: Reference | Model) -> str:
    """SHA-256 over the numbers of a reference, in hex: to be published before there is a suspect.

    Whoever may choose the reference afterwards can choose the order of channels that suits the key.
    """
    tensors = reference.sums() if isinstance(reference, Reference) else reference.state_dict()
    return files.digest(
        part
        for name, tensor in sorted(tensors.items())
        for part in (f"{name} {tensor.dtype} {tuple(tensor.shape)}\n", tensor)
    )


def save_sums(path: str | os.PathLike[str], shape: Sequence[int], sums: Mapping[str, Tensor]) -> None:
    """Write a recorder's sums as a reference file."""
    # One entry only: safetensors writes several in no fixed order, and equal runs give equal bytes.
    note = json.dumps({"reference": 1, "shape": tuple(shape)})
    with files.draft(path, replace=True) as place:
        save_file({name: value.contiguous() for name, value in sums.items()}, place, metadata={"sigil": note})


def open_reference(path: str | os.PathLike[str]) -> Reference | Model:
    """Open a recorded reference, or a model file with initial weights, whichever the file is."""
    try:
        with safe_open(path, framework="pt") as file:
            note = (file.metadata() or {}).get("sigil", "")
    except (SafetensorError, OSError, ValueError) as error:
        raise AlignmentError(f"{path} cannot be read as a reference: {reason(error)}.") from error
    return models.load(path) if '"spec"' in note else Reference.load(path)


def check_channels(shape: Sequence[int]) -> None:
    """Raise unless activations of this shape have channels that could have been reordered."""
    if len(shape) < 2:
        raise AlignmentError(
            f"Activations of shape {tuple(shape)} have no channels at the cut, so there is nothing to align: "
            "verify without a reference."
        )
    if not 2 <= shape[0] <= MAX_CHANNELS:
        raise AlignmentError(
            f"Alignment takes 2 to {MAX_CHANNELS:,} channels, but activations of shape {tuple(shape)} have "
            f"{shape[0]:,}."
        )


def _by_correlation(correlation: Floats, known: Floats) -> Match:
    """Match the suspect's channels that vary, less copies, with the owner's that vary."""
    ours, theirs = _varying(known), _originals(correlation)
    if len(ours) < 2 or len(theirs) < 2:
        raise AlignmentError(
            "All but one channel are constant, in the suspect or in the reference: nothing to align."
        )
    found = match(known[np.ix_(ours, ours)], correlation[np.ix_(theirs, theirs)])
    order = np.full(len(known), -1)
    order[ours] = np.where(found.order >= 0, theirs[found.order], -1)
    # Of the channels that never vary nothing is known; those that do must be a fair part of all.
    believed = found.believed and (order >= 0).sum() >= FEWEST * len(order)
    return Match(order, found.agreement, found.sure, bool(believed))


def _moments(
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
    deviations = torch.where(spread > _CONSTANT**2 * squares / count, spread, 0.0).sqrt()
    return _correlation(centred.T @ centred / len(table), mean), deviations.numpy()


def _correlation(covariance: Floats, mean: Floats) -> Floats:
    variance = covariance.diagonal()
    deviation = np.where(variance > _CONSTANT**2 * (mean**2 + variance), np.sqrt(variance.clip(0)), np.inf)
    found = covariance / np.outer(deviation, deviation)
    np.fill_diagonal(found, np.where(np.isfinite(deviation), 1.0, 0.0))
    return found


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


def _recorded_shape(path: Path, note: str) -> tuple[int, ...]:
    try:
        content = json.loads(note) if len(note) <= MAX_METADATA else None
    except ValueError:
        content = None
    shape = content.get("shape") if isinstance(content, dict) and content.get("reference") == 1 else None
    if not isinstance(shape, list) or not all(type(size) is int and size > 0 for size in shape):
        raise AlignmentError(
            f"{path} is no reference that Sigil recorded: give a run's reference.safetensors."
        )
    return tuple(shape)
