"""Model files: safetensors with the spec in the metadata, read as if an adversary had written them.

The metadata holds one entry, ``sigil``, a JSON object::

    {"format": 1, "spec": {"name": "resnet18", ...}, "input_shape": [3, 32, 32], "extra": {...}}

Nothing is built or read before the sizes of file, header and metadata are known to be small, the
spec is within its limits, and the names and shapes in the header are those of the architecture.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from sigil import files
from sigil.errors import ModelError, SuspectError, shown
from sigil.models.building import COUNTER, Model, assemble, check_input_shape
from sigil.models.spec import ModelSpec

FORMAT = 1
METADATA_KEY = "sigil"
MAX_METADATA_BYTES = 64 * 1024
MAX_HEADER_BYTES = 1024 * 1024
MAX_FILE_BYTES = 4 * 1024**3

_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_OTHER_FLOATS = (
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
    *(torch.complex64, torch.complex128),
)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

FLOATS = frozenset(str(dtype).removeprefix("torch.") for dtype in _FLOATS + _OTHER_FLOATS)
"""The number formats from which weights are read, those of a suspect included."""


@dataclass(frozen=True)
class Description:
    """What the metadata of a model file says: spec, shape of the images, notes of the writer."""

    spec: ModelSpec
    input_shape: tuple[int, int, int] | None
    extra: dict[str, str]


def save(
    path: str | os.PathLike[str],
    module: nn.Module,
    *,
    extra: Mapping[str, str] | None = None,
    replace: bool = True,
) -> None:
    """Write a model or half to a safetensors file, with its spec and the notes ``extra``.

    The file appears whole or not at all, and the same model always gives the same bytes. A file that is
    there is replaced, or refused if `replace` is false.
    """
    if not isinstance(module, Model):
        raise ModelError(
            f"only models and halves of sigil.models can be saved, not a {type(module).__name__}: "
            "write the state dict of a model of your own with safetensors"
        )
    extra = dict(extra or {})
    if not all(isinstance(text, str) for pair in extra.items() for text in pair):
        raise ModelError("the extra metadata of a model file must map strings to strings")
    content = {
        "format": FORMAT,
        "spec": asdict(module.spec),
        "input_shape": module.input_shape,
        "extra": extra,
    }
    text = json.dumps(content, sort_keys=True)
    if len(text) > MAX_METADATA_BYTES:
        raise ModelError(
            f"the metadata takes {len(text):,} bytes and may take {MAX_METADATA_BYTES:,}: "
            "store long notes beside the model file"
        )
    tensors = {name: tensor.contiguous() for name, tensor in module.state_dict().items()}
    target = Path(path)
    try:
        with files.draft(target, replace=replace) as draft:
            save_file(tensors, draft, metadata={METADATA_KEY: text})
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot write the model file {target}: {error}") from error


def load(path: str | os.PathLike[str]) -> Model:
    """Read a model or half that :func:`save` wrote, on the CPU in float32 and in training mode.

    A damaged or hostile file raises :class:`~sigil.errors.SuspectError`, before memory is taken for
    it.
    """
    path = Path(path)
    description = read_description(path)
    try:
        with safe_open(path, framework="pt") as file:
            # safe_open is not a mapping: it has keys() only
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            model = fill(description.spec, shapes, file.get_tensor, source=str(path))
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
        raise _unreadable(path, error) from error
    model.input_shape = description.input_shape
    return model


def from_state(spec: ModelSpec, state: Mapping[str, Tensor]) -> Model:
    """Build the model or half that ``spec`` describes from a state dict in memory, which is copied.

    For a half, ``state`` may be that of the whole model: tensors of the other half are ignored.
    Unknown or missing names, other shapes, values that are not finite and other dtypes than
    float16, bfloat16, float32 and float64 raise :class:`~sigil.errors.SuspectError`. The counters
    of batch norms (``num_batches_tracked``), which no output depends on, may be missing and then
    start at 0.
    """
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise SuspectError(
                f"a state dict maps names to tensors, not {shown(name)} to a {type(tensor).__name__}"
            )
        if tensor.layout != torch.strided or tensor.is_meta:
            raise SuspectError(f"the tensor {shown(name)} is sparse or without values: give a dense one")
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    return fill(spec, shapes, state.__getitem__, source="the state dict")


def read_spec(path: str | os.PathLike[str]) -> ModelSpec:
    """The spec in a model file, without reading any weights."""
    return read_description(path).spec


def read_description(path: str | os.PathLike[str]) -> Description:
    """Spec, input shape and notes in a model file, checked, without reading any weights."""
    path = Path(path)
    check_size(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    return parse_description(metadata.get(METADATA_KEY), source=str(path))


def parse_description(text: str | None, *, source: str) -> Description:
    """The description in ``text``, the metadata entry ``sigil`` of the model file ``source``, checked."""
    if text is None:
        raise SuspectError(
            f"{source} does not say which model it holds: name its architecture, width and cut"
        )
    if len(text) > MAX_METADATA_BYTES:
        raise SuspectError(
            f"the metadata of {source} has {len(text):,} characters, more than {MAX_METADATA_BYTES:,}"
        )
    try:
        return _parse(json.loads(text))
    except (ModelError, ValueError, RecursionError) as error:
        raise SuspectError(f"the metadata of {source} is not that of a Sigil model: {error}") from error


def check_size(path: Path) -> None:
    """Raise unless ``path`` is a regular file whose size and announced header are within limits."""
    try:
        if not path.is_file():
            raise SuspectError(f"{path} is not a file: give a .safetensors file")
        size = path.stat().st_size
        with path.open("rb") as file:
            header = int.from_bytes(file.read(8), "little")
    except OSError as error:
        raise SuspectError(f"cannot read {path}: {error.strerror}") from error
    if size > MAX_FILE_BYTES:
        raise SuspectError(f"{path} has {size:,} bytes, more than the limit of {MAX_FILE_BYTES:,}")
    if header > MAX_HEADER_BYTES:
        raise SuspectError(
            f"{path} is not a model in safetensors format: it announces a header of "
            f"{header:,} bytes, more than {MAX_HEADER_BYTES:,}"
        )


def _unreadable(path: Path, error: Exception) -> SuspectError:
    return SuspectError(f"{path} cannot be read as safetensors: {shown(str(error))}")


def _parse(content: Any) -> Description:
    """Check the JSON of the metadata; raises ModelError or ValueError."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ModelError(f"it must be an object with format {FORMAT}")
    spec = content.get("spec")
    expected = {field.name for field in fields(ModelSpec)}
    if not isinstance(spec, dict) or set(spec) != expected:
        raise ModelError(f"its spec must have exactly {', '.join(sorted(expected))}")
    checked = ModelSpec(**spec)
    shape = content.get("input_shape")
    if shape is not None:
        if not isinstance(shape, list):
            raise ModelError(f"its input_shape must be a list, not {shown(shape)}")
        check_input_shape(tuple(shape))
        if checked.part == "server" or shape[0] != checked.channels:
            raise ModelError(f"its input_shape {shown(shape)} does not fit the {checked}")
        shape = (shape[0], shape[1], shape[2])
    extra = content.get("extra", {})
    if not isinstance(extra, dict) or not all(isinstance(text, str) for text in extra.values()):
        raise ModelError("its extra must map strings to strings")
    return Description(checked, shape, extra)


