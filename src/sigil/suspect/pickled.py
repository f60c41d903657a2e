"""Files that ``torch.save`` wrote, read without unpickling them.

Such a file is a pickle, and a pickle is a program: it can import any function and call it. No
unpickler is asked to run it, neither Python's nor PyTorch's. :func:`examine` walks its instructions
and keeps account of what they describe: dicts, lists, tuples, numbers, text and plain tensors, of
which the numbers lie elsewhere in the file. Every instruction that does more is refused, and every
name but those that ``torch.load`` allows by itself (``weights_only=True``). The tensors are then cut out
of the file by the sizes and strides that were described, and none reaches beyond its own record.

What a loader would have to guard against cannot happen here: writing into tensors (CVE-2026-24747,
memory corruption in PyTorch before 2.10), quantized and other special tensors, tuples built to take
forever to hash, and buffers of any size made from a few bytes.
"""

from __future__ import annotations

import io
import pickletools
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from sigil.errors import SuspectError, shown
from sigil.suspect.archive import MAX_RECORD_BYTES, Archive
from sigil.suspect.tensors import ITEM_BYTES, StoredTensor, Tensors, joined, strided, unsound

# A tuple of a state dict has about twenty members, counted with those of the tuples inside.
MAX_TUPLE = 1000
# A thousand tensors take about thirty thousand instructions; what ends a longer list is the time limit.
MAX_INSTRUCTIONS = 20_000_000
# Dicts and lists are looked into once, and this often in all again where they appear in several places.
MAX_LOOKS = 200_000

_PARAMETER = "torch.nn.parameter.Parameter"
_FROM_TYPE = "torch._tensor._rebuild_from_type_v2"
_TENSOR_V3 = "torch._utils._rebuild_tensor_v3"
# Tensors as they are stored, and what puts something around a tensor that is its first argument.
_REBUILD = {"torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2", _TENSOR_V3}
_AROUND = {
    _PARAMETER,
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor",
}
_DICTS = {"collections.OrderedDict", "collections.Counter"}
# Nothing comes of them here: a state dict cannot be loaded from them either.
_OPAQUE = {
    *("torch.device", "torch.serialization._get_layout", "builtins.complex"),
    *("torch._utils._rebuild_qtensor", "torch._utils._rebuild_sparse_tensor"),
    *("torch._utils._rebuild_meta_tensor_no_storage", "torch._utils._rebuild_nested_tensor"),
    *("torch.per_tensor_affine", "torch.per_tensor_symmetric", "torch.per_channel_affine"),
    *("torch.per_channel_symmetric", "torch.per_channel_affine_float_qparams"),
}
_OTHERS = {"torch.Size", "torch.Tensor", "builtins.set", "builtins.bytearray", "_codecs.encode", _FROM_TYPE}
_HARMLESS = _REBUILD | _AROUND | _DICTS | _OPAQUE | _OTHERS
_DTYPE = re.compile(
    r"torch\.(float|double|half|long|int|short|chalf|cfloat|cdouble|bool"
    r"|(b?float|u?int|complex|q?u?int|bits|float8_)[0-9a-z_]+)"
)
_STORAGE = re.compile(r"torch\.(cuda\.|storage\.)?(Untyped|Typed|[A-Z][A-Za-z0-9]*)Storage")

_ALIASES = {"float": "float32", "double": "float64", "half": "float16", "cfloat": "complex64"}
_KINDS = {
    **{"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16"},
    **{"Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool"},
    **{"ComplexFloat": "complex64", "ComplexDouble": "complex128", "Untyped": "uint8"},
}
# Of those that no weights have, what one number takes: in older files they lie between the others.
_OTHER_BYTES = {"QInt8": 1, "QUInt8": 1, "QInt32": 4, "QUInt4x2": 1, "QUInt2x4": 1}

