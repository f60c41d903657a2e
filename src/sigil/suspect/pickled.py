"""State dicts that ``torch.save`` wrote, read without unpickling them.

Such a file is a pickle, and a pickle is a program: it can import any function and call it. No
unpickler is asked to run it, neither Python's nor PyTorch's. :func:`examine` walks its instructions
and keeps account of what they describe: dicts, lists, tuples, numbers, text and plain tensors, of
which the numbers lie elsewhere in the file. Every instruction that does more is refused, and every
name but those of the constructors of plain tensors. The tensors are then cut out of the file by
the sizes and strides that were described, and none reaches beyond its own record.

What a loader would have to guard against cannot happen here: writing into tensors (CVE-2026-24747,
memory corruption in PyTorch before 2.10), quantized and other special tensors, tuples built to take
forever to hash, and buffers of any size made from a few bytes.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from sigil.errors import SuspectError, shown
from sigil.suspect.archive import MAX_RECORD_BYTES, Archive
from sigil.suspect.tensors import ITEM_BYTES, StoredTensor, strided

# A tuple of a state dict has about twenty members, counted with those of the tuples inside.
MAX_TUPLE = 1000
# A thousand tensors take about thirty thousand instructions, those of an optimizer's state no more.
MAX_INSTRUCTIONS = 300_000

_WRAPPERS = ("state_dict", "model_state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.")  # of nn.DataParallel and of torch.compile

_REBUILD = {
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
}
_NAMES = {"collections.OrderedDict", "torch.Size", "torch.device", *_REBUILD}
_DTYPES = {
    f"torch.{name}"
    for name in (
        *("float", "float64", "double", "float32", "float16", "half", "bfloat16"),
        *("int64", "long", "int32", "int", "int16", "short", "int8", "uint8", "bool"),
        *("uint16", "uint32", "uint64", "complex32", "chalf", "complex64", "cfloat", "complex128", "cdouble"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
}
_KINDS = {
    **{"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16"},
    **{"Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool"},
}
_STORAGES = {
    "torch.storage.UntypedStorage": "uint8",
    **{f"torch.{kind}Storage": dtype for kind, dtype in _KINDS.items()},
    **{f"torch.cuda.{kind}Storage": dtype for kind, dtype in _KINDS.items()},
}
_HARMLESS = _NAMES | _DTYPES | _STORAGES.keys()

_VALUES = {"NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
_FIXED = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_CONTAINERS = {"EMPTY_DICT": "dict", "EMPTY_LIST": "list", "EMPTY_TUPLE": "tuple"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass(frozen=True, slots=True, eq=False)
class _Storage:
    """The numbers of one or several tensors: the record ``key``, of ``count`` numbers."""

    dtype: str
    key: str
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class _Tensor:
    """A tensor as a pickle describes it."""

    storage: _Storage
    offset: Any
    size: Any
    stride: Any


@dataclass(frozen=True, slots=True, eq=False)
class _Item:
    """What the walk knows of one object on the pickle's stack."""

    kind: str
    size: int = 1
    value: Any = None


def load_state(content: memoryview, source: Path) -> dict[str, StoredTensor]:
    """The tensors of a zip archive that ``torch.save`` wrote."""
    archive = Archive(content, source)
    if "data.pkl" not in archive.names():
        raise SuspectError(f"{source} is a zip archive that neither torch.save nor torch.export.save wrote.")
    found = examine(bytes(archive.read("data.pkl", limit=MAX_RECORD_BYTES)), source=source)
    described = _unwrapped(found, source)
    check_byte_order(archive)
    records: dict[str, memoryview] = {}
    state = {}
    for name, tensor in described.items():
        key = tensor.storage.key
        if key not in records:
            records[key] = archive.read(f"data/{key}")
        state[name] = _located(name, tensor, records[key], source)
    return state


def check_byte_order(archive: Archive) -> None:
    """Raise if the archive says that its numbers have the highest byte first."""
    if "byteorder" in archive.names() and bytes(archive.read("byteorder", limit=16)) != b"little":
        raise SuspectError(f"{archive.source} was written on a big-endian machine, which is not supported.")


