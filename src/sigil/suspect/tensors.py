"""Tensors as a file stores them: a number format, a shape and where the bytes are.

Nothing here needs PyTorch: files are taken apart in a process of their own that starts quickly
(:mod:`sigil.suspect.examiner`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sigil.errors import SuspectError, shown

MAX_TENSORS = 10_000
MAX_NAME = 200
MAX_DIMENSIONS = 16
MAX_HEADER_BYTES = 1024 * 1024
MAX_METADATA_BYTES = 64 * 1024

ITEM_BYTES = {
    **{"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2},
    **{"int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1},
}
"""The number formats that weights can have, and what one number takes."""

_SAFETENSORS = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool"},
}


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file; ``read`` gives its bytes in logical order, ``dtype`` is a name of ITEM_BYTES."""

    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], memoryview]


State = Mapping[str, StoredTensor]


def check_index(state: State, source: Path) -> None:
    """Raise unless the names and shapes are few and short enough to be passed on."""
    if len(state) > MAX_TENSORS:
        raise SuspectError(f"{source} holds {len(state):,} tensors, more than the limit of {MAX_TENSORS:,}.")
    for name, tensor in state.items():
        if len(name) > MAX_NAME or len(tensor.shape) > MAX_DIMENSIONS:
            raise SuspectError(f"{source} holds the tensor {shown(name)}, as no architecture has.")


def strided(
    record: memoryview, dtype: str, size: Sequence[int], stride: Sequence[int], offset: int
) -> StoredTensor:
    """The tensor that lies in ``record`` with these strides; ValueError if it reaches beyond it.

    A tensor that has more numbers than its record, because it repeats them, is one that does.
    """
    item = ITEM_BYTES[dtype]
    if len(size) != len(stride) or len(size) > MAX_DIMENSIONS:
        raise ValueError("sizes and strides that do not fit")
    for number in (*size, *stride, offset):
        if type(number) is not int or not 0 <= number < 1 << 62:
            raise ValueError("not a size")
    count = math.prod(size)
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    if count and (count * item > len(record) or (last + 1) * item > len(record)):
        raise ValueError("beyond the record")

    # The strides of a tensor that lies in order, last dimension first; dimensions of one do not count.
    lies_in_order, step = True, 1
    for length, given in zip(reversed(size), reversed(stride), strict=True):
        lies_in_order &= length == 1 or given == step
        step *= length

    def read() -> memoryview:
        if not count or lies_in_order:
            return record[offset * item : (offset + count) * item]
        import numpy as np  # seldom needed, and what takes longest to start

        numbers = np.frombuffer(record, f"<u{item}", count=len(record) // item)
        view = np.lib.stride_tricks.as_strided(
            numbers[offset:], size, [step * item for step in stride], writeable=False
        )
        return np.ascontiguousarray(view).reshape(-1).view(np.uint8).data

    return StoredTensor(dtype, tuple(size), read)


def read_safetensors(content: memoryview, source: Path) -> tuple[dict[str, StoredTensor], str | None]:
    """The tensors of a safetensors file, and what its metadata say under ``sigil``.

    The header is a JSON object of bounded length; the tensors must lie one behind the other and fill
    the rest of the file.
    """
    length = int.from_bytes(content[:8], "little")
    if length > min(MAX_HEADER_BYTES, len(content) - 8):
        raise SuspectError(
            f"{source} announces a safetensors header of {length:,} bytes, more than "
            f"{'the file has' if length <= MAX_HEADER_BYTES else f'the limit of {MAX_HEADER_BYTES:,}'}."
        )
    try:
        header = json.loads(bytes(content[8 : 8 + length]).decode(), object_pairs_hook=_once)
        metadata = header.pop("__metadata__", None) or {}
        said = metadata.get("sigil")
        if not all(isinstance(text, str) for text in metadata.values()):
            raise ValueError("metadata that are no text")
        data = content[8 + length :]
        state = {name: _described(data, entry) for name, entry in header.items()}
        places = sorted(tuple(entry["data_offsets"]) for entry in header.values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SuspectError(f"{source} is a damaged safetensors file: its header cannot be read.") from error
    end = 0
    for start, stop in places:
        if start != end:
            raise SuspectError(f"{source} is a damaged safetensors file: its tensors overlap or leave gaps.")
        end = stop
    if end != len(data):
        raise SuspectError(
            f"{source} is a damaged safetensors file: its tensors have {end:,} bytes, not {len(data):,}."
        )
    if said is not None and len(said) > MAX_METADATA_BYTES:
        raise SuspectError(
            f"the metadata of {source} has {len(said):,} characters, more than {MAX_METADATA_BYTES:,}"
        )
    return state, said


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, which must not name anything twice: readers would disagree on which one counts."""
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a name stands twice")
    return content


def _described(data: memoryview, entry: dict[str, Any]) -> StoredTensor:
    if set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError("not the entry of a tensor")
    start, stop = entry["data_offsets"]
    shape = tuple(entry["shape"])
    for number in (start, stop, *shape):
        if type(number) is not int or not 0 <= number < 1 << 62:
            raise ValueError("not a size")
    if not start <= stop <= len(data):
        raise ValueError("beyond the file")
    dtype = _SAFETENSORS.get(entry["dtype"], str(entry["dtype"])[:20])
    if dtype in ITEM_BYTES and math.prod(shape) * ITEM_BYTES[dtype] != stop - start:
        raise ValueError("other bytes than its shape asks for")
    return StoredTensor(dtype, shape, lambda: data[start:stop])