def fill(
    spec: ModelSpec,
    shapes: Mapping[str, tuple[int, ...]],
    read: Callable[[str], Tensor],
    *,
    source: str,
    strict: bool = True,
) -> Model:
    """Build what ``spec`` describes: names and shapes are compared first, only then ``read`` is called.

    With ``strict`` false, what PyTorch loads without a word is let in: infinity and NaN, variances a little
    below zero, the real part of complex numbers. One in a place that no output depends on is an easy way to
    keep a model that works from being opened.
    """
    model = assemble(spec)
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    known = wanted if spec.part == "whole" else _whole_names(spec)
    missing = [name for name in wanted if name not in shapes and not name.endswith(COUNTER)]
    if missing:
        raise SuspectError(f"{source} lacks {_some(missing)} of the {spec}")
    extra = [name for name in shapes if name not in known]
    if extra:
        raise SuspectError(f"{source} has {_some(extra)}, which no {spec} has")
    wrong = [name for name in wanted if name in shapes and shapes[name] != wanted[name]]
    if wrong:
        name = wrong[0]
        raise SuspectError(
            f"{source} has other shapes than the {spec} in {_some(wrong)}: "
            f"the first is {shapes[name]} and should be {wanted[name]}"
        )
    tensors = {
        name: _checked(name, read(name), source, strict) if name in shapes else torch.tensor(0)
        for name in wanted
    }
    model.load_state_dict(tensors, assign=True)
    return model


def _checked(name: str, tensor: Tensor, source: str, strict: bool) -> Tensor:
    """A copy of one tensor in its proper dtype on the CPU; raises if its values are impossible."""
    allowed = _FLOATS + _INTEGERS if name.endswith(COUNTER) else _FLOATS
    if tensor.dtype not in allowed + (() if strict else _OTHER_FLOATS):
        raise SuspectError(
            f"{source} holds {shown(name)} as {str(tensor.dtype).removeprefix('torch.')}: "
            "convert the model to floating point"
        )
    # Contiguous and always a copy: the original may be a view of a file that somebody rewrites.
    numbers = tensor.detach().real if tensor.is_complex() else tensor.detach()
    copy = torch.empty(tensor.shape, dtype=torch.float32).copy_(numbers)
    if strict and not bool(torch.isfinite(copy).all()):
        raise SuspectError(f"{source} holds values in {shown(name)} that are not finite numbers")
    if strict and name.endswith("running_var") and bool((copy < 0).any()):
        raise SuspectError(f"{source} holds negative variances in {shown(name)}")
    if name.endswith(COUNTER):
        return tensor.detach().to("cpu", torch.int64, copy=True)
    return copy


@lru_cache(maxsize=64)
def _whole_names(spec: ModelSpec) -> frozenset[str]:
    return frozenset(assemble(dataclasses.replace(spec, part="whole", cut=None)).state_dict())


def _some(names: Sequence[str]) -> str:
    """The first few names and how many there are."""
    listed = ", ".join(shown(name) for name in names[:3])
    if len(names) == 1:
        return f"the tensor {listed}"
    return f"{len(names)} tensors ({listed}{', ...' if len(names) > 3 else ''})"