_VALUES = {"NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
_FIXED = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_CONTAINERS = {"EMPTY_DICT": "dict", "EMPTY_LIST": "list", "EMPTY_TUPLE": "tuple"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass(frozen=True, slots=True)
class _Storage:
    """The numbers of one or several tensors: the record ``key``, of ``count`` numbers from ``start`` on."""

    kind: str
    key: str
    count: int
    start: int = 0

    @property
    def dtype(self) -> str:
        return _KINDS.get(self.kind, self.kind)

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES.get(self.dtype) or _OTHER_BYTES[self.kind]


@dataclass(slots=True, eq=False)
class _Tensor:
    """A tensor as a pickle describes it; one that is made empty is filled in by a later instruction."""

    storage: _Storage | None = None
    offset: Any = 0
    size: Any = (0,)
    stride: Any = (1,)
    dtype: str = "float32"
    negative: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Item:
    """What the walk knows of one object on the pickle's stack."""

    kind: str
    size: int = 1
    value: Any = None


def load_state(archive: Archive) -> Tensors:
    """The tensors of a zip archive that ``torch.save`` wrote, by the names of the dicts that they are in."""
    source = archive.source
    if "data.pkl" not in archive.names():
        raise SuspectError(f"{source} is a zip archive that neither torch.save nor torch.export.save wrote.")
    content = examine(bytes(archive.read("data.pkl", limit=MAX_RECORD_BYTES)), source=source)
    swapped = is_big_endian(archive)
    records: dict[str, memoryview] = {}

    def record(storage: _Storage) -> memoryview:
        if storage.key not in records:
            records[storage.key] = archive.read(f"data/{storage.key}")
        return records[storage.key]

    return _located(content, record, source, swapped=swapped)


def is_big_endian(archive: Archive) -> bool:
    """Whether the archive says that its numbers have the highest byte first."""
    if "byteorder" not in archive.names():
        return False
    said = bytes(archive.read("byteorder", limit=16))
    if said not in (b"little", b"big"):
        raise SuspectError(f"{archive.source} is damaged: its order of bytes is {shown(said)}.")
    return said == b"big"


def load_legacy_state(content: memoryview, source: Path) -> Tensors:
    """The tensors of a file that ``torch.save`` wrote without a zip archive, as before 1.6.

    Five pickles stand at its start: a magic number, the version, facts about the machine, the state
    dict and the names of its storages, whose raw bytes follow.
    """
    stream = io.BytesIO(content[:MAX_RECORD_BYTES])
    storages: dict[str, _Storage] = {}
    _, _, _, described, keys = (examine(stream, source=source, storages=storages) for _ in range(5))
    records: dict[str, memoryview] = {}
    position = stream.tell()
    for key in keys if isinstance(keys, list) else ():
        storage = storages.get(key) if isinstance(key, str) else None
        count = int.from_bytes(content[position : position + 8], "little")
        position += 8
        if storage is None or storage.kind not in _KINDS | _OTHER_BYTES or key in records:
            break
        end = position + count * storage.item_bytes
        if end > len(content):
            break
        records[key] = content[position:end]
        position = end

    def record(storage: _Storage) -> memoryview:
        if storage.key not in records:
            raise SuspectError(f"{source} is damaged or truncated: it lacks numbers of its tensors.")
        return records[storage.key]

    return _located(described, record, source)


def refuse_bare_pickle(content: memoryview, source: Path) -> NoReturn:
    """Say why a pickle that ``torch.save`` did not write is not opened."""
    examine(bytes(content[:MAX_RECORD_BYTES]), source=source)
    raise SuspectError(
        f"{source} is a bare Python pickle and no file of torch.save: give the model's state dict."
    )


def examine(pickle: bytes | io.BytesIO, *, source: Path, storages: dict[str, _Storage] | None = None) -> Any:
    """Walk one pickle without executing it; raise unless it can only list plain tensors.

    Returns what it describes, and puts all storages that it names into ``storages``.
    """
    stream = io.BytesIO(pickle) if isinstance(pickle, bytes) else pickle
    try:
        return _walk(stream, source, {} if storages is None else storages)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise SuspectError(
            f"{source} is damaged or truncated: its list of tensors cannot be followed."
        ) from error


def _walk(stream: io.BytesIO, source: Path, storages: dict[str, _Storage]) -> Any:
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
                # Protocol 2 calls it by its name in Python 2.
                wanted = str(argument).replace(" ", ".", 1).replace("__builtin__.", "builtins.", 1)
            if name == "INST" or not _is_harmless(wanted):
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
            stack.append(_called(function.value, arguments, source))
        elif name == "NEWOBJ" and stack[-2].value in _DICTS | {_PARAMETER, "torch.Tensor"}:
            arguments, function = stack.pop(), stack.pop()
            stack.append(_called(function.value, arguments, source))
        elif name == "BUILD":
            state = stack.pop().value
            target = stack[-1]
            if isinstance(target.value, _Tensor) and isinstance(state, tuple):
                _fill(target.value, *state[:4])
            elif target.kind == "dict" and isinstance(state, dict):
                target.value["__dict__"] = state
            elif target.kind != "dict" and not isinstance(target.value, _Tensor):
                raise SuspectError(
                    f"{source} sets the attributes of a {target.kind}: it is damaged or hostile."
                )
        elif name == "BINPERSID":
            stack[-1] = _Item("value", value=_storage(stack[-1].value, storages))
        else:
            raise SuspectError(
                f"{source} uses the pickle instruction {name}, which no state dict needs, and "
                "nothing of it was loaded: give safetensors or a state dict of torch.save."
            )
    if stack[-1].kind == "name":
        raise SuspectError(f"{source} holds the name {shown(stack[-1].value)} and no state dict.")
    return stack[-1].value


def _is_harmless(name: str) -> bool:
    """Whether ``torch.load`` imports this name from a file that nobody vouches for."""
    return name in _HARMLESS or bool(_DTYPE.fullmatch(name) or _STORAGE.fullmatch(name))


def _add(target: _Item, members: list[_Item], kind: str, source: Path) -> None:
    """Put the members into a dict or list."""
    if target.kind != kind:
        raise SuspectError(f"{source} writes into a {target.kind}: it is damaged or hostile.")
    if kind == "list":
        target.value.extend(member.value for member in members)
        return
    for key, value in zip(members[::2], members[1::2], strict=True):
        # Nothing else is hashed: a tuple could take forever, and no two others are taken for one.
        plain = isinstance(key.value, str | bytes | int | float | None)
        target.value[key.value if plain else key] = value.value


def _called(function: str, arguments: _Item, source: Path) -> _Item:
    """What a call of one of the harmless names describes."""
    given = arguments.value
    if function in _DICTS:
        return _Item("dict", value=dict(given[0]) if given else {})
    if function == _FROM_TYPE:
        function, _, given = given[:3]
        if function not in _REBUILD | _AROUND:
            raise ValueError("no tensor")
    if function in _AROUND:
        return _Item("value", arguments.size, given[0])
    if function in _REBUILD:
        tensor = _Tensor()
        _fill(tensor, *given[:4])
        metadata = given[6] if len(given) > 6 else None
        if function == _TENSOR_V3:
            tensor.dtype = _dtype(given[6])
            metadata = given[7] if len(given) > 7 else None
        # A conjugate has the same real part, and nothing else is read of a complex number.
        tensor.negative = isinstance(metadata, Mapping) and bool(metadata.get("neg"))
        return _Item("value", arguments.size, tensor)
    if function == "torch.Tensor":
        return _Item("value", arguments.size, _Tensor())
    if function in ("torch.Size", "builtins.set"):
        return _Item("value", arguments.size, tuple(given[0]) if given else ())
    if function == "_codecs.encode":
        return _Item("value", arguments.size, given[0].encode("latin-1", "replace"))
    if function == "builtins.bytearray" and given and type(given[0]) is int:
        raise SuspectError(f"{source} asks for a bytearray of any size: it is damaged or hostile.")
    return _Item("value", arguments.size)


def _fill(tensor: _Tensor, storage: object, offset: Any, size: Any, stride: Any) -> None:
    if not isinstance(storage, _Storage):
        raise ValueError("a tensor without a storage")
    tensor.storage, tensor.offset, tensor.size, tensor.stride = storage, offset, size, stride
    tensor.dtype = storage.dtype


def _dtype(name: str) -> str:
    short = str(name).removeprefix("torch.")
    return _ALIASES.get(short, short)


def _storage(said: Any, known: dict[str, _Storage]) -> _Storage:
    """The storage that a persistent id names: its kind, record, device, count of numbers, part of it.

    Of what is said of one record again, PyTorch believes the first.
    """
    tag, name, key, _, count, *view = said
    kind = _STORAGE.fullmatch(name)
    if tag != "storage" or not kind or type(key) not in (str, int) or type(count) is not int:
        raise ValueError("not a storage")
    storage = known.setdefault(str(key), _Storage(kind[2], str(key), count))
    if any(view):
        _, start, length = view[0]
        return replace(storage, start=start, count=length)
    return storage


def _walked(content: object) -> Iterator[tuple[str, object]]:
    """Everything in what a pickle describes, by name: the keys that lead there, with dots between.

    Dicts and lists can contain each other as often as they like. Each is looked into once, before any is
    looked into again under another name.
    """
    waiting, again = deque([("", content)]), deque[tuple[str, object]]()
    seen: set[int] = set()
    looks = 0
    while waiting or (again and looks < MAX_LOOKS):
        queue = waiting or again
        looks += queue is again
        name, value = queue.popleft()
        if not isinstance(value, dict | list | tuple):
            yield name, value
            continue
        if queue is waiting and id(value) in seen:
            again.append((name, value))
            continue
        seen.add(id(value))
        members = value.items() if isinstance(value, dict) else map(_named, enumerate(value))
        queue.extend(
            (joined(name, _text(key)), member)
            for key, member in members
            if isinstance(member, _Tensor | dict | list | tuple)
        )


def _named(numbered: tuple[int, object]) -> tuple[object, object]:
    """The number and the member of a list; of a pair that begins with a name, that name and the rest."""
    _, member = numbered
    if isinstance(member, list | tuple) and len(member) == 2 and isinstance(member[0], str):
        return member[0], member[1]
    return numbered


def _text(key: object) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, bytes):
        return key.decode("latin-1")
    return "?" if isinstance(key, _Item) else str(key)


def _located(
    content: object, record: Callable[[_Storage], memoryview], source: Path, *, swapped: bool = False
) -> Tensors:
    """The tensors in what a pickle describes, each within the bytes of its storage.

    One that cannot be found there is not sound; that is an error if none can.
    """
    if isinstance(content, _Tensor) or not isinstance(content, dict | list | tuple):
        raise SuspectError(f"{source} holds a {_word(content)} and no state dict: save model.state_dict().")
    found: Tensors = []
    why: SuspectError | None = None
    for name, tensor in _walked(content):
        if not isinstance(tensor, _Tensor):
            continue
        try:
            found.append((name, _stored(name, tensor, record, source, swapped)))
        except SuspectError as error:
            why = why or error
            size = tensor.size if isinstance(tensor.size, tuple | list) else ()
            found.append((name, unsound(tensor.dtype, size, error)))
    if not found:
        raise SuspectError(f"{source} holds {_inside(content)} and no tensors: save model.state_dict().")
    if why is not None and not any(tensor.sound for _, tensor in found):
        raise why
    return found


def _stored(
    name: str,
    tensor: _Tensor,
    record: Callable[[_Storage], memoryview],
    source: Path,
    swapped: bool,
) -> StoredTensor:
    storage = tensor.storage
    try:
        if storage is None:
            raise ValueError("a tensor without a storage")
        data = record(storage)
        unit = storage.item_bytes
        if (storage.start + storage.count) * unit > len(data):
            raise ValueError("a storage with fewer numbers than it claims")
        data = data[storage.start * unit : (storage.start + storage.count) * unit]
        return strided(
            data,
            tensor.dtype,
            tensor.size,
            tensor.stride,
            tensor.offset,
            home=(storage.key, storage.start),
            negative=tensor.negative,
            swapped=swapped,
        )
    except (ValueError, TypeError, KeyError) as error:
        raise SuspectError(f"{source} holds less of the tensor {shown(name)} than it claims.") from error


def _inside(content: object) -> str:
    """What a pickle without tensors holds, in a few words."""
    if not isinstance(content, dict) or not content:
        return f"a {_word(content)}"
    listed = ", ".join(f"{shown(key)} ({_word(value)})" for key, value in list(content.items())[:5])
    return f"a dict of {listed}{', …' if len(content) > 5 else ''}"


def _word(value: object) -> str:
    return "tensor" if isinstance(value, _Tensor) else type(value).__name__
