from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sigil.data import cache
from sigil.data.cache import (
    Allocate,
    Source,
    cache_roots,
    cached,
    channel_statistics,
    data_directory,
    source_digest,
)
from sigil.errors import DataError

RNG = np.random.default_rng(0)
TRAIN = RNG.integers(0, 256, (6, 3, 4, 5), dtype=np.uint8)
TEST = RNG.integers(0, 256, (4, 3, 4, 5), dtype=np.uint8)


class Counted:
    """A source of ten small images that counts how often it is decoded."""

    def __init__(self, root: Path) -> None:
        root.mkdir(exist_ok=True)
        (root / "a.bin").write_bytes(b"first")
        (root / "b.bin").write_bytes(b"second")
        self.times = 0
        self.source = Source(name="small", root=root, files=("a.bin", "b.bin"), decode=self.decode)

    def decode(self, allocate: Allocate) -> int:
        self.times += 1
        allocate("train-images", TRAIN.shape)[:] = TRAIN
        allocate("train-labels", (6,))[:] = np.arange(6) % 2
        allocate("test-images", TEST.shape)[:] = TEST
        allocate("test-labels", (4,))[:] = np.arange(4) % 2
        return 2


@pytest.fixture
def counted(tmp_path: Path) -> Counted:
    return Counted(tmp_path / "data")


def only_entry(root: Path) -> Path:
    (entry,) = root.iterdir()
    return entry


def test_decodes_once_and_maps_the_same_images(counted: Counted, tmp_path: Path) -> None:
    first = cached(counted.source, roots=[tmp_path / "cache"])
    again = cached(counted.source, roots=[tmp_path / "cache"])
    assert counted.times == 1
    for decoded in (first, again):
        assert isinstance(decoded.train.images, np.memmap)
        assert not decoded.train.images.flags.writeable
        assert np.array_equal(decoded.train.images, TRAIN)
        assert np.array_equal(decoded.test.images, TEST)
        assert decoded.train.labels.dtype == np.int64
        assert decoded.test.labels.tolist() == [0, 1, 0, 1]
        assert decoded.classes == 2
        np.testing.assert_allclose(decoded.mean, (TRAIN / 255).mean(axis=(0, 2, 3)))
    # Nothing but the entry is left: no temporary directory.
    assert only_entry(tmp_path / "cache").name == f"small-{source_digest(counted.source)}"


