"""Fashion-MNIST from its official compressed idx files (10 classes of 28 x 28 grey pictures)."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import numpy.typing as npt

from sigil.data.cache import Allocate, Source
from sigil.errors import DataError

DIRECTORIES = ("fashion-mnist", "FashionMNIST/raw")
TRAIN = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
TEST = ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")
CLASSES = 10
SHAPE = (1, 28, 28)

_MAX_IMAGES = 1_000_000
_UNSIGNED_BYTES = 0x08


def source(data_dir: Path) -> Source:
    """Describe Fashion-MNIST in `data_dir`/fashion-mnist or `data_dir`/FashionMNIST/raw."""
    files = (*TRAIN, *TEST)
    candidates = [data_dir / directory for directory in DIRECTORIES]
    found = [path for path in candidates if all((path / file).is_file() for file in files)]
    if not found:
        raise DataError(
            f"Fashion-MNIST was not found: neither {candidates[0]} nor {candidates[1]} holds its four "
            f".gz files; download it with `sigil data fetch fashion-mnist --data-dir {data_dir}`."
        )
    root = found[0]

    def decode(allocate: Allocate) -> int:
        for split, (images_file, labels_file) in (("train", TRAIN), ("test", TEST)):
            images = read_idx(root / images_file, dimensions=3)
            labels = read_idx(root / labels_file, dimensions=1)
            if images.shape[1:] != SHAPE[1:] or len(images) != len(labels):
                raise DataError(
                    f"{root / images_file} holds images of shape {images.shape} for {len(labels)} "
                    f"labels, but {len(labels)} of 28 x 28 are expected: fetch fashion-mnist again."
                )
            if labels.max() >= CLASSES:
                raise DataError(
                    f"{root / labels_file} holds the label {labels.max()}, but there are {CLASSES} "
                    "classes: fetch fashion-mnist again."
                )
            allocate(f"{split}-images", (len(images), *SHAPE))[:, 0] = images
            allocate(f"{split}-labels", (len(labels),))[:] = labels
        return CLASSES

    return Source(name="fashion-mnist", root=root, files=files, decode=decode)


def read_idx(path: Path, *, dimensions: int) -> npt.NDArray[np.uint8]:
    """Read a compressed idx file of unsigned bytes with 1 or 3 dimensions.

    The file is two zero bytes, the type 8, the number of dimensions, each dimension as a big-endian
    32-bit number, then the bytes. No more is decompressed than the dimensions announce, and these
    are at most a million images of 28 x 28.
    """
    try:
        with gzip.open(path, "rb") as file:
            return _parse(cast(BinaryIO, file), dimensions=dimensions)
    except (OSError, EOFError, zlib.error, struct.error, ValueError) as error:
        raise DataError(
            f"{path} is not a sound compressed idx file ({error}): fetch fashion-mnist again."
        ) from error


def _parse(file: BinaryIO, *, dimensions: int) -> npt.NDArray[np.uint8]:
    zeros, kind, rank = struct.unpack(">HBB", file.read(4))
    if (zeros, kind, rank) != (0, _UNSIGNED_BYTES, dimensions):
        raise ValueError(f"it does not begin like {dimensions}-dimensional unsigned bytes")
    shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
    if not 1 <= shape[0] <= _MAX_IMAGES or shape[1:] not in ((), SHAPE[1:]):
        raise ValueError(f"it announces the shape {shape}")
    length = int(np.prod(shape, dtype=np.int64))
    content = file.read(length)
    if len(content) != length or file.read(1):
        raise ValueError(f"it does not hold the {length} bytes that it announces")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)
