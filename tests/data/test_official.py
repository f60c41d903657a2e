from __future__ import annotations

import gzip
import itertools
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sigil.data import official
from sigil.data.cache import cached
from sigil.errors import DataError


def text(value: bytes) -> bytes:
    """A string as Python 2 pickles it."""
    if len(value) < 256:
        return b"U" + bytes([len(value)]) + value
    return b"T" + struct.pack("<i", len(value)) + value


def pickled(images: np.ndarray, labels: list[int]) -> bytes:
    """A batch in the very instructions of the official files (protocol 2, Python 2)."""
    rows = images.reshape(len(images), int(np.prod(images.shape[1:])))
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x05cnumpy\nndarray\nq\x06K\x00\x85U\x01b\x87R"
        + b"(K\x01"
        + b"J" + struct.pack("<i", rows.shape[0])
        + b"M" + struct.pack("<H", rows.shape[1])
        + b"\x86cnumpy\ndtype\nq\x09U\x02u1K\x00K\x01\x87R"
        + b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + b"\x89" + text(rows.tobytes()) + b"tb"
    )  # fmt: skip
    listed = b"]r\x00\x01\x00\x00(" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    names = b"](" + text(b"leptodactylus_pentadactylus_s_000004.png") + b"e"
    return (
        b"\x80\x02}q\x01("
        + text(b"batch_label") + text(b"training batch 1 of 5")
        + text(b"labels") + listed
        + text(b"data") + array
        + text(b"filenames") + names
        + b"u."
    )  # fmt: skip


def batch(count: int, *, seed: int) -> tuple[np.ndarray, list[int]]:
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    return images, generator.integers(0, 10, count).tolist()


def write_cifar10(data_dir: Path) -> tuple[np.ndarray, list[int]]:
    root = data_dir / "cifar-10-batches-py"
    root.mkdir(parents=True)
    everything, all_labels = [], []
    for number in range(1, 6):
        images, labels = batch(number, seed=number)
        (root / f"data_batch_{number}").write_bytes(pickled(images, labels))
        everything.append(images)
        all_labels += labels
    (root / "test_batch").write_bytes(pickled(*batch(4, seed=9)))
    return np.concatenate(everything), all_labels


def test_cifar10_is_read(tmp_path: Path) -> None:
    images, labels = write_cifar10(tmp_path)
    decoded = cached(official.cifar10(tmp_path), roots=[tmp_path / "cache"])
    assert np.array_equal(decoded.train.images, images)
    assert decoded.train.labels.tolist() == labels
    assert np.array_equal(decoded.test.images, batch(4, seed=9)[0])
    assert decoded.classes == 10


def test_official_instructions_mean_what_pickle_makes_of_them(tmp_path: Path) -> None:
    images, labels = batch(3, seed=0)
    content = pickled(images, labels)
    reference = pickle.loads(content, encoding="bytes")
    (tmp_path / "batch").write_bytes(content)
    found_images, found_labels = official.read_batch(tmp_path / "batch")
    assert np.array_equal(found_images.reshape(3, -1), reference[b"data"])
    assert found_labels.tolist() == reference[b"labels"]


class Hostile:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_in_a_file_is_ever_called(tmp_path: Path, protocol: int) -> None:
    target = tmp_path / "called"
    content = {"data": Hostile(target), "labels": [1]}
    (tmp_path / "batch").write_bytes(pickle.dumps(content, protocol=protocol))
    with pytest.raises(DataError, match="not an official CIFAR-10 batch"):
        official.read_batch(tmp_path / "batch")
    assert not target.exists()
    # The file is as dangerous as it looks.
    pickle.loads((tmp_path / "batch").read_bytes())
    assert target.exists()


def nested_keys() -> bytes:
    """A tuple nested in itself sixty times as a key: its hash would never be computed."""
    return b"\x80\x02}(" + b")q\x00" + b"h\x00\x86q\x00" * 60 + b"K\x01u."