@pytest.mark.parametrize(
    "change",
    [
        lambda root: os.utime(root / "b.bin", (1, 1)),
        lambda root: (root / "b.bin").write_bytes(b"longer than before"),
    ],
)
def test_changed_files_are_decoded_again(
    counted: Counted, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    cached(counted.source, roots=[tmp_path / "cache"])
    change(counted.source.root)
    cached(counted.source, roots=[tmp_path / "cache"])
    assert counted.times == 2


def test_data_may_move(counted: Counted, tmp_path: Path) -> None:
    before = source_digest(counted.source)
    moved = tmp_path / "elsewhere"
    counted.source.root.rename(moved)
    after = Source(name="small", root=moved, files=counted.source.files, decode=counted.decode)
    assert source_digest(after) == before
    other_options = Source("small", moved, counted.source.files, counted.decode, options="64")
    assert source_digest(other_options) != before


def cut_images(entry: Path) -> None:
    path = entry / "train-images.npy"
    path.write_bytes(path.read_bytes()[:-1])


def change_labels(entry: Path) -> None:
    path = entry / "test-labels.npy"
    path.write_bytes(path.read_bytes()[:-8] + bytes([1, 0, 0, 0, 0, 0, 0, 1]))


def replace_type(entry: Path) -> None:
    np.save(entry / "train-images.npy", TRAIN.astype(np.float32))


def pickle_inside(entry: Path) -> None:
    np.save(entry / "train-labels.npy", np.array([{}] * 6, dtype=object), allow_pickle=True)


def forget_shape(entry: Path) -> None:
    meta = json.loads((entry / "meta.json").read_text())
    del meta["shapes"]["train-images"]
    (entry / "meta.json").write_text(json.dumps(meta))


@pytest.mark.parametrize(
    "damage",
    [
        cut_images,
        change_labels,
        replace_type,
        pickle_inside,
        forget_shape,
        lambda entry: (entry / "meta.json").write_text("{"),
        lambda entry: (entry / "meta.json").write_text("[]"),
        lambda entry: (entry / "meta.json").unlink(),
        lambda entry: (entry / "test-images.npy").unlink(),
        lambda entry: (entry / "test-images.npy").write_bytes(b""),
    ],
)
def test_damaged_entry_is_rebuilt(counted: Counted, tmp_path: Path, damage: Callable[[Path], object]) -> None:
    root = tmp_path / "cache"
    cached(counted.source, roots=[root])
    damage(only_entry(root))
    decoded = cached(counted.source, roots=[root])
    assert counted.times == 2
    assert np.array_equal(decoded.train.images, TRAIN)
    assert decoded.test.labels.tolist() == [0, 1, 0, 1]
    cached(counted.source, roots=[root])
    assert counted.times == 2


def test_second_place_is_used_when_the_first_cannot_be_written(counted: Counted, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a directory should be")
    cached(counted.source, roots=[blocked, tmp_path / "second"])
    cached(counted.source, roots=[blocked, tmp_path / "second"])
    assert counted.times == 1
    with pytest.raises(DataError, match=r"blocked.*SIGIL_CACHE"):
        cached(counted.source, roots=[blocked])


def test_entry_in_the_second_place_is_found(counted: Counted, tmp_path: Path) -> None:
    cached(counted.source, roots=[tmp_path / "second"])
    cached(counted.source, roots=[tmp_path / "first", tmp_path / "second"])
    assert counted.times == 1


def test_failed_decoding_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"x")

    def decode(allocate: Allocate) -> int:
        allocate("train-images", (2, 1, 2, 2))
        raise DataError("a damaged file")

    source = Source(name="bad", root=tmp_path, files=("a.bin",), decode=decode)
    with pytest.raises(DataError, match="a damaged file"):
        cached(source, roots=[tmp_path / "cache"])
    assert list((tmp_path / "cache").iterdir()) == []


def test_full_disk_is_told_and_leaves_nothing(
    counted: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache.os, "posix_fallocate", full)
    with pytest.raises(DataError, match=r"No space left on device.*SIGIL_CACHE"):
        cached(counted.source, roots=[tmp_path / "cache"])
    assert list((tmp_path / "cache").iterdir()) == []


def test_two_processes_that_build_the_same_entry_agree(counted: Counted, tmp_path: Path) -> None:
    root = tmp_path / "cache"

    def decode(allocate: Allocate) -> int:
        # Another process finishes while this one is still decoding.
        cached(counted.source, roots=[root])
        return counted.decode(allocate)

    slow = Source(name="small", root=counted.source.root, files=counted.source.files, decode=decode)
    decoded = cached(slow, roots=[root])
    assert np.array_equal(decoded.train.images, TRAIN)
    assert only_entry(root).name.startswith("small-")


def test_what_killed_processes_left_is_removed_after_a_day(counted: Counted, tmp_path: Path) -> None:
    old, young = tmp_path / ".building-old", tmp_path / ".building-young"
    for left in (old, young):
        left.mkdir()
        (left / "train-images.npy").write_bytes(b"half")
    long_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (long_ago, long_ago))
    cached(counted.source, roots=[tmp_path])
    assert not old.exists()
    assert young.exists()


def test_missing_source_file_is_named(counted: Counted, tmp_path: Path) -> None:
    (counted.source.root / "b.bin").unlink()
    with pytest.raises(DataError, match=r"b\.bin"):
        cached(counted.source, roots=[tmp_path / "cache"])


def test_argument_wins_over_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGIL_DATA", "/from/environment")
    assert data_directory("/given", name="cifar10") == Path("/given")
    assert data_directory(None, name="cifar10") == Path("/from/environment")


def test_no_directory_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIGIL_DATA", raising=False)
    with pytest.raises(DataError, match=r"--data-dir.*SIGIL_DATA.*sigil data fetch cifar10"):
        data_directory(None, name="cifar10")


def test_cache_lies_beside_the_data_then_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIGIL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/cache")
    assert cache_roots(Path("/data")) == [Path("/data/.sigil-cache"), Path("/home/cache/sigil")]
    assert cache_roots(None) == [Path("/home/cache/sigil")]


def test_chosen_cache_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGIL_CACHE", "/fast/disk")
    assert cache_roots(Path("/data")) == [Path("/fast/disk")]


def test_equals_the_statistics_of_all_pixels_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_CHUNK", 7)
    images = np.random.default_rng(0).integers(0, 256, (45, 3, 5, 6), dtype=np.uint8)
    images[:, 2] //= 3
    mean, std = channel_statistics(images)
    scaled = images.astype(np.float64) / 255
    np.testing.assert_allclose(mean, scaled.mean(axis=(0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, scaled.std(axis=(0, 2, 3)), rtol=1e-12)


def test_sums_do_not_overflow_on_bright_images() -> None:
    images = np.full((300, 1, 256, 256), 255, dtype=np.uint8)
    images[::2] = 253
    mean, std = channel_statistics(images)
    assert mean == pytest.approx((254 / 255,))
    assert std == pytest.approx((1 / 255,))


def test_channel_without_contrast_can_be_divided_by() -> None:
    _, std = channel_statistics(np.full((4, 2, 3, 3), 9, dtype=np.uint8))
    assert std == pytest.approx((1 / 255, 1 / 255))