def load_legacy_state(content: memoryview, source: Path) -> dict[str, StoredTensor]:
    """The tensors of a file that ``torch.save`` wrote without a zip archive, as before 1.6.

    Five pickles stand at its start: a magic number, the version, facts about the machine, the state
    dict and the names of its storages, whose raw bytes follow.
    """
    stream = io.BytesIO(content[:MAX_RECORD_BYTES])
    _, _, machine, found, keys = (examine(stream, source=source) for _ in range(5))
    described = _unwrapped(found, source)
    storages = {tensor.storage.key: tensor.storage for tensor in described.values()}
    if isinstance(machine, Mapping) and machine.get("little_endian") is False:
        raise SuspectError(f"{source} was written on a big-endian machine, which is not supported.")
    others = {storage.key: storage for storage in _storages(found)}
    records: dict[str, memoryview] = {}
    position = stream.tell()
    for key in keys if isinstance(keys, list) else ():
        storage = storages.get(key) or others.get(key)
        count = int.from_bytes(content[position : position + 8], "little")
        position += 8
        if storage is None or storage.count != count or key in records:
            break
        records[key] = content[position : position + count * ITEM_BYTES[storage.dtype]]
        position += count * ITEM_BYTES[storage.dtype]
    if position > len(content) or not storages.keys() <= records.keys():
        raise SuspectError(f"{source} is damaged or truncated: it lacks numbers of its tensors.")
    return {
        name: _located(name, tensor, records[tensor.storage.key], source)
        for name, tensor in described.items()
    }


def refuse_bare_pickle(content: memoryview, source: Path) -> NoReturn:
    """Say why a pickle that ``torch.save`` did not write is not opened."""
    examine(bytes(content[:MAX_RECORD_BYTES]), source=source)
    raise SuspectError(
        f"{source} is a bare Python pickle and no file of torch.save: give the model's state dict."
    )


def examine(pickle: bytes | io.BytesIO, *, source: Path) -> Any:
    """Walk one pickle without executing it; raise unless it can only list plain tensors.

    Returns what it describes; of dicts, the entries whose names are text.
    """
    stream = io.BytesIO(pickle) if isinstance(pickle, bytes) else pickle
    try:
        return _walk(stream, source)
    except (ValueError, IndexError, KeyError, TypeError) as error:
        raise SuspectError(
            f"{source} is damaged or truncated: its list of tensors cannot be followed."
        ) from error


def _walk(stream: io.BytesIO, source: Path) -> Any:
    stack: list[_Item] = []
    marks: list[list[_Item]] = []
    memo: dict[object, _Item] = {}
    for count, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        name = opcode.name
        if count >= MAX_INSTRUCTIONS:
            raise SuspectError(
                f"{source} lists its tensors in more than {MAX_INSTRUCTIONS:,} instructions: it is damaged "
                "or hostile."
            )
        if name in ("PROTO", "FRAME", "STOP"):
            pass
        elif name in _VALUES:
            stack.append(_Item("value", value=_FIXED.get(name, argument)))
        elif name in ("BINUNICODE", "SHORT_BINUNICODE", "SHORT_BINSTRING"):
            stack.append(_Item("value", value=str(argument)))
        elif name in _CONTAINERS:
            kind = _CONTAINERS[name]
            stack.append(_Item(kind, value={"dict": {}, "list": [], "tuple": ()}[kind]))
        elif name == "MARK":
            marks.append(stack)
            stack = []
        elif name in _TUPLES or name == "TUPLE":
            if name == "TUPLE":
                members, stack = stack, marks.pop()
            else:
                members = [stack.pop() for _ in range(_TUPLES[name])][::-1]
            # Tuples contain each other as often as they like, and grow by doubling.
            size = 1 + sum(member.size for member in members)
            if size > MAX_TUPLE:
                raise SuspectError(f"{source} nests tuples as no state dict does: it is damaged or hostile.")
            stack.append(_Item("tuple", size, tuple(member.value for member in members)))
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name in ("SETITEMS", "APPENDS", "SETITEM", "APPEND"):
            if name.endswith("S"):
                members, stack = stack, marks.pop()
            else:
                first = len(stack) - (2 if name == "SETITEM" else 1)
                members = stack[first:]
                del stack[first:]
            _add(stack[-1], members, "dict" if name.startswith("SET") else "list", source)
        elif name in ("GLOBAL", "STACK_GLOBAL", "INST"):
            if name == "STACK_GLOBAL":
                attribute, module = stack.pop(), stack.pop()
                wanted = f"{module.value}.{attribute.value}"
            else:
                wanted = str(argument).replace(" ", ".", 1)
            if wanted not in _HARMLESS or name == "INST":
                raise SuspectError(
                    f"{source} asks Python to import {shown(wanted)} when it is opened, which "
                    "could run code, and nothing of it was loaded: give safetensors or a state "
                    "dict with nothing but tensors."
                )
            stack.append(_Item("name", value=wanted))
        elif name == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            if function.kind != "name" or arguments.kind != "tuple":
                raise SuspectError(f"{source} calls what is no function: it is damaged or hostile.")
            stack.append(_called(function.value, arguments))
        elif name == "BUILD":
            stack.pop()
            if stack[-1].kind != "dict":
                raise SuspectError(
                    f"{source} sets the attributes of a {stack[-1].kind}: it is damaged or hostile."
                )
        elif name == "BINPERSID":
            stack[-1] = _Item("value", value=_storage(stack[-1].value))
        else:
            raise SuspectError(
                f"{source} uses the pickle instruction {name}, which no state dict needs, and "
                "nothing of it was loaded: give safetensors or a state dict of torch.save."
            )
    return stack[-1].value


