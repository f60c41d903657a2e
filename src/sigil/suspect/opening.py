"""From a file to a suspect that can be asked for activations."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from sigil import extras, models
from sigil.errors import ModelError, ShapeError, SuspectError, shown
from sigil.keys.key import Key
from sigil.models.building import assemble
from sigil.models.recognition import recognise
from sigil.models.spec import architecture as find_architecture
from sigil.models.storage import fill, parse_description
from sigil.suspect.examination import TIME_LIMIT, Examination, check_time_limit
from sigil.suspect.file import SuspectFile
from sigil.suspect.shards import INDEX_END, Shards, model_in


@dataclass(frozen=True, eq=False)
class Suspect:
    """A suspect model up to the cut: call it with images to get activations.

    ``suspect(batch)`` maps float32 (n, *input_shape) to float32 (n, *activation shape), in
    evaluation mode and without gradients. ``input_shape`` is None if the file does not tell it;
    ``sha256`` is that of the file; ``kind`` names its format; ``module`` is the model if it is one
    of PyTorch, None for ONNX. A graph of ONNX runs in a process of its own, which ends with
    :meth:`close`, or when the suspect is no longer used.
    """

    path: Path
    kind: str
    description: str
    sha256: str
    input_shape: tuple[int, ...] | None
    module: models.Model | None = dataclasses.field(repr=False)
    _run: Callable[[Tensor], Tensor] = dataclasses.field(repr=False)
    _filters: Callable[[], tuple[Tensor, ...]] = dataclasses.field(repr=False, default=tuple)
    _close: Callable[[], None] = dataclasses.field(repr=False, default=lambda: None)

    def __call__(self, batch: Tensor) -> Tensor:
        with torch.no_grad():
            return self._run(batch).float()

    def filters(self) -> tuple[Tensor, ...]:
        """The weights of the convolutions of an ONNX graph up to the cut, in the order of computing."""
        return self._filters()

    def close(self) -> None:
        """End the process in which the suspect runs, if there is one."""
        self._close()


@dataclass(frozen=True)
class _Wanted:
    """What the caller says of the suspect; it wins over what the file says."""

    architecture: str | None
    cut: str | None
    width: int | None
    classes: int | None
    input_shape: tuple[int, ...] | None
    activation_shape: tuple[int, ...] | None
    # Whether a model with more channels than the activation can be compared with initial weights.
    may_be_wider: bool = False


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
    key: Key | None = None,
    time_limit: float = TIME_LIMIT,
) -> Suspect:
    """Open a model file that an adversary may have written, without running anything in it.

    Safetensors that Sigil wrote say which model they hold. In other safetensors, state dicts
    (``.pt``, ``.pth``, ``.bin``, ``.ckpt``) and exported programs (``.pt2``) the weights show
    whether they are one of the four architectures, with which width, classes and channels; what is
    given as ``architecture``, ``width``, ``classes`` and ``cut`` wins. A whole model is cut there. A
    folder stands for the model in it, also if that lies in several files with an index, as Hugging
    Face stores them (:mod:`sigil.suspect.shards`). For ONNX name the activation: ``at`` is a tensor or a
    node. With ``activation_shape`` a model that does not fit it is refused at once. With ``key`` that is
    the key's, and what it states of the model holds where nothing is given; a graph of ONNX brings its
    own architecture. A process of its own takes the file apart and runs graphs of ONNX: it may take
    ``time_limit`` seconds in all, opening and every later call together, and 2 GB of memory beyond
    what the model itself takes. Raises :class:`~sigil.errors.SuspectError` with one sentence for
    everything that is refused; docs/suspects.md lists it.
    """
    wanted = _Wanted(
        architecture=architecture,
        cut=cut,
        width=width,
        classes=classes,
        input_shape=None if input_shape is None else tuple(input_shape),
        activation_shape=None if activation_shape is None else tuple(activation_shape),
    )
    if key is not None:
        wanted = replace(
            wanted,
            input_shape=wanted.input_shape or key.fields.input_shape,
            activation_shape=wanted.activation_shape or key.shape,
            may_be_wider=(activation_shape is None and width is None and key.fields.initialiser is not None),
        )
    check_time_limit(time_limit)
    place = model_in(Path(path))
    if place.name.endswith(INDEX_END):
        if at is not None:
            raise _no_graph(place)
        return _open_weights(place, Shards(place, time_limit=time_limit), _stated(wanted, key))
    with SuspectFile(place, time_limit=time_limit) as file:
        if file.format == "onnx":
            return _open_onnx(file, wanted, at, time_limit)
        if at is not None:
            raise _no_graph(file.path)
        return _open_weights(file.path, _OneFile(file, time_limit), _stated(wanted, key))


def _stated(wanted: _Wanted, key: Key | None) -> _Wanted:
    """With what a key states of a model's weights, where the caller says nothing of them."""
    if key is None:
        return wanted
    stated = key.fields
    other = wanted.architecture not in (None, stated.model)
    return replace(
        wanted,
        architecture=wanted.architecture or stated.model,
        cut=wanted.cut or stated.cut,
        width=wanted.width or (None if other else stated.width),
        classes=wanted.classes or (None if other else stated.classes),
    )


