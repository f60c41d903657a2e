"""Sparse and quantized tensors as the dense numbers that they stand for, in float32.

PyTorch computes with either what it computes with these, so that a thief can hand a model on in any of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from sigil.errors import SuspectError
from sigil.suspect.tensors import MAX_DIMENSIONS, MAX_REPEATED, StoredTensor

MOST_TIMES: Final = 64
"""How many numbers may be made of one that is stored: kernels with more zeros than this compute nothing."""

_COMPRESSED: Final = {"torch.sparse_csr": False, "torch.sparse_bsr": False} | {
    "torch.sparse_csc": True,
    "torch.sparse_bsc": True,
}


def made(way: str, parts: Sequence[Any], size: Sequence[int], what: str) -> StoredTensor:
    """The tensor of this ``size`` that is made of ``parts`` in a ``way``; raises SuspectError if none is.

    Ways are the layouts of sparse tensors and the schemes of quantized ones.
    """
    shape = tuple(size)
    stored = max((math.prod(part.shape) for part in parts if isinstance(part, StoredTensor)), default=0)
    fits = len(shape) <= MAX_DIMENSIONS and all(type(one) is int and 0 <= one < 1 << 62 for one in shape)
    if not fits or math.prod(shape) > max(MAX_REPEATED, MOST_TIMES * stored):
        raise SuspectError(f"{what}, of far more numbers than are stored.")

    def read() -> memoryview:
        import numpy as np  # seldom needed, and what takes longest to start

        try:
            found = _numbers(way, [_array(part) for part in parts], shape)
            return np.ascontiguousarray(found, np.float32).reshape(-1).view(np.uint8).data
        except (ValueError, IndexError, TypeError, KeyError, ArithmeticError) as error:
            raise SuspectError(f"{what}, whose parts do not fit together.") from error

    place = (way, shape, *(one.place if isinstance(one, StoredTensor) else repr(one) for one in parts))
    return StoredTensor("float32", shape, read, place)


def _array(part: Any) -> Any:
    """A part as numbers of NumPy, which knows no bfloat16."""
    import numpy as np

    if not isinstance(part, StoredTensor):
        return part
    if part.dtype == "bfloat16":
        high = np.frombuffer(part.read(), np.uint16).astype(np.uint32) << 16
        return high.view(np.float32).reshape(part.shape)
    return np.frombuffer(part.read(), part.dtype).reshape(part.shape)


def _numbers(way: str, parts: Sequence[Any], shape: tuple[int, ...]) -> Any:
    import numpy as np

    found = np.zeros(shape)
    if way == "torch.sparse_coo":
        places, values = parts
        _check(places, shape[: len(places)])
        if values.shape != (places.shape[1], *shape[len(places) :]):
            raise ValueError("other values than places")
        np.add.at(found, tuple(places), values)  # what is said twice is added
        return found
    if way in _COMPRESSED:
        starts, inner, values = parts
        *_, rows, columns = shape
        blocks = values if values.ndim > inner.ndim else values[..., None, None]
        tall, wide = blocks.shape[-2:]
        places = np.zeros((math.prod(shape[:-2]), rows // tall, columns // wide, tall, wide))
        outer = np.diff(starts.reshape(len(places), -1))
        if outer.min(initial=0) < 0 or outer.sum() != inner.size:
            raise ValueError("other places than lines have")
        matrix, line = (one.ravel() for one in np.indices(outer.shape))
        each, lines = np.repeat(matrix, outer.ravel()), np.repeat(line, outer.ravel())
        ends = (inner.ravel(), lines) if _COMPRESSED[way] else (lines, inner.ravel())
        _check(ends, places.shape[1:3])
        places[(each, *ends)] = blocks.reshape(-1, tall, wide)
        return places.transpose(0, 1, 3, 2, 4).reshape(shape)
    values, scale, zero, *axis = parts
    if way == "torch.per_tensor_affine":
        return (values.astype(np.float64) - int(zero)) * float(scale)
    if way != "torch.per_channel_affine" or {np.shape(scale), np.shape(zero)} != {(shape[axis[0]],)}:
        raise KeyError(way)
    along = [-1 if place == axis[0] else 1 for place in range(len(shape))]
    return (values.astype(np.float64) - np.reshape(zero, along)) * np.reshape(scale, along)


def _check(places: Any, sizes: Sequence[int]) -> None:
    """Places count from zero: NumPy would take those before it from the end."""
    if any(
        one.size and (one.min() < 0 or one.max() >= size) for one, size in zip(places, sizes, strict=True)
    ):
        raise IndexError("a place outside")