def _add(target: _Item, members: list[_Item], kind: str, source: Path) -> None:
    """Put the members into a dict or list."""
    if target.kind != kind:
        raise SuspectError(f"{source} writes into a {target.kind}: it is damaged or hostile.")
    if kind == "list":
        target.value.extend(member.value for member in members)
        return
    for key, value in zip(members[::2], members[1::2], strict=True):
        # Numbers name the entries of an optimizer, of which nothing is read.
        if isinstance(key.value, str):
            target.value[key.value] = value.value


def _called(function: str, arguments: _Item) -> _Item:
    """What a call of one of the harmless names describes."""
    if function == "collections.OrderedDict":
        return _Item("dict", value={})
    if function == "torch._utils._rebuild_parameter":
        return _Item("value", arguments.size, arguments.value[0])
    if function in _REBUILD:
        storage, offset, size, stride = arguments.value[:4]
        if not isinstance(storage, _Storage):
            raise ValueError("a tensor without a storage")
        return _Item("value", arguments.size, _Tensor(storage, offset, size, stride))
    if function == "torch.Size":
        return _Item("value", arguments.size, tuple(arguments.value[0]))
    return _Item("value", arguments.size)


def _storage(said: Any) -> _Storage:
    """The storage that a persistent id names: its kind, record, device and count of numbers."""
    tag, kind, key, _, count, *view = said
    if tag != "storage" or type(key) is not str or type(count) is not int or any(view):
        raise ValueError("not a storage")
    return _Storage(_STORAGES[kind], key, count)


def _storages(content: Any) -> list[_Storage]:
    """All storages in what a pickle describes, also those of tensors that are not of the state dict."""
    found, waiting, seen = [], [content], set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, _Tensor):
            found.append(value.storage)
        elif isinstance(value, _Storage):
            found.append(value)
        elif isinstance(value, dict | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            waiting += value.values() if isinstance(value, dict) else value
    return found


def _located(name: str, tensor: _Tensor, record: memoryview, source: Path) -> StoredTensor:
    """The tensor within the bytes of its storage."""
    storage = tensor.storage
    try:
        if storage.count * ITEM_BYTES[storage.dtype] > len(record):
            raise ValueError("a storage with fewer numbers than it claims")
        return strided(record, storage.dtype, tensor.size, tensor.stride, tensor.offset)
    except (ValueError, TypeError) as error:
        raise SuspectError(f"{source} holds less of the tensor {shown(name)} than it claims.") from error


def _unwrapped(content: object, source: Path) -> dict[str, _Tensor]:
    """The names and tensors in ``content``, out of one wrapping dict and one common prefix."""
    if isinstance(content, Mapping):
        for wrapper in _WRAPPERS:
            if isinstance(content.get(wrapper), Mapping):
                content = content[wrapper]
                break
    if not isinstance(content, Mapping):
        raise SuspectError(f"{source} holds a {_word(content)} and no state dict: save model.state_dict().")
    state = {
        name: tensor
        for name, tensor in content.items()
        if isinstance(name, str) and isinstance(tensor, _Tensor)
    }
    if not state:
        raise SuspectError(f"{source} holds no tensors by name: save model.state_dict().")
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    return state


def _word(value: object) -> str:
    return "tensor" if isinstance(value, _Tensor) else type(value).__name__
