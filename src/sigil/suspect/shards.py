"""Weights in several files, as Hugging Face stores them, and folders that hold a model.

A folder stands for the model in it: the one that an index lists (``model.safetensors.index.json``), a run's
``client.safetensors``, or its only model file. The SHA-256 of shards is that of the lines ``name sha256``,
one per file in the order of their names, each with a line feed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from sigil.errors import SuspectError, shown
from sigil.suspect.examination import Examination
from sigil.suspect.file import SuspectFile
from sigil.suspect.tensors import MAX_TENSORS

INDEX_END = ".index.json"
MAX_INDEX_BYTES = 4 * 1024**2
MAX_SHARDS = 128

_USUAL = ("client.safetensors", "model.safetensors", "pytorch_model.bin", "model.onnx")
_ENDINGS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".pt2", ".onnx")


def model_in(path: Path) -> Path:
    """The file that a path stands for: itself, or the model or index in a folder."""
    try:
        if not path.is_dir():
            return path
        held = sorted(entry.name for entry in os.scandir(path) if entry.is_file())
    except OSError as error:
        raise SuspectError(f"{path} cannot be read: {error.strerror}.") from error
    indices = [name for name in held if name.endswith(INDEX_END)]
    usual = [name for name in _USUAL if name in held]
    models = [name for name in held if name.lower().endswith(_ENDINGS)]
    for found in (indices if len(indices) == 1 else [], usual, models):
        if found and (found is usual or len(found) == 1):
            return path / found[0]
    if not models:
        raise SuspectError(f"{path} is a folder without a model file in it: give the file itself.")
    listed = ", ".join(shown(name) for name in models[:5]) + (", …" if len(models) > 5 else "")
    raise SuspectError(f"{path} is a folder with {len(models)} model files ({listed}): give one of them.")


class Shards:
    """All shards of an index as if they were one file: names, shapes and tensors, and one hash."""

    def __init__(self, index: Path, *, time_limit: float) -> None:
        self.path = index
        self._time_limit = time_limit
        self._homes = _weight_map(index)
        self._files: dict[str, SuspectFile] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._open: tuple[str, Examination] | None = None
        try:
            for name in sorted(set(self._homes.values())):
                self._files[name] = SuspectFile(index.parent / name, time_limit=time_limit)
                self._take(name)
        except BaseException:
            self.close()
            raise
        missing = [name for name in self._homes if name not in self._shapes]
        if missing:
            self.close()
            raise SuspectError(
                f"{index} lists the tensor {shown(missing[0])}, which is not in {self._homes[missing[0]]}."
            )

    @property
    def sha256(self) -> str:
        """The hash of all shards: of their names and hashes, one line each."""
        lines = "".join(f"{name} {file.sha256}\n" for name, file in sorted(self._files.items()))
        return hashlib.sha256(lines.encode()).hexdigest()

    @property
    def opened(self) -> dict[str, Any]:
        """What an examination says of a file: shards say nothing of themselves."""
        return {"kind": f"{len(self._files)} shards", "description": None}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the tensors in all shards."""
        return dict(self._shapes)

    def tensor(self, name: str) -> Tensor:
        """One tensor."""
        return self._examination(self._homes[name]).tensor(name)

    def close(self) -> None:
        """End the process that reads a shard, and give up the copies."""
        if self._open is not None:
            self._open[1].close()
            self._open = None
        for file in self._files.values():
            file.close()

    def _take(self, name: str) -> None:
        """Note what a shard holds, of what the index says it does."""
        if self._files[name].format == "onnx":
            raise SuspectError(f"{self.path} lists {name}, which holds no weights that can be put together.")
        for tensor, shape in self._examination(name).shapes().items():
            if self._homes.get(tensor) != name:
                raise SuspectError(
                    f"{self.path} does not say that {name} holds {shown(tensor)}: shards and index are not "
                    "of one model."
                )
            self._shapes[tensor] = shape

    def _examination(self, name: str) -> Examination:
        """The process for one shard; the one for another shard ends first."""
        if self._open is None or self._open[0] != name:
            if self._open is not None:
                self._open[1].close()
            self._open = (name, Examination(self._files[name], time_limit=self._time_limit))
        return self._open[1]


def _weight_map(index: Path) -> Mapping[str, str]:
    """Which shard holds which tensor; shards are files beside the index, never elsewhere."""
    try:
        with index.open("rb") as file:
            content = file.read(MAX_INDEX_BYTES + 1)
        if len(content) > MAX_INDEX_BYTES:
            raise SuspectError(f"{index} is longer than an index may be, {MAX_INDEX_BYTES:,} bytes.")
        found = json.loads(content)["weight_map"]
        pairs = [(name, home) for name, home in found.items() if isinstance(home, str)]
        if len(pairs) != len(found) or not pairs:
            raise ValueError("not names")
    except OSError as error:
        raise SuspectError(f"{index} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SuspectError(
            f"{index} is not an index of shards: it must map every tensor to its file under weight_map."
        ) from error
    homes = {home for _, home in pairs}
    if len(pairs) > MAX_TENSORS or len(homes) > MAX_SHARDS:
        raise SuspectError(
            f"{index} lists {len(pairs):,} tensors in {len(homes):,} files, more than the limits of "
            f"{MAX_TENSORS:,} and {MAX_SHARDS}."
        )
    for home in homes:
        if home in ("", ".", "..") or any(sign in home for sign in "/\\\0") or home.endswith(INDEX_END):
            raise SuspectError(
                f"{index} names {shown(home)}, but shards are files in the index's own folder."
            )
    return dict(pairs)
