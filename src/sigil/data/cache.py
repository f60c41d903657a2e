"""A data set in memory, decoded once: its images lie on disk and are mapped by every run and process.

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
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sigil import files
from sigil.errors import DataError

_VERSION = 1
_SPLITS = ("train", "test")
_ARRAYS = ("train-images", "train-labels", "test-images", "test-labels")
_MAX_META_BYTES = 64 * 2**10
# Images read at a time: 1,024 of 3x64x64 are 12 MB, whatever the size of the set.
_CHUNK = 1024


Allocate = Callable[[str, tuple[int, ...]], npt.NDArray[Any]]
"""Gives a decoder one of the four arrays, writable and on disk: `allocate("train-images", (n, C, H, W))`."""


@dataclass(frozen=True)
class Source:
    """A data set as it lies on disk.

    `name` names the cache entry, which follows the names, sizes and times of `files` (paths under `root`) and
    the `options` that change the decoded images; `decode` fills the arrays that it asks for and returns the
    number of classes.
    """

    name: str
    root: Path
    files: Sequence[str]
    decode: Callable[[Allocate], int]
    options: str = ""


@dataclass(frozen=True)
class Split:
    """Images and their labels.

    `images` is uint8 (n, C, H, W), memory-mapped and read-only unless the set was reduced; `labels`
    is int64 (n,).
    """

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Dataset:
    """A data set for classification with a training and a test split.

    `shape` is (C, H, W); `mean` and `std` are those of each channel on the scale 0 to 1; `augment` is
    the augmentation that is usual for the set, a name that :class:`sigil.data.Batches` takes.
    """

    name: str
    train: Split
    test: Split
    classes: int
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: str


def data_directory(data_dir: str | os.PathLike[str] | None, *, name: str) -> Path:
    """The directory that holds the data sets, `name` among them: the argument, or else `SIGIL_DATA`."""
    chosen = data_dir if data_dir is not None else os.environ.get("SIGIL_DATA")
    if not chosen:
        raise DataError(
            f"No data directory was given for '{name}': give --data-dir or set SIGIL_DATA to a "
            f"directory, and fill it with `sigil data fetch {name}`."
        )
    return Path(chosen).expanduser()


def cache_roots(beside: Path | None) -> list[Path]:
    """The directories that may hold decoded images, best first.

    `SIGIL_CACHE` alone if it is set; otherwise `.sigil-cache` in the data directory `beside`, if there is
    one, then `~/.cache/sigil` for data directories that cannot be written.
    """
    chosen = os.environ.get("SIGIL_CACHE")
    if chosen:
        return [Path(chosen).expanduser()]
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "sigil"
    return [home] if beside is None else [beside / ".sigil-cache", home]


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


def cached(source: Source, *, roots: Sequence[Path]) -> Dataset:
    """Open a data set, decoding it first if no sound entry exists.

    Its mean and std are those of its training images. `roots` are the directories to look in, best first;
    a new entry goes to the first that can be written.
    """
    entry = f"{source.name}-{source_digest(source)}"
    for root in roots:
        dataset = _open(root / entry, source.name)
        if dataset is not None:
            return dataset
    refused = []
    for root in roots:
        try:
            root.mkdir(parents=True, exist_ok=True)
            building = Path(tempfile.mkdtemp(prefix=".building-", dir=root))
        except OSError as error:
            refused.append(f"{root} ({error.strerror})")
            continue
        files.remove_stale(root, ".building-*")
        return _build(source, building, root / entry)
    raise DataError(
        f"The decoded images of {source.name} cannot be written to {' or '.join(refused)}: set "
        "SIGIL_CACHE to a directory that can be written."
    )


def _build(source: Source, building: Path, entry: Path) -> Dataset:
    """Decode `source` into the directory `building` and rename it to `entry`."""
    arrays: dict[str, np.memmap[Any, Any]] = {}

    def allocate(array: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        path, dtype = building / f"{array}.npy", np.uint8 if array.endswith("images") else np.int64
        arrays[array] = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
        # A sparse file on a full disk ends in a bus error when a page is written; reserving the blocks
        # now makes it an error that can be told.
        if hasattr(os, "posix_fallocate"):
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
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
            mapped.flush()
        (building / "meta.json").write_text(json.dumps(meta))
        # mkdtemp makes a private directory; data directories are often shared between users.
        building.chmod(0o755)
        if entry.exists() and _open(entry, source.name) is None:
            shutil.rmtree(entry, ignore_errors=True)
        # Another process may have built the same entry meanwhile: then the rename fails and its
        # entry, equal to ours, is used.
        with contextlib.suppress(OSError):
            building.rename(entry)
        dataset = _open(entry, source.name)
    except OSError as error:
        raise DataError(
            f"The decoded images of {source.name} cannot be written to {entry.parent} ({error}): "
            "make room or set SIGIL_CACHE to another directory."
        ) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    if dataset is None:
        raise DataError(
            f"The decoded images in {entry} cannot be read back: remove that directory and try again."
        )
    return dataset


def _open(entry: Path, name: str) -> Dataset | None:
    """Map the arrays of a cache entry; None if it is absent, incomplete or damaged."""
    try:
        with (entry / "meta.json").open("rb") as file:
            meta = json.loads(file.read(_MAX_META_BYTES))
        arrays = {}
        for array in _ARRAYS:
            mapped = np.load(entry / f"{array}.npy", mmap_mode="r", allow_pickle=False)
            wanted = np.uint8 if array.endswith("images") else np.int64
            if mapped.dtype != wanted or list(mapped.shape) != meta["shapes"][array]:
                return None
            # Labels are small and used all at once: in memory they index faster than mapped.
            arrays[array] = mapped if array.endswith("images") else np.array(mapped)
        train, test = (Split(arrays[f"{split}-images"], arrays[f"{split}-labels"]) for split in _SPLITS)
        mean, std = (tuple(map(float, meta[key])) for key in ("mean", "std"))
        if not all(math.isfinite(value) and value > 0 for value in std):
            return None
        if meta["version"] != _VERSION or _labels_crc32(train.labels, test.labels) != meta["labels_crc32"]:
            return None
        channels, height, width = train.images.shape[1:]
        shape = (channels, height, width)
        return Dataset(name, train, test, int(meta["classes"]), shape, mean, std, augment="crop-flip")
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None


def _labels_crc32(train: npt.NDArray[np.int64], test: npt.NDArray[np.int64]) -> int:
    return zlib.crc32(test.tobytes(), zlib.crc32(train.tobytes()))


def channel_statistics(
    images: npt.NDArray[np.uint8],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Give the mean and standard deviation of each channel of uint8 images, on the scale 0 to 1.

    `images` is (n, C, H, W) and is read in chunks. The sums are of integers and therefore exact:
    mean = S1 / N / 255 and std = sqrt(S2/N - (S1/N)^2) / 255 with N = n·H·W. A channel without any
    contrast gets one grey level, 1/255, so that dividing by it is always possible.
    """
    channels = images.shape[1]
    total = np.zeros(channels, dtype=np.uint64)
    squares = np.zeros(channels, dtype=np.uint64)
    for start in range(0, len(images), _CHUNK):
        chunk = np.asarray(images[start : start + _CHUNK])
        total += chunk.sum(axis=(0, 2, 3), dtype=np.uint64)
        squares += np.square(chunk, dtype=np.uint32).sum(axis=(0, 2, 3), dtype=np.uint64)
    count = images.shape[0] * images.shape[2] * images.shape[3]
    mean = total / count
    variance = np.maximum(squares / count - mean**2, 0.0)
    std = np.maximum(np.sqrt(variance), 1.0)
    return tuple((mean / 255).tolist()), tuple((std / 255).tolist())
