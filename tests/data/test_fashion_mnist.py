from __future__ import annotations

import gzip
import itertools
import struct
from pathlib import Path

import numpy as np
import pytest

from sigil.data import fashion_mnist
from sigil.data.cache import cached
from sigil.errors import DataError


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_set(root: Path) -> dict[str, np.ndarray]:
    root.mkdir(parents=True)
    generator = np.random.default_rng(0)
    arrays = {
        "train-images-idx3-ubyte.gz": generator.integers(0, 256, (7, 28, 28), dtype=np.uint8),
        "train-labels-idx1-ubyte.gz": np.arange(7) % 10,
        "t10k-images-idx3-ubyte.gz": generator.integers(0, 256, (3, 28, 28), dtype=np.uint8),
        "t10k-labels-idx1-ubyte.gz": np.array([9, 0, 4]),
    }
    for name, array in arrays.items():
        (root / name).write_bytes(gzip.compress(idx(array)))
    return arrays


@pytest.mark.parametrize("directory", ["fashion-mnist", "FashionMNIST/raw"])
def test_official_files_are_read(tmp_path: Path, directory: str) -> None:
    arrays = write_set(tmp_path / directory)
    decoded = cached(fashion_mnist.source(tmp_path), roots=[tmp_path / "cache"])
    assert decoded.train_images.shape == (7, 1, 28, 28)
    assert np.array_equal(decoded.train_images[:, 0], arrays["train-images-idx3-ubyte.gz"])
    assert np.array_equal(decoded.test_images[:, 0], arrays["t10k-images-idx3-ubyte.gz"])
    assert decoded.train_labels.tolist() == list(range(7))
    assert decoded.test_labels.tolist() == [9, 0, 4]
    assert decoded.classes == 10


def test_missing_set_says_where_and_what_to_do(tmp_path: Path) -> None:
    write_set(tmp_path / "fashion-mnist")
    (tmp_path / "fashion-mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"FashionMNIST/raw.*sigil data fetch fashion-mnist"):
        fashion_mnist.source(tmp_path)


IMAGES = idx(np.zeros((2, 28, 28)))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not compressed",
        gzip.compress(b""),
        gzip.compress(IMAGES)[:-12],
        gzip.compress(IMAGES[:-1]),
        gzip.compress(IMAGES + b"\0"),
        gzip.compress(IMAGES[:10]),
        gzip.compress(b"\1" + IMAGES[1:]),
        gzip.compress(idx(np.zeros(4))),
        gzip.compress(idx(np.zeros((2, 27, 28)))),
        gzip.compress(idx(np.zeros((0, 28, 28)))),
        # Announces more than any machine has room for.
        gzip.compress(struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 28, 28)),
        gzip.compress(struct.pack(">HBB3I", 0, 8, 3, 2**31, 2**31, 2**31)),
        # A hundred megabytes of zeros behind two images.
        gzip.compress(IMAGES + bytes(10**8), compresslevel=1),
    ],
    # Named by number: compressed bytes hold the time, and would name a test differently in each process.
    ids=itertools.count(),
)
def test_damaged_idx_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "images.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"images\.gz is not a sound compressed idx file"):
        fashion_mnist.read_idx(tmp_path / "images.gz", dimensions=3)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("train-labels-idx1-ubyte.gz", np.arange(6), "for 6 labels"),
        ("t10k-labels-idx1-ubyte.gz", np.array([1, 2, 10]), "the label 10"),
    ],
)
def test_files_must_fit_each_other(tmp_path: Path, name: str, array: np.ndarray, message: str) -> None:
    write_set(tmp_path / "fashion-mnist")
    (tmp_path / "fashion-mnist" / name).write_bytes(gzip.compress(idx(array)))
    with pytest.raises(DataError, match=message):
        cached(fashion_mnist.source(tmp_path), roots=[tmp_path / "cache"])
