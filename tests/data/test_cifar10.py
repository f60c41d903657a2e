from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from sigil.data import cifar10
from sigil.data.cache import cached
from sigil.errors import DataError


def text(value: bytes) -> bytes:
    """A string as Python 2 pickles it."""
    if len(value) < 256:
        return b"U" + bytes([len(value)]) + value
    return b"T" + struct.pack("<i", len(value)) + value


def official(images: np.ndarray, labels: list[int]) -> bytes:
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


def write_set(data_dir: Path) -> tuple[np.ndarray, list[int]]:
    root = data_dir / "cifar-10-batches-py"
    root.mkdir(parents=True)
    everything, all_labels = [], []
    for number in range(1, 6):
        images, labels = batch(number, seed=number)
        (root / f"data_batch_{number}").write_bytes(official(images, labels))
        everything.append(images)
        all_labels += labels
    (root / "test_batch").write_bytes(official(*batch(4, seed=9)))
    return np.concatenate(everything), all_labels


def test_official_layout_is_read(tmp_path: Path) -> None:
    images, labels = write_set(tmp_path)
    decoded = cached(cifar10.source(tmp_path), roots=[tmp_path / "cache"])
    assert np.array_equal(decoded.train_images, images)
    assert decoded.train_labels.tolist() == labels
    assert np.array_equal(decoded.test_images, batch(4, seed=9)[0])
    assert decoded.classes == 10


def test_official_instructions_mean_what_pickle_makes_of_them(tmp_path: Path) -> None:
    images, labels = batch(3, seed=0)
    content = official(images, labels)
    reference = pickle.loads(content, encoding="bytes")
    (tmp_path / "batch").write_bytes(content)
    found_images, found_labels = cifar10.read_batch(tmp_path / "batch")
    assert np.array_equal(found_images.reshape(3, -1), reference[b"data"])
    assert found_labels.tolist() == reference[b"labels"]


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("keys", [(b"data", b"labels"), ("data", "labels")])
def test_python_3_pickles_are_read(
    tmp_path: Path, protocol: int, keys: tuple[bytes | str, bytes | str]
) -> None:
    images, labels = batch(3, seed=0)
    content = {keys[0]: images.reshape(3, -1), keys[1]: labels}
    (tmp_path / "batch").write_bytes(pickle.dumps(content, protocol=protocol))
    found_images, found_labels = cifar10.read_batch(tmp_path / "batch")
    assert np.array_equal(found_images, images)
    assert found_labels.tolist() == labels


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
        cifar10.read_batch(tmp_path / "batch")
    assert not target.exists()
    # The file is as dangerous as it looks.
    pickle.loads((tmp_path / "batch").read_bytes())
    assert target.exists()


def nested_keys() -> bytes:
    """A tuple nested in itself sixty times as a key: its hash would never be computed."""
    return b"\x80\x02}(" + b")q\x00" + b"h\x00\x86q\x00" * 60 + b"K\x01u."


GOOD_IMAGES, GOOD_LABELS = batch(3, seed=0)
GOOD = official(GOOD_IMAGES, GOOD_LABELS)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x02.",
        b"no pickle at all",
        GOOD[:-1],
        GOOD[: len(GOOD) // 2],
        official(GOOD_IMAGES, [1, 2]),
        official(GOOD_IMAGES, [1, 2, 10]),
        official(GOOD_IMAGES[:, :, :31], GOOD_LABELS),
        official(GOOD_IMAGES[:0], []),
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
    ],
)
def test_damaged_and_strange_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data_batch_1").write_bytes(content)
    with pytest.raises(DataError, match=r"data_batch_1 is not an official CIFAR-10 batch"):
        cifar10.read_batch(tmp_path / "data_batch_1")


def test_size_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10, "_MAX_BYTES", len(GOOD) - 1)
    (tmp_path / "batch").write_bytes(GOOD)
    with pytest.raises(DataError, match="larger than"):
        cifar10.read_batch(tmp_path / "batch")


def test_missing_set_says_where_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cifar-10-batches-py/data_batch_1.*sigil data fetch cifar10"):
        cifar10.source(tmp_path)
