"""From a file to a suspect that can be asked for activations."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from sigil import models
from sigil.errors import ModelError, ShapeError, SuspectError, reason
from sigil.models.building import assemble
from sigil.models.spec import architecture as find_architecture
from sigil.models.spec import shown
from sigil.suspect.exported import is_exported, load_exported_state
from sigil.suspect.file import SuspectFile
from sigil.suspect.graph import open_graph
from sigil.suspect.pickled import load_legacy_state, load_state, refuse_bare_pickle


@dataclass(frozen=True, eq=False)
class Suspect:
    """A suspect model up to the cut: call it with images to get activations.

    ``suspect(batch)`` maps float32 (n, *input_shape) to float32 (n, *activation shape), in
    evaluation mode and without gradients. ``input_shape`` is None if the file does not tell it;
    ``sha256`` is that of the file; ``kind`` names its format; ``module`` is the model if it is one
    of PyTorch, None for ONNX.
    """

    path: Path
    kind: str
    description: str
    sha256: str
    input_shape: tuple[int, ...] | None
    module: models.Model | None = dataclasses.field(repr=False)
    _run: Callable[[Tensor], Tensor] = dataclasses.field(repr=False)

    def __call__(self, batch: Tensor) -> Tensor:
        with torch.no_grad():
            return self._run(batch).float()


@dataclass(frozen=True)
class _Wanted:
    """What the caller says of the suspect; it wins over what the file says."""

    architecture: str | None
    cut: str | None
    width: int | None
    classes: int | None
    input_shape: tuple[int, ...] | None
    activation_shape: tuple[int, ...] | None


def open_suspect(
    path: str | os.PathLike[str],
    *,
    architecture: str | None = None,
    cut: str | None = None,
    width: int | None = None,
    classes: int | None = None,
    input_shape: Sequence[int] | None = None,
    at: str | None = None,
    activation_shape: Sequence[int] | None = None,
) -> Suspect:
    """Open a model file that an adversary may have written, without running anything in it.

    Safetensors that Sigil wrote say which model they hold. For other safetensors, state dicts
    (``.pt``, ``.pth``, ``.bin``, ``.ckpt``) and exported programs (``.pt2``) name the
    ``architecture``, and where they differ from the standard ones its ``width`` and ``classes`` and
    the ``cut``; a whole model is cut there. For ONNX name the activation: ``at`` is a tensor or a
    node. With ``activation_shape`` (that of the key) a model that does not fit it is refused at
    once. Raises :class:`~sigil.errors.SuspectError` with one sentence for everything that is
    refused; docs/suspects.md lists it.
    """
    file = SuspectFile(path)
    wanted = _Wanted(
        architecture=architecture,
        cut=cut,
        width=width,
        classes=classes,
        input_shape=None if input_shape is None else tuple(input_shape),
        activation_shape=None if activation_shape is None else tuple(activation_shape),
    )
    if file.format == "onnx":
        suspect = _open_onnx(file, wanted, at)
    elif at is not None:
        raise SuspectError(
            f"{file.path} is no ONNX graph, so at (--at) means nothing here: name the cut instead."
        )
    else:
        suspect = _open_weights(file, wanted)
    file.unchanged()
    return suspect


def _open_onnx(file: SuspectFile, wanted: _Wanted, at: str | None) -> Suspect:
    if wanted.architecture or wanted.cut or wanted.width or wanted.classes:
        raise SuspectError(
            f"{file.path} is an ONNX graph, which brings its own architecture: leave architecture, "
            "cut, width and classes out and name the activation with at (--at)."
        )
    graph = open_graph(file.read(), source=file.path, at=at, activation_shape=wanted.activation_shape)
    if wanted.input_shape and graph.input_shape and wanted.input_shape != graph.input_shape:
        raise ShapeError(f"{file.path} takes inputs of shape {graph.input_shape}, not {wanted.input_shape}.")
    return Suspect(
        path=file.path,
        kind="onnx",
        description=f"ONNX graph up to {shown(graph.tensor)}",
        sha256=file.sha256,
        input_shape=wanted.input_shape or graph.input_shape,
        module=None,
        _run=graph.run,
    )


def _open_weights(file: SuspectFile, wanted: _Wanted) -> Suspect:
    described = None
    if file.format == "safetensors":
        kind = "safetensors"
        described = _describe(file.path, wanted)
        load: Callable[[Path], Mapping[str, Tensor]] = _load_safetensors
    elif file.format == "bare pickle":
        kind, load = "pickle", refuse_bare_pickle
    elif file.format == "torch pickle":
        kind, load = "state dict", load_legacy_state
    elif is_exported(file.path):
        kind, load = "exported program", load_exported_state
    else:
        kind, load = "state dict", load_state
    # The content is judged before the arguments: a file that tries to run code is called that,
    # whatever else is missing.
    state = load(file.path)
    spec = _client_spec(file.path, wanted, described)
    input_shape = wanted.input_shape or (described.input_shape if described else None)
    _check_fit(file.path, spec, input_shape, wanted.activation_shape)
    try:
        module = models.from_state(spec, state)
    except SuspectError as error:
        raise SuspectError(f"{file.path} does not fit: {error}.") from error
    module.eval().requires_grad_(False)
    return Suspect(
        path=file.path,
        kind=kind,
        description=str(spec),
        sha256=file.sha256,
        input_shape=input_shape,
        module=module,
        _run=module,
    )


def _describe(path: Path, wanted: _Wanted) -> models.Description | None:
    """What the file says of itself, None if it says nothing usable and the caller knows better."""
    try:
        return models.read_description(path)
    except SuspectError:
        if wanted.architecture is None:
            raise
        return None


def _load_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:
        # Dtypes that this PyTorch lacks raise AttributeError, and there may be more of the kind.
        raise SuspectError(f"{path} is a damaged safetensors file: {reason(error)}.") from error


def _client_spec(path: Path, wanted: _Wanted, described: models.Description | None) -> models.ModelSpec:
    """The client half that the caller asks for, completed with what the file says of itself."""
    said = described.spec if described else None
    if wanted.architecture is None and said is None:
        raise SuspectError(
            f"{path} does not say which model it holds: name its architecture, one of "
            f"{', '.join(models.names())}, and its width if that is not the standard one."
        )
    if said is not None and said.part == "server":
        raise SuspectError(
            f"{path} holds the {said}, but the mark is in the client half: give that or the whole model."
        )
    if said is not None and wanted.architecture not in (None, said.name):
        said = None
    name = wanted.architecture or (said.name if said else "")
    standard = models.ModelSpec(
        name=name, classes=10, width=find_architecture(name).standard_width, channels=3
    )
    known = said or standard
    return models.ModelSpec(
        name=name,
        classes=known.classes if wanted.classes is None else wanted.classes,
        width=known.width if wanted.width is None else wanted.width,
        channels=wanted.input_shape[0] if wanted.input_shape else known.channels,
        part="client",
        cut=wanted.cut or known.cut or models.default_cut(name),
    )


def _check_fit(
    path: Path,
    spec: models.ModelSpec,
    input_shape: tuple[int, ...] | None,
    activation_shape: tuple[int, ...] | None,
) -> None:
    """Raise if the architecture, run without weights, does not give the wanted activation."""
    if input_shape is None or activation_shape is None:
        return
    try:
        found = models.activation_shape(assemble(spec), input_shape)
    except ModelError as error:
        raise SuspectError(f"{path} does not fit: {error}.") from error
    if found != activation_shape:
        raise ShapeError(
            f"{path}, opened as the {spec}, has activations of shape {found} for inputs of shape "
            f"{input_shape}, but the key was made for {activation_shape}: name the cut at which "
            "the key was used."
        )