GOOD_IMAGES, GOOD_LABELS = batch(3, seed=0)
GOOD = pickled(GOOD_IMAGES, GOOD_LABELS)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x02.",
        b"no pickle at all",
        GOOD[:-1],
        GOOD[: len(GOOD) // 2],
        pickled(GOOD_IMAGES, [1, 2]),
        pickled(GOOD_IMAGES, [1, 2, 10]),
        pickled(GOOD_IMAGES[:, :, :31], GOOD_LABELS),
        pickled(GOOD_IMAGES[:0], []),
        pickle.dumps([1, 2], protocol=2),
        pickle.dumps({"labels": [1]}, protocol=2),
        pickle.dumps({"data": [[0]], "labels": [1]}, protocol=2),
        pickle.dumps({"data": GOOD_IMAGES.reshape(3, -1), "labels": "abc"}, protocol=2),
        pickle.dumps({"data": GOOD_IMAGES.astype(float), "labels": [1, 2, 3]}, protocol=2),
        GOOD.replace(b"U\x02u1", b"U\x02O8"),
        # A place in the memo, a length and a string that no machine has room for.
        b"\x80\x02}r\xff\xff\xff\xff.",
        b"\x80\x02T\xff\xff\xff\x7fabc.",
        b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
        nested_keys(),
        b"\x80\x02" + b"N" * 600_000 + b".",
    ],
    ids=range(20),
)
def test_damaged_and_strange_batches_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data_batch_1").write_bytes(content)
    with pytest.raises(DataError, match=r"data_batch_1 is not an official CIFAR-10 batch"):
        official.read_batch(tmp_path / "data_batch_1")


def test_the_size_of_a_batch_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(official, "_MAX_BATCH_BYTES", len(GOOD) - 1)
    (tmp_path / "batch").write_bytes(GOOD)
    with pytest.raises(DataError, match="larger than"):
        official.read_batch(tmp_path / "batch")


def test_missing_cifar10_says_where_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cifar-10-batches-py/data_batch_1.*sigil data fetch cifar10"):
        official.cifar10(tmp_path)


# Not in alphabetical order, as in the official list.
WNIDS = ("n02124075", "n01443537", "n04067472")
BRIGHTNESS = {"n01443537": 40, "n02124075": 120, "n04067472": 220}


def write_tiny_imagenet(data_dir: Path) -> Path:
    root = data_dir / "tiny-imagenet-200"
    (root / "val" / "images").mkdir(parents=True)
    (root / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    for wnid in WNIDS:
        folder = root / "train" / wnid / "images"
        folder.mkdir(parents=True)
        (folder.parent / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t10\t63\t58\n")
        for number in range(2):
            colour = (BRIGHTNESS[wnid], 10 * number, 0)
            Image.new("RGB", (64, 64), colour).save(folder / f"{wnid}_{number}.JPEG", quality=95)
    lines = []
    for number, wnid in enumerate((WNIDS[2], WNIDS[0])):
        # Some official pictures are grey.
        picture = Image.new("L", (64, 64), BRIGHTNESS[wnid])
        picture.save(root / "val" / "images" / f"val_{number}.JPEG", quality=95)
        lines.append(f"val_{number}.JPEG\t{wnid}\t0\t32\t44\t62\n")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    return root


def test_tiny_imagenet_is_read(tmp_path: Path) -> None:
    write_tiny_imagenet(tmp_path)
    decoded = cached(official.tiny_imagenet(tmp_path), roots=[tmp_path / "cache"])
    assert decoded.classes == 3
    assert decoded.train.images.shape == (6, 3, 64, 64)
    assert decoded.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    red = decoded.train.images[:, 0].mean(axis=(1, 2))
    assert np.all(np.abs(red - [40, 40, 120, 120, 220, 220]) < 4)
    green = decoded.train.images[:, 1].mean(axis=(1, 2))
    assert np.all(np.abs(green - [0, 10, 0, 10, 0, 10]) < 4)
    assert decoded.test.labels.tolist() == [2, 1]
    assert np.all(np.abs(decoded.test.images.mean(axis=(2, 3)) - [[220] * 3, [120] * 3]) < 2)


def test_every_picture_of_tiny_imagenet_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    root = write_tiny_imagenet(tmp_path)
    files = official.tiny_imagenet(tmp_path).files
    pictures = {str(path.relative_to(root)) for path in root.rglob("*.JPEG")}
    assert set(files) == pictures | {"wnids.txt", "val/val_annotations.txt"}


@pytest.mark.parametrize("path", ["wnids.txt", "train", "val/val_annotations.txt"])
def test_missing_tiny_imagenet_says_where_and_what_to_do(tmp_path: Path, path: str) -> None:
    root = write_tiny_imagenet(tmp_path)
    (root / path).rename(tmp_path / "gone")
    with pytest.raises(DataError, match=rf"{path}.*sigil data fetch tiny-imagenet"):
        official.tiny_imagenet(tmp_path)


def append(path: str, line: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        with (root / path).open("a") as file:
            file.write(line)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (append("wnids.txt", "../secret\n"), "wnids.txt does not list"),
        (append("wnids.txt", "n00000009\n"), "n00000009/images cannot be read"),
        (append("val/val_annotations.txt", "../../x.JPEG\tn01443537\n"), "Line 3 of"),
        (append("val/val_annotations.txt", "val_0.JPEG\tn00000009\n"), "Line 3 of"),
        (append("val/val_annotations.txt", "val_0.JPEG\n"), "Line 3 of"),
        (lambda root: (root / "wnids.txt").write_text(""), "found nothing"),
        (lambda root: (root / "wnids.txt").write_bytes(b"\xff\xfe\xfa"), "cannot be read"),
        (lambda root: (root / "val/val_annotations.txt").write_text(""), "lists no pictures"),
        (
            lambda root: [p.unlink() for p in (root / f"train/{WNIDS[0]}").rglob("*.JPEG")],
            "holds 0 JPEG",
        ),
    ],
)
def test_damaged_lists_are_refused(tmp_path: Path, change: Callable[[Path], object], message: str) -> None:
    change(write_tiny_imagenet(tmp_path))
    with pytest.raises(DataError, match=message):
        official.tiny_imagenet(tmp_path)


def test_damaged_picture_is_named(tmp_path: Path) -> None:
    root = write_tiny_imagenet(tmp_path)
    (root / "val/images/val_1.JPEG").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"val_1\.JPEG"):
        cached(official.tiny_imagenet(tmp_path), roots=[tmp_path / "cache"])


