"""References: what an owner knows of a training by which the channels of a copy can be told apart.

Either what the server recorded of its clients' activations (:class:`Reference`), or the weights with which
the training began, which follow from its key or its seed. A finished run's directory holds what both are made
from, but for the key.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from sigil import files, models
from sigil.alignment.correlations import Floats, correlation_matrix
from sigil.errors import AlignmentError, reason
from sigil.keys.key import Key
from sigil.models import Model
from sigil.seeds import derive

MAX_CHANNELS = 4096
MAX_FILE_BYTES = 16 * MAX_CHANNELS**2
MAX_METADATA = 4096
MAX_DESCRIPTION = 1 << 20

ReferenceKind = Literal["initial weights", "correlations"]


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
        _check_regular(path)
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
        return correlation_matrix(covariance, mean.numpy())


def fingerprint(reference: Reference | nn.Module) -> str:
    """SHA-256 over the numbers of a reference or a model, in hex: to be published before there is a suspect.

    A reference that is chosen afterwards can be chosen to put channels into the order that suits the key.
    """
    tensors = reference.sums() if isinstance(reference, Reference) else reference.state_dict()
    return files.digest(
        part
        for name, tensor in sorted(tensors.items())
        if isinstance(tensor, Tensor)  # modules may keep other things there as well
        for part in (f"{name} {tensor.dtype} {tuple(tensor.shape)}\n", tensor)
    )


def save_sums(path: str | os.PathLike[str], shape: Sequence[int], sums: Mapping[str, Tensor]) -> None:
    """Write a recorder's sums as a reference file."""
    # One entry only: safetensors writes several in no fixed order, and equal runs give equal bytes.
    note = json.dumps({"reference": 1, "shape": tuple(shape)})
    with files.draft(path, replace=True) as place:
        save_file({name: value.contiguous() for name, value in sums.items()}, place, metadata={"sigil": note})


def _check_regular(path: Path) -> None:
    """Raise for a pipe or a device, which would be waited for."""
    if path.exists() and not path.is_file():
        raise AlignmentError(f"{path} is not a file; give a reference or the directory of a run.")


def open_reference(
    path: str | os.PathLike[str], *, kind: ReferenceKind = "initial weights", key: Key | None = None
) -> Reference | Model:
    """Open a recorded reference, a model file with initial weights, or the directory of a finished run.

    A run has both kinds of reference, and ``kind`` says which one is meant: the weights that it began with,
    or the correlations that its server recorded. A file is what it is. ``key`` is needed for the weights of a
    run that began with those that its key drew.
    """
    path = Path(path)
    if path.is_dir():
        if kind == "correlations":
            return Reference.load(path / "reference.safetensors")
        return initial_half(path, key)
    _check_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            note = (file.metadata() or {}).get("sigil", "")
    except (SafetensorError, OSError, ValueError) as error:
        raise AlignmentError(f"{path} cannot be read as a reference: {reason(error)}.") from error
    return models.load(path) if '"spec"' in note else Reference.load(path)


def initial_half(folder: str | os.PathLike[str], key: Key | None = None) -> Model:
    """The client half with which the finished run in ``folder`` began.

    Its weights follow from the run's ``key``, or from the seed if the key draws none.
    """
    folder = Path(folder)
    seed, commitment = _start_of(folder)
    if commitment is not None and (key is None or key.commitment != commitment):
        raise AlignmentError(
            f"The run in {folder} began with weights that its key drew; give that key, of which the run says "
            f"that its commitment begins with {commitment[:12]}."
        )
    described = models.read_description(folder / "client.safetensors")
    spec, shape = described.spec, described.input_shape
    if spec.cut is None or shape is None:
        raise AlignmentError(f"The client half in {folder} does not say where it is cut and what it takes.")
    whole = models.build(
        spec.name,
        classes=spec.classes,
        width=spec.width,
        channels=spec.channels,
        input_size=shape[1:],
        seed=derive(seed, "weights"),
    )
    half = models.split(whole, spec.cut)[0]
    if commitment is not None:
        assert key is not None
        key.initialise(half)
    return half


def began_with_key(folder: str | os.PathLike[str]) -> bool:
    """Whether the weights with which the finished run in ``folder`` began were drawn by its key."""
    return _start_of(Path(folder))[1] is not None


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


def _start_of(folder: Path) -> tuple[int, str | None]:
    """The seed of a finished run, and the commitment of its key if that drew the initial weights."""
    path = folder / "run.json"
    try:
        with path.open("rb") as file:
            content = file.read(MAX_DESCRIPTION + 1)
        description: Any = json.loads(content) if len(content) <= MAX_DESCRIPTION else None
    except FileNotFoundError:
        raise AlignmentError(
            f"There is no run in {folder}; `sigil train --out {folder}` makes one."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise AlignmentError(
            f"{path} cannot be read as the description of a run: {reason(error)}."
        ) from error
    try:
        finished, seed = description["finished"], description["settings"]["run"]["seed"]
        # Runs from before there was a choice began with the seed's.
        drawn = description.get("initial_weights", "seed") == "key"
        commitment = description["commitment"] if drawn else None
    except (KeyError, TypeError, AttributeError):
        finished, seed, commitment = None, None, None
    if type(finished) is not bool or type(seed) is not int or not isinstance(commitment, str | None):
        raise AlignmentError(
            f"{path} is not the description of a run that Sigil wrote: give a run's directory."
        )
    if not finished:
        raise AlignmentError(
            f"The run in {folder} is not finished; give the same `sigil train` command again to go on."
        )
    return seed, commitment
