"""Exported programs (``.pt2``): only their weights are read, the program is never loaded.

``torch.export.load`` cannot be used on a file of an adversary. As of PyTorch 2.13 it

- unpickles weights and constants whose index entry says ``use_pickle`` with
  ``torch.load(weights_only=False)``, and constants named ``opaque_obj_*`` with ``pickle.loads``;
- retries the sample inputs and weights of older archives with ``weights_only=False`` when the safe
  reader refuses them;
- hands the symbolic sizes of the graph to ``sympy.sympify``, which is ``eval``.

Each of these runs code of the file's author. The archive, however, keeps the weights apart: a JSON
index names each tensor's record, dtype, sizes, strides and offset, and a record is the raw bytes of
a tensor. Those are read here and put into a named architecture. Older archives (PyTorch 2.7 and
before) hold the weights as one file of ``torch.save``, which takes the way of every state dict.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sigil.errors import SuspectError
from sigil.models.spec import shown
from sigil.suspect.archive import MAX_RECORD_BYTES, Archive
from sigil.suspect.pickled import load_state

_INDEX = re.compile(r"data/weights/(.*)_weights_config\.json")
_RECORD = re.compile(r"weight_[0-9]+")
_PICKLED_WEIGHTS = ("serialized_state_dict.pt", "data/weights/model.pt")
_MARKS = ("archive_format", "serialized_exported_program.json")

# The numbers that torch.export gives dtypes, of those that weights can have.
_DTYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    12: torch.bool,
    13: torch.bfloat16,
}
_STRIDED = 7


def is_exported(path: Path) -> bool:
    """Whether a zip archive is an exported program."""
    with Archive(path) as archive:
        names = archive.names()
        return any(mark in names for mark in _MARKS)


def load_exported_state(path: Path) -> dict[str, Tensor]:
    """The tensors of an exported program, by the names of the module's state dict."""
    with Archive(path) as archive:
        names = archive.names()
        indices = {match[1]: name for name in names if (match := _INDEX.fullmatch(name))}
        index = indices.get("model") if len(indices) > 1 else next(iter(indices.values()), None)
        if index is not None:
            return _read_indexed(archive, index)
        for name in _PICKLED_WEIGHTS:
            if name in names:
                return _read_pickled(archive.read(name), path)
    raise SuspectError(
        f"{path} is an exported program whose weights are not stored by name, and the program "
        "itself is never loaded, as that can run code: save the model's state dict."
    )


def _read_indexed(archive: Archive, index: str) -> dict[str, Tensor]:
    path = archive.path
    if "byteorder" in archive.names() and archive.read("byteorder", limit=16) != b"little":
        raise SuspectError(f"{path} was written on a big-endian machine, which is not supported.")
    records: dict[tuple[str, torch.dtype], Tensor] = {}
    state = {}
    try:
        entries = json.loads(archive.read(index, limit=MAX_RECORD_BYTES))["config"]
        for name, entry in entries.items():
            if entry["use_pickle"]:
                raise SuspectError(
                    f"{path} holds {shown(name)} as a pickle, which could run code, and nothing of "
                    "it was loaded: export the model with plain tensors."
                )
            state[name] = _read_tensor(archive, entry, records)
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, RecursionError) as error:
        raise SuspectError(
            f"{path} is a damaged exported program: its index of weights cannot be read."
        ) from error
    return state


def _read_tensor(
    archive: Archive, entry: dict[str, Any], records: dict[tuple[str, torch.dtype], Tensor]
) -> Tensor:
    """One tensor as the index describes it; ``as_strided`` keeps it inside its record."""
    record, meta = entry["path_name"], entry["tensor_meta"]
    if not _RECORD.fullmatch(record) or meta["layout"] != _STRIDED:
        raise ValueError("not a record of dense weights")
    dtype = _DTYPES[meta["dtype"]]
    if (record, dtype) not in records:
        data = bytearray(archive.read(f"data/weights/{record}"))
        records[record, dtype] = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return torch.as_strided(
        records[record, dtype],
        size=[_integer(size) for size in meta["sizes"]],
        stride=[_integer(stride) for stride in meta["strides"]],
        storage_offset=_integer(meta["storage_offset"]),
    )


def _integer(value: dict[str, Any]) -> int:
    number = value["as_int"]
    if type(number) is not int or not 0 <= number < 1 << 62:
        raise ValueError("not a size")
    return number


def _read_pickled(weights: bytes, path: Path) -> dict[str, Tensor]:
    # A file of its own, because PyTorch maps files and not bytes.
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, path.stem + ".pt")
        copy.write_bytes(weights)
        try:
            state = load_state(copy)
            return {name: tensor.clone() for name, tensor in state.items()}
        except SuspectError as error:
            raise SuspectError(str(error).replace(str(copy), f"The weights in {path}")) from error