class _OneFile:
    """A single file of weights, as :class:`~sigil.suspect.shards.Shards` are several."""

    def __init__(self, file: SuspectFile, time_limit: float) -> None:
        self.sha256 = file.sha256
        examination = Examination(file, time_limit=time_limit)
        self.opened, self.shapes, self.tensor = examination.opened, examination.shapes, examination.tensor
        self.close = examination.close


def _no_graph(path: Path) -> SuspectError:
    return SuspectError(f"{path} is no ONNX graph, so at (--at) means nothing here: name the cut (--cut).")


def _open_onnx(file: SuspectFile, wanted: _Wanted, at: str | None, time_limit: float) -> Suspect:
    extras.need("onnx")
    if wanted.architecture or wanted.cut or wanted.width or wanted.classes:
        raise SuspectError(
            f"{file.path} is an ONNX graph, which brings its own architecture: leave architecture, "
            "cut, width and classes out and name the activation with at (--at)."
        )
    examination = Examination(
        file,
        time_limit=time_limit,
        at=at,
        activation_shape=wanted.activation_shape,
        threads=torch.get_num_threads(),
    )
    said = examination.opened["input_shape"]
    own_shape = None if said is None else tuple(said)
    if wanted.input_shape and own_shape and wanted.input_shape != own_shape:
        examination.close()
        raise ShapeError(f"{file.path} takes inputs of shape {own_shape}, not {wanted.input_shape}.")
    return Suspect(
        path=file.path,
        kind="onnx",
        description=f"ONNX graph up to {shown(examination.opened['tensor'])}",
        sha256=file.sha256,
        input_shape=wanted.input_shape or own_shape,
        module=None,
        _run=examination.run,
        _filters=examination.filters,
        _close=examination.close,
    )


def _open_weights(path: Path, source: _OneFile | Shards, wanted: _Wanted) -> Suspect:
    try:
        # The content was judged before the arguments: a file that tries to run code is called that,
        # whatever else is missing.
        described = _describe(path, source.opened["description"], wanted)
        shapes = source.shapes()
        spec = _client_spec(path, wanted, described, shapes)
        input_shape = wanted.input_shape or (described.input_shape if described else None)
        _check_fit(path, spec, input_shape, wanted)
        try:
            module = fill(spec, shapes, source.tensor, source="it", finite=False)
        except SuspectError as error:
            raise SuspectError(
                f"{path} does not fit: {error}; if it is another model, say so with --architecture, --width, "
                "--classes and --cut."
            ) from error
        sha256 = source.sha256
    finally:
        source.close()
    module.eval().requires_grad_(False)
    return Suspect(
        path=path,
        kind=source.opened["kind"],
        description=str(spec),
        sha256=sha256,
        input_shape=input_shape,
        module=module,
        _run=module,
    )


def _describe(path: Path, text: str | None, wanted: _Wanted) -> models.Description | None:
    """What the file says of itself; None if that is nothing, or not usable and the caller knows better."""
    if text is None:
        return None
    try:
        return parse_description(text, source=str(path))
    except SuspectError:
        if wanted.architecture is None:
            raise
        return None


def _client_spec(
    path: Path,
    wanted: _Wanted,
    described: models.Description | None,
    shapes: Mapping[str, tuple[int, ...]],
) -> models.ModelSpec:
    """The client half that the caller asks for, completed with what the file says of itself or shows."""
    said = described.spec if described else recognise(shapes)
    if wanted.architecture is None and said is None:
        raise SuspectError(
            f"{path} does not say which model it holds, and its weights fit none of "
            f"{', '.join(models.names())}: name its architecture (--architecture) if it is one of them after "
            "all; for one of your own, export it to ONNX and name the tensor at the cut (--at), or load it "
            "in Python up to the cut and call sigil.verify(module, key, input_shape=…)."
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
    channels = wanted.input_shape[0] if wanted.input_shape else known.channels
    width = known.width if wanted.width is None else wanted.width
    if wanted.may_be_wider and said is not None and said.width > width:
        width = said.width
    return models.ModelSpec(
        name=name,
        classes=known.classes if wanted.classes is None else wanted.classes,
        width=width,
        channels=channels,
        part="client",
        cut=wanted.cut or known.cut or models.default_cut(name),
    )


def _check_fit(
    path: Path,
    spec: models.ModelSpec,
    input_shape: tuple[int, ...] | None,
    wanted: _Wanted,
) -> None:
    """Raise if the architecture, run without weights, does not give the wanted activation."""
    activation_shape = wanted.activation_shape
    if input_shape is None or activation_shape is None:
        return
    try:
        found = models.activation_shape(assemble(spec), input_shape)
    except ModelError as error:
        raise SuspectError(f"{path} does not fit: {error}.") from error
    wider = len(found) > 1 and found[0] > activation_shape[0] and found[1:] == activation_shape[1:]
    if found != activation_shape and not (wider and wanted.may_be_wider):
        raise ShapeError(
            f"{path}, opened as the {spec}, has activations of shape {found} for inputs of shape "
            f"{input_shape}, but the key was made for {activation_shape}: name the cut at which "
            "the key was used (--cut), or the shape of its inputs (--input-shape)."
        )
