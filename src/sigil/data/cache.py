"""Decoded images on disk: made once, then memory-mapped by every run and process.

A cache entry is a directory `<name>-<source_digest>` with four arrays (uint8 images and int64 labels of
both splits) and `meta.json`, which says what they must look like. It is built under a temporary name
and renamed when complete, so an entry is either whole or absent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sigil.data.statistics import channel_statistics
from sigil.errors import DataError

_VERSION = 1
_ARRAYS = ("train-images", "train-labels", "test-images", "test-labels")
_MAX_META_BYTES = 64 * 2**10
_STALE_SECONDS = 24 * 3600


class Allocate(Protocol):
    """Gives a decoder a writable array on disk: `allocate("train-images", (n, C, H, W))`.

    The names are train-images, train-labels, test-images and test-labels; images are uint8, labels
    int64.
    """

    def __call__(self, array: str, shape: tuple[int, ...]) -> npt.NDArray[Any]: ...


@dataclass(frozen=True)
class Source:
    """A data set as it lies on disk.

    `name` names the cache entry; `files` (paths under `root`) are what the source_digest covers: names,
    sizes and times; `options` are settings that change the decoded images; `decode` fills the arrays
    that it asks for and returns the number of classes.
    """

    name: str
    root: Path
    files: Sequence[str]
    decode: Callable[[Allocate], int]
    options: str = ""


@dataclass(frozen=True)
class Decoded:
    """The arrays of a cache entry: images (n, C, H, W) uint8 mapped read-only, labels (n,) int64."""

    train_images: npt.NDArray[np.uint8]
    train_labels: npt.NDArray[np.int64]
    test_images: npt.NDArray[np.uint8]
    test_labels: npt.NDArray[np.int64]
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


def source_digest(source: Source) -> str:
    """Give 16 hex digits that change with the name, size or time of any source file."""
    digest = hashlib.sha256(f"{_VERSION}\n{source.options}\n".encode())
    for file in source.files:
        try:
            status = os.stat(os.path.join(source.root, file))
        except OSError as error:
            raise DataError(
                f"{source.root / file} cannot be read ({error.strerror}): restore or remove it."
            ) from error
        line = f"{file}\0{status.st_size}\0{status.st_mtime_ns}\n"
        digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def cached(source: Source, *, roots: Sequence[Path]) -> Decoded:
    """Open the decoded arrays of a data set, decoding it first if no sound entry exists.

    `roots` are the directories to look in, best first; a new entry goes to the first that can be
    written.
    """
    entry = f"{source.name}-{source_digest(source)}"
    for root in roots:
        decoded = _open(root / entry)
        if decoded is not None:
            return decoded
    refused = []
    for root in roots:
        try:
            root.mkdir(parents=True, exist_ok=True)
            building = Path(tempfile.mkdtemp(prefix=".building-", dir=root))
        except OSError as error:
            refused.append(f"{root} ({error.strerror})")
            continue
        _remove_stale(root)
        return _build(source, building, root / entry)
    raise DataError(
        f"The decoded images of {source.name} cannot be written to {' or '.join(refused)}: set "
        "SIGIL_CACHE to a directory that can be written."
    )


def _build(source: Source, building: Path, entry: Path) -> Decoded:
    """Decode `source` into the directory `building` and rename it to `entry`."""
    arrays: dict[str, npt.NDArray[Any]] = {}

    def allocate(array: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        dtype = np.uint8 if array.endswith("images") else np.int64
        arrays[array] = _create(building / f"{array}.npy", shape=shape, dtype=dtype)
        return arrays[array]

    try:
        classes = source.decode(allocate)
        mean, std = channel_statistics(arrays["train-images"])
        meta = {
            "version": _VERSION,
            "classes": classes,
            "mean": mean,
            "std": std,
            "shapes": {name: arrays[name].shape for name in _ARRAYS},
            "labels_crc32": _labels_crc32(arrays["train-labels"], arrays["test-labels"]),
        }
        for mapped in arrays.values():
            if isinstance(mapped, np.memmap):
                mapped.flush()
        (building / "meta.json").write_text(json.dumps(meta))
        # mkdtemp makes a private directory; data directories are often shared between users.
        building.chmod(0o755)
        if entry.exists() and _open(entry) is None:
            shutil.rmtree(entry, ignore_errors=True)
        # Another process may have built the same entry meanwhile: then the rename fails and its
        # entry, equal to ours, is used.
        with contextlib.suppress(OSError):
            building.rename(entry)
        decoded = _open(entry)
    except OSError as error:
        raise DataError(
            f"The decoded images of {source.name} cannot be written to {entry.parent} ({error}): "
            "make room or set SIGIL_CACHE to another directory."
        ) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    if decoded is None:
        raise DataError(
            f"The decoded images in {entry} cannot be read back: remove that directory and try again."
        )
    return decoded


def _create(path: Path, *, shape: tuple[int, ...], dtype: type[np.generic]) -> npt.NDArray[Any]:
    """Make a writable memory-mapped .npy file."""
    mapped: npt.NDArray[Any] = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    # A sparse file on a full disk ends in a bus error when a page is written; reserving the blocks
    # now makes it an error that can be told.
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return mapped


def _open(entry: Path) -> Decoded | None:
    """Map the arrays of a cache entry; None if it is absent, incomplete or damaged."""
    try:
        with (entry / "meta.json").open("rb") as file:
            meta = json.loads(file.read(_MAX_META_BYTES))
        if meta["version"] != _VERSION:
            return None
        arrays = {}
        for name in _ARRAYS:
            mapped = np.load(entry / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            if mapped.dtype != (np.uint8 if name.endswith("images") else np.int64):
                return None
            if list(mapped.shape) != meta["shapes"][name]:
                return None
            arrays[name] = mapped
        # Labels are small and used all at once: in memory they index faster than mapped.
        train_labels = np.array(arrays["train-labels"])
        test_labels = np.array(arrays["test-labels"])
        if _labels_crc32(train_labels, test_labels) != meta["labels_crc32"]:
            return None
        classes = int(meta["classes"])
        mean, std = (tuple(map(float, meta[key])) for key in ("mean", "std"))
        if not all(math.isfinite(value) and value > 0 for value in std):
            return None
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None
    return Decoded(
        train_images=arrays["train-images"],
        train_labels=train_labels,
        test_images=arrays["test-images"],
        test_labels=test_labels,
        classes=classes,
        mean=mean,
        std=std,
    )


def _labels_crc32(train: npt.NDArray[np.int64], test: npt.NDArray[np.int64]) -> int:
    return zlib.crc32(test.tobytes(), zlib.crc32(train.tobytes()))


def _remove_stale(root: Path) -> None:
    """Remove what processes killed while decoding left behind, a day later."""
    for left in root.glob(".building-*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
