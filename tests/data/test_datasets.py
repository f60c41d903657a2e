from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sigil.data import datasets, load, names
from sigil.errors import DataError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SIGIL_DATA", raising=False)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A small Fashion-MNIST: 100 training images, 50 test images, classes in turn."""
    root = tmp_path / "data" / "fashion-mnist"
    root.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for split, count in (("train", 100), ("t10k", 50)):
        images = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        header = struct.pack(">HBB3I", 0, 8, 3, count, 28, 28)
        path = root / f"{split}-images-idx3-ubyte.gz"
        path.write_bytes(gzip.compress(header + images.tobytes()))
        path = root / f"{split}-labels-idx1-ubyte.gz"
        path.write_bytes(gzip.compress(struct.pack(">HBBI", 0, 8, 1, count) + labels.tobytes()))
    return root.parent


def test_digits_need_no_directory() -> None:
    digits = load("digits")
    assert digits.shape == (1, 8, 8)
    assert digits.classes == 10
    assert len(digits.train) == 1438
    assert digits.mean == pytest.approx((digits.train.images.mean() / 255,))
    assert digits.augment == "none"


def test_official_set_is_mapped_with_its_published_statistics(data_dir: Path) -> None:
    found = load("fashion-mnist", data_dir=data_dir)
    assert isinstance(found.train.images, np.memmap)
    assert (len(found.train), len(found.test)) == (100, 50)
    assert (found.mean, found.std) == ((0.2860,), (0.3530,))
    assert found.augment == "crop"


def test_directory_comes_from_the_environment(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGIL_DATA", str(data_dir))
    assert len(load("fashion-mnist").train) == 100


def test_cache_lies_beside_the_data(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIGIL_CACHE")
    load("fashion-mnist", data_dir=data_dir)
    (entry,) = (data_dir / ".sigil-cache").iterdir()
    assert entry.name.startswith("fashion-mnist-")


def test_limits_keep_every_class_in_its_proportion(data_dir: Path) -> None:
    whole = load("fashion-mnist", data_dir=data_dir)
    small = load("fashion-mnist", data_dir=data_dir, train_limit=30, test_limit=20)
    assert np.bincount(small.train.labels).tolist() == [3] * 10
    assert np.bincount(small.test.labels).tolist() == [2] * 10
    assert small.mean == whole.mean
    # Each kept image is one of the whole, with its own label.
    positions = [
        np.flatnonzero((whole.train.images == image).all(axis=(1, 2, 3)))[0] for image in small.train.images
    ]
    assert whole.train.labels[positions].tolist() == small.train.labels.tolist()


def test_subset_follows_from_the_seed(data_dir: Path) -> None:
    def subset(seed: int) -> np.ndarray:
        return load("fashion-mnist", data_dir=data_dir, train_limit=30, seed=seed).train.images

    assert np.array_equal(subset(0), subset(0))
    assert not np.array_equal(subset(0), subset(1))
    default = load("fashion-mnist", data_dir=data_dir, train_limit=30).train.images
    assert np.array_equal(default, subset(0))


def test_first_classes_only(data_dir: Path) -> None:
    reduced = load("fashion-mnist", data_dir=data_dir, classes=3, train_limit=9)
    assert reduced.classes == 3
    assert np.bincount(reduced.train.labels).tolist() == [3, 3, 3]
    assert np.bincount(reduced.test.labels).tolist() == [5, 5, 5]


def test_limit_beyond_the_set_changes_nothing(data_dir: Path) -> None:
    whole = load("fashion-mnist", data_dir=data_dir, train_limit=1000, classes=10)
    assert len(whole.train) == 100
    assert isinstance(whole.train.images, np.memmap)


def test_folder_and_its_size(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for level, name in ((0, "a"), (255, "b")):
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("RGB", (6, 6), (level,) * 3).save(tmp_path / split / name / "1.png")
    found = load(f"folder:{tmp_path}", size=8)
    assert found.shape == (3, 8, 8)
    assert found.mean == pytest.approx((0.5,) * 3)
    assert found.std == pytest.approx((0.5,) * 3)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cifr10", {}, "did you mean 'cifar10'"),
        ("folder:", {}, "choose digits, digits32, cifar10"),
        ("nothing like it", {}, "choose digits, digits32, cifar10"),
        ("cifar10", {}, "sigil data fetch cifar10"),
        ("digits", {"classes": 11}, "choose 2 to 10"),
        ("digits", {"classes": 1}, "choose 2 to 10"),
        ("digits", {"train_limit": 0}, "train_limit is 0"),
        ("digits", {"test_limit": -5}, "test_limit is -5"),
        ("digits", {"size": 16}, "leave it out"),
    ],
)
def test_impossible_requests_say_what_is_possible(name: str, options: dict[str, int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(name, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["cifar10", "tiny-imagenet", "fashion-mnist"])
def test_missing_data_say_where_they_were_looked_for(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError) as caught:
        load(name, data_dir=tmp_path / "empty")
    assert str(tmp_path / "empty") in str(caught.value)
    assert f"`sigil data fetch {name} --data-dir" in str(caught.value)


def test_names_are_those_that_load_knows() -> None:
    assert names() == ["digits", "digits32", "cifar10", "tiny-imagenet", "fashion-mnist"]


def from_scikit_learn() -> Any:
    """What scikit-learn gives; imported here, as every worker that collects the tests would wait for it."""
    from sklearn import datasets as sklearn_datasets

    return sklearn_datasets.load_digits()


def test_split_is_four_to_one_in_every_class_and_complete() -> None:
    digits = load("digits")
    train_images, train_labels = digits.train.images, digits.train.labels
    test_images, test_labels = digits.test.images, digits.test.labels
    assert train_images.shape == (1438, 1, 8, 8)
    assert test_images.shape == (359, 1, 8, 8)
    assert train_images.dtype == np.uint8
    shares = np.bincount(test_labels) / (np.bincount(test_labels) + np.bincount(train_labels))
    assert np.all(np.abs(shares - 0.2) < 0.01)
    original = from_scikit_learn().images.reshape(1797, 64) * 255 / 16
    both = np.concatenate([train_images, test_images]).reshape(1797, 64)
    for found, expected in zip(np.unique(both, axis=0), np.unique(original, axis=0), strict=True):
        assert np.all(np.abs(found - expected) <= 0.5)


def test_split_never_changes() -> None:
    first, second = load("digits"), load("digits")
    assert np.array_equal(first.test.images, second.test.images)
    assert np.array_equal(first.train.labels, second.train.labels)


def test_the_file_is_what_scikit_learn_gives_and_it_is_asked_where_the_file_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    direct = datasets._digit_rows()
    expected = from_scikit_learn()
    assert np.array_equal(direct, np.column_stack([expected.data, expected.target]))
    asked = []
    monkeypatch.setattr(Path, "is_file", lambda path: asked.append(path.name))
    assert np.array_equal(datasets._digit_rows.__wrapped__(), direct)
    assert asked == ["digits.csv.gz"]
