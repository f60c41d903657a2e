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
from pathlib import Path
from typing import Any

from sigil.errors import SuspectError, shown
from sigil.suspect.archive import MAX_RECORD_BYTES, Archive
from sigil.suspect.pickled import is_big_endian, load_state
from sigil.suspect.tensors import StoredTensor, Tensors, joined, strided, unsound

_INDEX = re.compile(r"data/weights/(.*)_weights_config\.json")
_RECORD = re.compile(r"weight_[0-9]+")
_PICKLED_WEIGHTS = ("serialized_state_dict.pt", "data/weights/model.pt")
_MARKS = ("archive_format", "serialized_exported_program.json")

# The numbers that torch.export gives dtypes, of those that weights can have.
_DTYPES = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    12: "bool",
    13: "bfloat16",
}
_STRIDED = 7


def is_exported(archive: Archive) -> bool:
    """Whether a zip archive is an exported program."""
    names = archive.names()
    return any(mark in names for mark in _MARKS)


def load_exported_state(archive: Archive) -> Tensors:
    """The tensors of an exported program, by the names of the module's state dict.

    If there are the weights of several programs, the names begin with that of the program.
    """
    source, names = archive.source, archive.names()
    indices = {match[1]: name for name in names if (match := _INDEX.fullmatch(name))}
    found: Tensors = []
    for program, index in indices.items():
        path = program if len(indices) > 1 else ""
        found += [(joined(path, name), tensor) for name, tensor in _read_indexed(archive, index)]
    for name in _PICKLED_WEIGHTS:
        if name in names:
            path = name if found else ""
            found += [(joined(path, each), tensor) for each, tensor in _read_pickled(archive, name)]
    if not found:
        raise SuspectError(
            f"{source} is an exported program whose weights are not stored by name, and the program "
            "itself is never loaded, as that can run code: save the model's state dict."
        )
    return found


def _read_indexed(archive: Archive, index: str) -> Tensors:
    source = archive.source
    swapped = is_big_endian(archive)
    records: dict[str, memoryview] = {}
    state: Tensors = []
    why: Exception | None = None
    try:
        entries = json.loads(bytes(archive.read(index, limit=MAX_RECORD_BYTES)))["config"].items()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(source) from error
    for name, entry in entries:
        try:
            state.append((name, _read_tensor(archive, name, entry, records, swapped)))
        except (ValueError, KeyError, TypeError, AttributeError, SuspectError) as error:
            why = why or error
            refused = error if isinstance(error, SuspectError) else _damaged(source)
            state.append((name, unsound("unknown", (), refused)))
    if why is not None and not any(tensor.sound for _, tensor in state):
        raise why if isinstance(why, SuspectError) else _damaged(source)
    return state


def _damaged(source: Path) -> SuspectError:
    return SuspectError(f"{source} is a damaged exported program: its index of weights cannot be read.")


def _read_tensor(
    archive: Archive, name: str, entry: dict[str, Any], records: dict[str, memoryview], swapped: bool
) -> StoredTensor:
    """One tensor as the index describes it, inside its record."""
    if entry["use_pickle"]:
        raise SuspectError(
            f"{archive.source} holds {shown(name)} as a pickle, which could run code, and nothing of "
            "it was loaded: export the model with plain tensors."
        )
    record, meta = entry["path_name"], entry["tensor_meta"]
    if not _RECORD.fullmatch(record) or meta["layout"] != _STRIDED:
        raise ValueError("not a record of dense weights")
    if record not in records:
        records[record] = archive.read(f"data/weights/{record}")
    return strided(
        records[record],
        _DTYPES[meta["dtype"]],
        [size["as_int"] for size in meta["sizes"]],
        [stride["as_int"] for stride in meta["strides"]],
        meta["storage_offset"]["as_int"],
        home=record,
        swapped=swapped,
    )


def _read_pickled(archive: Archive, name: str) -> Tensors:
    source = Path(f"The weights in {archive.source}")
    return load_state(Archive(archive.read(name), source))
