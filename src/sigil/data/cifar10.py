"""CIFAR-10 from its official Python batches, read without unpickling.

The official files are pickles. A pickle is a program for a small stack machine that may call anything;
here a reader of the few instructions that these files contain rebuilds the dictionary, and whatever
else a file asks for is refused. Nothing named in a file is ever imported or called.
"""

from __future__ import annotations

import io
import pickletools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sigil.data.cache import Allocate, Source
from sigil.errors import DataError

DIRECTORY = "cifar-10-batches-py"
TRAIN = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5")
TEST = ("test_batch",)
CLASSES = 10
SHAPE = (3, 32, 32)

_PIXELS = 3 * 32 * 32
# The official batches are 31,035,999 bytes at most.
_MAX_BYTES = 64 * 2**20
_LITERALS = frozenset(
    {
        "BININT",
        "BININT1",
        "BININT2",
        "BINSTRING",
        "SHORT_BINSTRING",
        "BINUNICODE",
        "SHORT_BINUNICODE",
        "BINBYTES",
        "SHORT_BINBYTES",
    }
)
_CONSTANTS = {"NONE": None, "NEWFALSE": False, "NEWTRUE": True}
_RECONSTRUCT = frozenset({"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"})


def source(data_dir: Path) -> Source:
    """Describe CIFAR-10 in `data_dir`/cifar-10-batches-py."""
    root = data_dir / DIRECTORY
    for file in (*TRAIN, *TEST):
        if not (root / file).is_file():
            raise DataError(
                f"CIFAR-10 was not found: {root / file} does not exist; download it with "
                f"`sigil data fetch cifar10 --data-dir {data_dir}`."
            )

    def decode(allocate: Allocate) -> int:
        for split, files in (("train", TRAIN), ("test", TEST)):
            batches = [read_batch(root / file) for file in files]
            count = sum(len(labels) for _, labels in batches)
            images = allocate(f"{split}-images", (count, *SHAPE))
            np.concatenate([images for images, _ in batches], out=images)
            allocate(f"{split}-labels", (count,))[:] = np.concatenate([own for _, own in batches])
        return CLASSES

    return Source(name="cifar10", root=root, files=(*TRAIN, *TEST), decode=decode)


def read_batch(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Read one batch file: images uint8 (n, 3, 32, 32) and labels int64 (n,)."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): fetch it again.") from error
    try:
        if len(content) > _MAX_BYTES:
            raise _Refused(f"it is larger than {_MAX_BYTES // 2**20} MiB")
        batch = _rebuild(content)
        if not isinstance(batch, dict):
            raise _Refused("it holds no dictionary")
        named = {key.decode() if isinstance(key, bytes) else key: batch[key] for key in batch}
        holder, labels = named.get("data"), named.get("labels")
        if not isinstance(holder, _Array) or holder.value is None:
            raise _Refused("it has no array 'data'")
        if not isinstance(labels, list) or not all(
            isinstance(label, int) and 0 <= label < CLASSES for label in labels
        ):
            raise _Refused(f"its labels are no list of whole numbers from 0 to {CLASSES - 1}")
        if holder.value.shape != (len(labels), _PIXELS) or not labels:
            raise _Refused(f"its data are not {len(labels)} rows of {_PIXELS} bytes")
    except (_Refused, ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is not an official CIFAR-10 batch ({error}): fetch it again.") from error
    return holder.value.reshape(-1, *SHAPE), np.array(labels, dtype=np.int64)


class _Refused(Exception):
    """A batch file asks for something that no official one contains."""


@dataclass(frozen=True)
class _Global:
    """A name that a pickle would import; here it stays a name."""

    name: str


@dataclass(frozen=True)
class _Dtype:
    """The description of unsigned bytes, the only kind of array in these files."""


@dataclass
class _Array:
    """An array that has been announced; its value follows with the BUILD instruction."""

    value: npt.NDArray[np.uint8] | None = None


def _rebuild(content: bytes) -> Any:
    """Run the stack machine over `content` for plain values and uint8 arrays, nothing else."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        start = marks.pop()
        values = stack[start:]
        del stack[start:]
        return values

    argument: Any
    for opcode, argument, _ in pickletools.genops(io.BytesIO(content)):
        kind = opcode.name
        if kind in _LITERALS:
            stack.append(argument)
        elif kind in _CONSTANTS:
            stack.append(_CONSTANTS[kind])
        elif kind in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif kind == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif kind in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif kind == "MARK":
            marks.append(len(stack))
        elif kind == "EMPTY_DICT":
            stack.append({})
        elif kind == "EMPTY_LIST":
            stack.append([])
        elif kind in ("TUPLE1", "TUPLE2", "TUPLE3"):
            length = int(kind[-1])
            stack[-length:] = [tuple(stack[-length:])]
        elif kind == "TUPLE":
            stack.append(tuple(since_mark()))
        elif kind == "APPENDS":
            values = since_mark()
            stack[-1].extend(values)
        elif kind == "SETITEMS":
            values = since_mark()
            # Text only: the hash of tuples nested by reference can take for ever.
            if not all(isinstance(key, str | bytes) for key in values[::2]):
                raise _Refused("its dictionary has keys that are no text")
            stack[-1].update(zip(values[::2], values[1::2], strict=True))
        elif kind == "GLOBAL":
            stack.append(_Global(argument))
        elif kind == "STACK_GLOBAL":
            if not all(isinstance(part, str) for part in stack[-2:]):
                raise _Refused("it names something by what is no text")
            stack[-2:] = [_Global(" ".join(stack[-2:]))]
        elif kind == "REDUCE":
            stack[-2:] = [_reduced(stack[-2], stack[-1])]
        elif kind == "BUILD":
            state = stack.pop()
            if isinstance(stack[-1], _Array):
                stack[-1].value = _array(state)
            elif not isinstance(stack[-1], _Dtype):
                raise _Refused("it sets the state of something that is no array")
        elif kind == "STOP":
            return stack.pop()
        elif kind not in ("PROTO", "FRAME"):
            raise _Refused(f"it contains the instruction {kind}")
    raise _Refused("it ends too early")


def _reduced(function: Any, arguments: Any) -> Any:
    """Give what the only three calls in such files stand for, without making them."""
    name = function.name if isinstance(function, _Global) else "something without a name"
    if name in _RECONSTRUCT:
        return _Array()
    if name == "numpy dtype" and arguments[0] in ("u1", b"u1"):
        return _Dtype()
    # Python 3 writes bytes in this way when it writes for Python 2.
    if name == "_codecs encode" and arguments[1:] == ("latin1",):
        return arguments[0].encode("latin-1")
    raise _Refused(f"it calls {name[:80]!r}")


def _array(state: Any) -> npt.NDArray[np.uint8]:
    """Make a uint8 array of an array state (version, shape, dtype, Fortran order, bytes)."""
    _, shape, dtype, fortran, pixels = state
    if not isinstance(dtype, _Dtype) or fortran:
        raise _Refused("its array is not of bytes in rows")
    if isinstance(pixels, str):
        pixels = pixels.encode("latin-1")
    return np.frombuffer(pixels, dtype=np.uint8).reshape(shape)
