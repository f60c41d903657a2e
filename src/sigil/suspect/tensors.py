"""Tensors as a file stores them: a number format, a shape and where the bytes are.

Nothing here needs PyTorch: files are taken apart in a process of their own that starts quickly
(:mod:`sigil.suspect.examiner`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sigil.errors import SuspectError

MAX_DIMENSIONS = 16
MAX_HEADER_BYTES = 100_000_000
"""Of safetensors, as their own library has it: a shorter limit would refuse files that work."""
MAX_REPEATED = 1 << 16
"""Numbers of a tensor that has more of them than its record, because it repeats some: a few constants."""
MAX_PATH = 2_000

ITEM_BYTES = {
    **{"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "complex64": 8, "complex128": 16},
    **{"float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1},
    **{"int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1},
}
"""The number formats that tensors can have, and what one number takes."""

_SAFETENSORS = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "C64": "complex64"},
    **{"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool"},
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file; ``read`` gives its bytes in logical order, ``dtype`` is a name of ITEM_BYTES.

    Tensors of one ``place`` are the same numbers. One that is not ``sound`` cannot be read: asking for it
    raises why.
    """

    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], memoryview]
    place: Hashable
    sound: bool = True


Tensors = list[tuple[str, StoredTensor]]
"""Tensors by name, in the order of the file; a name may come more than once."""


def joined(path: str, key: object) -> str:
    """The name of what lies under ``key`` in a dict or list of this name; of a long one, the end is kept."""
    text = key if isinstance(key, str) else str(key)
    name = f"{path}.{text}" if path else text
    if len(name) <= MAX_PATH:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{name[:40]}…{digest}…{name[-MAX_PATH // 2 :]}"


def unsound(dtype: str, shape: Sequence[object], why: SuspectError) -> StoredTensor:
    """A tensor that a file names and does not hold."""
    known = tuple(size for size in shape if type(size) is int and 0 <= size < 1 << 62)

    def read() -> memoryview:
        raise why

    complete = len(known) == len(shape) <= MAX_DIMENSIONS
    return StoredTensor(dtype, known if complete else (), read, object(), sound=False)


def strided(
    record: memoryview,
    dtype: str,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int,
    *,
    home: Hashable,
    negative: bool = False,
    swapped: bool = False,
) -> StoredTensor:
    """The tensor that lies in ``record`` with these strides; ValueError if it reaches beyond it.

    One that has many more numbers than its record, because it repeats them, does too. ``home`` names the
    record. A ``negative`` tensor is stored with the opposite sign of its numbers, a ``swapped`` one with the
    highest byte first.
    """
    item = ITEM_BYTES[dtype]
    if len(size) != len(stride) or len(size) > MAX_DIMENSIONS:
        raise ValueError("sizes and strides that do not fit")
    for number in (*size, *stride, offset):
        if type(number) is not int or not 0 <= number < 1 << 62:
            raise ValueError("not a size")
    if negative and not dtype.startswith(("float", "bfloat", "complex")):
        raise ValueError("a sign that this format does not have")
    count = math.prod(size)
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    if count and (last + 1) * item > len(record):
        raise ValueError("beyond the record")
    if count * item > len(record) and count > MAX_REPEATED:
        raise ValueError("far more numbers than the record")

    # The strides of a tensor that lies in order, last dimension first; dimensions of one do not count.
    lies_in_order, step = True, 1
    for length, given in zip(reversed(size), reversed(stride), strict=True):
        lies_in_order &= length == 1 or given == step
        step *= length

    def read() -> memoryview:
        if not count or (lies_in_order and not negative and not swapped):
            return record[offset * item : (offset + count) * item]
        import numpy as np  # seldom needed, and what takes longest to start

        numbers = np.frombuffer(record, f"V{item}", count=len(record) // item)
        view = np.lib.stride_tricks.as_strided(
            numbers[offset:], size, [step * item for step in stride], writeable=False
        )
        # A complex number is two numbers.
        part = item // 2 if dtype.startswith("complex") else item
        values = np.ascontiguousarray(view).reshape(-1).view(f"u{part}")
        if swapped:
            values = values.byteswap()
        if negative:
            values = values ^ values.dtype.type(1 << (8 * part - 1))
        return values.view(np.uint8).data

    place = (home, offset, tuple(size), tuple(stride), dtype, negative)
    return StoredTensor(dtype, tuple(size), read, place)


def read_safetensors(content: memoryview, source: Path) -> tuple[Tensors, str | None]:
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
    data = content[8 + length :]
    try:
        header = json.loads(bytes(content[8 : 8 + length]).decode(), object_pairs_hook=_entry_or_pairs)
        metadata = dict(next((value for name, value in header if name == "__metadata__"), None) or ())
        if not all(isinstance(text, str) for text in metadata.values()):
            raise ValueError("metadata that are no text")
        # Their library takes the entry of a tensor as a list, too.
        entries = [
            (name, entry if isinstance(entry, _Entry) else _entry(*entry))
            for name, entry in header
            if name != "__metadata__"
        ]
        tensors = [(joined("", name), _described(data, entry)) for name, entry in entries]
        places = sorted({(entry.start, entry.stop) for _, entry in entries})
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise SuspectError(f"{source} is a damaged safetensors file: its header cannot be read.") from error
    end = 0
    for start, stop in places:
        if start != end:
            raise SuspectError(f"{source} is a damaged safetensors file: its tensors overlap or leave gaps.")
        end = stop
    if end > len(data):
        raise SuspectError(
            f"{source} is truncated: {end - len(data):,} bytes missing of {8 + length + end:,}; copy or "
            "download it again."
        )
    if end != len(data):
        raise SuspectError(
            f"{source} is a damaged safetensors file: its tensors have {end:,} bytes, not {len(data):,}."
        )
    return tensors, metadata.get("sigil")


@dataclass(frozen=True, slots=True)
class _Entry:
    """What the header says of one tensor."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def _entry_or_pairs(pairs: list[tuple[str, Any]]) -> Any:
    """The entry of a tensor, or the pairs of another object: dicts of a large header would take too much."""
    content = dict(pairs)
    if not content.keys() >= {"dtype", "shape", "data_offsets"} or isinstance(content["shape"], str):
        return pairs
    return _entry(content["dtype"], content["shape"], content["data_offsets"])


def _entry(dtype: Any, shape: list[int], offsets: list[int]) -> _Entry:
    """One entry; the library of safetensors also takes {"F32": null} for the name of a number format."""
    start, stop = offsets
    kind = dtype if isinstance(dtype, str) else dtype[0][0]
    return _Entry(str(kind)[:20], tuple(shape), start, stop)


def _described(data: memoryview, entry: _Entry) -> StoredTensor:
    start, stop = entry.start, entry.stop
    for number in (start, stop, *entry.shape):
        if type(number) is not int or not 0 <= number < 1 << 62:
            raise ValueError("not a size")
    if start > stop:
        raise ValueError("ends before it starts")
    dtype = _SAFETENSORS.get(entry.dtype, entry.dtype)
    if dtype in ITEM_BYTES and math.prod(entry.shape) * ITEM_BYTES[dtype] != stop - start:
        raise ValueError("other bytes than its shape asks for")
    return StoredTensor(dtype, entry.shape, lambda: data[start:stop], (start, stop, dtype, entry.shape))