def test_lists_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny_imagenet(tmp_path)
    monkeypatch.setattr(official, "_MAX_TEXT_BYTES", 20)
    with pytest.raises(DataError, match=r"wnids\.txt is larger"):
        official.tiny_imagenet(tmp_path)


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_fashion_mnist(root: Path) -> dict[str, np.ndarray]:
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
def test_fashion_mnist_is_read(tmp_path: Path, directory: str) -> None:
    arrays = write_fashion_mnist(tmp_path / directory)
    decoded = cached(official.fashion_mnist(tmp_path), roots=[tmp_path / "cache"])
    assert decoded.train.images.shape == (7, 1, 28, 28)
    assert np.array_equal(decoded.train.images[:, 0], arrays["train-images-idx3-ubyte.gz"])
    assert np.array_equal(decoded.test.images[:, 0], arrays["t10k-images-idx3-ubyte.gz"])
    assert decoded.train.labels.tolist() == list(range(7))
    assert decoded.test.labels.tolist() == [9, 0, 4]
    assert decoded.classes == 10


def test_missing_fashion_mnist_says_where_and_what_to_do(tmp_path: Path) -> None:
    write_fashion_mnist(tmp_path / "fashion-mnist")
    (tmp_path / "fashion-mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"FashionMNIST/raw.*sigil data fetch fashion-mnist"):
        official.fashion_mnist(tmp_path)


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
        official.read_idx(tmp_path / "images.gz", shape=(28, 28))


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("train-labels-idx1-ubyte.gz", np.arange(6), "for 6 labels"),
        ("t10k-labels-idx1-ubyte.gz", np.array([1, 2, 10]), "labels up to 10"),
    ],
)
def test_files_of_fashion_mnist_must_fit_each_other(
    tmp_path: Path, name: str, array: np.ndarray, message: str
) -> None:
    write_fashion_mnist(tmp_path / "fashion-mnist")
    (tmp_path / "fashion-mnist" / name).write_bytes(gzip.compress(idx(array)))
    with pytest.raises(DataError, match=message):
        cached(official.fashion_mnist(tmp_path), roots=[tmp_path / "cache"])
