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
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from sigil.errors import SuspectError, shown
from sigil.suspect.entries import MAX_LISTED, Listed
from sigil.suspect.examination import Examination
from sigil.suspect.file import SuspectFile

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
    if len(indices) == 1 and not usual:
        return path / indices[0]
    for found in ([] if indices else usual, models):
        if found and (found is usual or len(found) == 1):
            return path / found[0]
    if not models:
        raise SuspectError(f"{path} is a folder without a model file in it: give the file itself.")
    models = indices + models
    listed = ", ".join(shown(name) for name in models[:5]) + (", …" if len(models) > 5 else "")
    raise SuspectError(f"{path} is a folder with {len(models)} model files ({listed}): give one of them.")


def combined_hash(hashes: Mapping[str, str]) -> str:
    """The hash of several files: of their names and hashes, one line each."""
    lines = "".join(f"{name} {sha256}\n" for name, sha256 in sorted(hashes.items()))
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()


class Shards:
    """All shards of an index as if they were one file: tensors and one hash.

    The index says which files there are, and no more: who loads shards loads all that is in them. The time
    limit is for all of them together; ``task`` is what the process of each must be told.
    """

    def __init__(self, index: Path, *, time_limit: float, **task: Any) -> None:
        self.path = index
        self._left, self._task = time_limit, task
        self._files: dict[str, SuspectFile] = {}
        self._listed: list[Listed] = []
        self._homes: dict[int, tuple[str, Listed]] = {}
        self._open: tuple[str, Examination] | None = None
        self.opened: dict[str, Any] = {"description": None, "left": 0, "count": 0, "few": []}
        try:
            for name in _shard_names(index):
                self._files[name] = SuspectFile(index.parent / name, time_limit=self._left)
                self._take(name)
        except BaseException:
            self.close()
            raise
        self.opened["kind"] = f"{len(self._files)} shards"

    @property
    def sha256(self) -> str:
        """The hash of all shards: of their names and hashes, one line each."""
        return combined_hash({name: file.sha256 for name, file in self._files.items()})

    def listed(self) -> list[Listed]:
        """The tensors in all shards that may be a model's."""
        return self._listed

    def tensor(self, listed: Listed) -> Tensor:
        """One tensor."""
        name, held = self._homes[listed.number]
        return self._examination(name).tensor(replace(held, shape=listed.shape))

    def close(self) -> None:
        """End the process that reads a shard, and give up the copies."""
        if self._open is not None:
            self._open[1].close()
            self._open = None
        for file in self._files.values():
            file.close()

    def _take(self, name: str) -> None:
        """Note what a shard holds."""
        if self._files[name].format == "onnx":
            raise SuspectError(f"{self.path} lists {name}, which holds no weights that can be put together.")
        examination = self._examination(name)
        found, known = examination.listed(), self.opened
        for listed in found[: MAX_LISTED - len(self._listed)]:
            # In one file a number tells a tensor from others, and so it does in several.
            number = known["count"] + listed.number
            self._listed.append(replace(listed, number=number))
            self._homes.setdefault(number, (name, listed))
        known["left"] += examination.opened["left"] + max(0, len(found) + len(self._listed) - MAX_LISTED)
        known["count"] += examination.opened["count"]
        known["few"] = (known["few"] + examination.opened["few"])[:5]

    def _examination(self, name: str) -> Examination:
        """The process for one shard; the one for another shard ends first, and leaves its time."""
        if self._open is None or self._open[0] != name:
            if self._open is not None:
                self._left = max(self._open[1].left, 1e-3)
                self._open[1].close()
            self._open = (name, Examination(self._files[name], time_limit=self._left, **self._task))
        return self._open[1]


def _shard_names(index: Path) -> list[str]:
    """The shards that an index names; they are files beside it, never elsewhere."""
    try:
        with index.open("rb") as file:
            content = file.read(MAX_INDEX_BYTES + 1)
        if len(content) > MAX_INDEX_BYTES:
            raise SuspectError(f"{index} is longer than an index may be, {MAX_INDEX_BYTES:,} bytes.")
        homes = set(json.loads(content)["weight_map"].values())
        if not homes or not all(isinstance(home, str) for home in homes):
            raise ValueError("not names")
    except OSError as error:
        raise SuspectError(f"{index} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SuspectError(
            f"{index} is not an index of shards: it must map every tensor to its file under weight_map."
        ) from error
    if len(homes) > MAX_SHARDS:
        raise SuspectError(f"{index} lists {len(homes):,} files, more than the limits allow: {MAX_SHARDS}.")
    for home in homes:
        if home in ("", ".", "..") or any(sign in home for sign in "/\\\0") or home.endswith(INDEX_END):
            raise SuspectError(
                f"{index} names {shown(home)}, but shards are files in the index's own folder."
            )
    return sorted(homes)
