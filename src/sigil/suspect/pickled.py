"""State dicts that ``torch.save`` wrote, read so that nothing in them can run.

Such a file is a pickle, and a pickle is a program: it can import any function and call it. Two
independent guards stand before that. First, :func:`examine` walks the instructions without
executing one and refuses every pickle that does more than list plain tensors. Only then
``torch.load(weights_only=True)`` interprets it, with an allow-list of its own, and with the file
mapped into memory, so that no tensor can reach beyond the file.

The walk also stops what the allow-list of PyTorch lets through: writing into anything but a dict or
list (CVE-2026-24747, memory corruption before 2.10), quantized and other special tensors, tuples
built to take forever to hash, and buffers of any size made from a few bytes.
"""

from __future__ import annotations

import io
import pickletools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from sigil.errors import SuspectError
from sigil.models.spec import shown
from sigil.suspect.archive import MAX_RECORD_BYTES, Archive

# A tuple of a state dict has about twenty members, counted with those of the tuples inside.
MAX_TUPLE = 1000

_WRAPPERS = ("state_dict", "model_state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.")  # of nn.DataParallel and of torch.compile

_NAMES = {
    "collections.OrderedDict",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch.Size",
    "torch.device",
}
_DTYPES = {f"torch.{name}" for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
_KINDS = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
_STORAGES = {
    "torch.storage.UntypedStorage",
    *(f"torch.{kind}Storage" for kind in _KINDS),
    *(f"torch.cuda.{kind}Storage" for kind in _KINDS),
}
_HARMLESS = _NAMES | _DTYPES | _STORAGES

_VALUES = {"NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
_CONTAINERS = {"EMPTY_DICT": "dict", "EMPTY_LIST": "list", "EMPTY_TUPLE": "tuple"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass(frozen=True, slots=True)
class _Item:
    """What the walk knows of one object on the pickle's stack."""

    kind: str
    size: int = 1
    text: str = ""


_VALUE = _Item("value")


def load_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a zip archive that ``torch.save`` wrote."""
    with Archive(path) as archive:
        if "data.pkl" not in archive.names():
            raise SuspectError(
                f"{path} is a zip archive that neither torch.save nor torch.export.save wrote."
            )
        examine(archive.read("data.pkl", limit=MAX_RECORD_BYTES), source=path)
    return _load(path, mmap=True)


def load_legacy_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a file that ``torch.save`` wrote without a zip archive, as before 1.6.

    Five pickles stand at its start: a magic number, the version, facts about the machine, the state
    dict and the names of its storages, whose raw bytes follow.
    """
    with path.open("rb") as file:
        stream = io.BytesIO(file.read(MAX_RECORD_BYTES))
    for _ in range(5):
        examine(stream, source=path)
    return _load(path, mmap=False)


def refuse_bare_pickle(path: Path) -> NoReturn:
    """Say why a pickle that ``torch.save`` did not write is not opened."""
    with path.open("rb") as file:
        examine(file.read(MAX_RECORD_BYTES), source=path)
    raise SuspectError(
        f"{path} is a bare Python pickle and no file of torch.save: give the model's state dict."
    )


def examine(pickle: bytes | io.BytesIO, *, source: Path) -> None:
    """Walk one pickle without executing it; raise unless it can only list plain tensors."""
    stream = io.BytesIO(pickle) if isinstance(pickle, bytes) else pickle
    try:
        _walk(stream, source)
    except (ValueError, IndexError, KeyError) as error:
        raise SuspectError(
            f"{source} is damaged or truncated: its list of tensors cannot be followed."
        ) from error


def _walk(stream: io.BytesIO, source: Path) -> None:
    stack: list[_Item] = []
    marks: list[list[_Item]] = []
    memo: dict[object, _Item] = {}
    for opcode, argument, _ in pickletools.genops(stream):
        name = opcode.name
        if name in ("PROTO", "FRAME", "STOP"):
            pass
        elif name in _VALUES:
            stack.append(_VALUE)
        elif name in ("BINUNICODE", "SHORT_BINUNICODE", "SHORT_BINSTRING"):
            stack.append(_Item("value", text=str(argument)))
        elif name in _CONTAINERS:
            stack.append(_Item(_CONTAINERS[name]))
        elif name == "MARK":
            marks.append(stack)
            stack = []
        elif name in _TUPLES or name == "TUPLE":
            if name == "TUPLE":
                members, stack = stack, marks.pop()
            else:
                members = [stack.pop() for _ in range(_TUPLES[name])]
            # Tuples are hashed when they are used as keys, each as often as it is contained.
            size = 1 + sum(member.size for member in members)
            if size > MAX_TUPLE:
                raise SuspectError(f"{source} nests tuples as no state dict does: it is damaged or hostile.")
            stack.append(_Item("tuple", size))
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name in ("SETITEMS", "APPENDS", "SETITEM", "APPEND"):
            if name.endswith("S"):
                stack = marks.pop()
            else:
                del stack[-2 if name == "SETITEM" else -1 :]
            if stack[-1].kind != ("dict" if name.startswith("SET") else "list"):
                raise SuspectError(f"{source} writes into a {stack[-1].kind}: it is damaged or hostile.")
        elif name in ("GLOBAL", "STACK_GLOBAL", "INST"):
            if name == "STACK_GLOBAL":
                attribute, module = stack.pop(), stack.pop()
                wanted = f"{module.text}.{attribute.text}"
            else:
                wanted = str(argument).replace(" ", ".", 1)
            if wanted not in _HARMLESS or name == "INST":
                raise SuspectError(
                    f"{source} asks Python to import {shown(wanted)} when it is opened, which "
                    "could run code, and nothing of it was loaded: give safetensors or a state "
                    "dict with nothing but tensors."
                )
            stack.append(_Item("name", text=wanted))
        elif name == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            if function.kind != "name" or arguments.kind != "tuple":
                raise SuspectError(f"{source} calls what is no function: it is damaged or hostile.")
            if function.text == "collections.OrderedDict":
                stack.append(_Item("dict"))
            else:
                stack.append(_Item("value", arguments.size))
        elif name == "BUILD":
            stack.pop()
            if stack[-1].kind != "dict":
                raise SuspectError(
                    f"{source} sets the attributes of a {stack[-1].kind}: it is damaged or hostile."
                )
        elif name == "BINPERSID":
            stack[-1] = _VALUE
        else:
            raise SuspectError(
                f"{source} uses the pickle instruction {name}, which no state dict needs, and "
                "nothing of it was loaded: give safetensors or a state dict of torch.save."
            )


def _load(path: Path, *, mmap: bool) -> dict[str, Tensor]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(str(path), map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:
        # Hostile bytes make PyTorch raise almost anything; only the sentence is of use.
        raise SuspectError(f"{path} is damaged or truncated, or is no state dict of torch.save.") from error
    state = _unwrapped(content, path)
    held: dict[int, int] = {}
    for name, tensor in state.items():
        storage = tensor.untyped_storage()
        held[storage.data_ptr()] = storage.nbytes()
        if tensor.numel() * tensor.element_size() > storage.nbytes():
            raise SuspectError(f"{path} holds less of the tensor {shown(name)} than it claims.")
    if sum(held.values()) > path.stat().st_size:
        raise SuspectError(
            f"{path} claims tensors of {sum(held.values()):,} bytes, more than the file has: it is "
            "damaged or hostile."
        )
    return state


def _unwrapped(content: object, path: Path) -> dict[str, Tensor]:
    """The names and tensors in ``content``, out of one wrapping dict and one common prefix."""
    if isinstance(content, Mapping):
        for wrapper in _WRAPPERS:
            if isinstance(content.get(wrapper), Mapping):
                content = content[wrapper]
                break
    if not isinstance(content, Mapping):
        raise SuspectError(
            f"{path} holds a {type(content).__name__} and no state dict: save model.state_dict()."
        )
    state = {
        name: tensor
        for name, tensor in content.items()
        if isinstance(name, str) and isinstance(tensor, Tensor)
    }
    if not state:
        raise SuspectError(f"{path} holds no tensors by name: save model.state_dict().")
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    return state
