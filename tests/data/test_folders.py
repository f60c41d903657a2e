from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sigil.data import folders
from sigil.data.cache import cached, source_digest
from sigil.errors import DataError


def write_folder(root: Path, *, held_out: str = "test") -> Path:
    for split, count in (("train", 3), (held_out, 2)):
        for brightness, name in ((30, "cat"), (200, "dog")):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                colour = (brightness, number, 0)
                Image.new("RGB", (12, 10), colour).save(folder / f"{number}.png")
    (root / "train" / "cat" / "notes.txt").write_text("not a picture")
    (root / "train" / ".hidden").mkdir()
    return root


@pytest.mark.parametrize("held_out", ["test", "val"])
def test_folders_are_classes_in_alphabetical_order(tmp_path: Path, held_out: str) -> None:
    root = write_folder(tmp_path / "set", held_out=held_out)
    decoded = cached(folders.source(root), roots=[tmp_path / "cache"])
    assert decoded.classes == 2
    assert decoded.train_images.shape == (6, 3, 10, 12)
    assert decoded.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert decoded.train_images[:, 0, 0, 0].tolist() == [30, 30, 30, 200, 200, 200]
    assert decoded.train_images[:, 1, 0, 0].tolist() == [0, 1, 2, 0, 1, 2]
    assert decoded.test_labels.tolist() == [0, 0, 1, 1]


def test_images_get_the_size_of_the_first_or_the_one_given(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "set")
    Image.new("L", (50, 40), 99).save(root / "train" / "dog" / "large.JPG")
    first = cached(folders.source(root), roots=[tmp_path / "cache"])
    assert first.train_images.shape == (7, 3, 10, 12)
    assert np.all(np.abs(first.train_images[6].astype(int) - 99) <= 1)
    given = cached(folders.source(root, size=16), roots=[tmp_path / "cache"])
    assert given.train_images.shape == (7, 3, 16, 16)
    assert source_digest(folders.source(root)) != source_digest(folders.source(root, size=16))


def test_grey_first_image_makes_a_grey_set(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "set")
    Image.new("L", (9, 9), 77).save(root / "train" / "cat" / "0.png")
    decoded = cached(folders.source(root), roots=[tmp_path / "cache"])
    assert decoded.train_images.shape == (6, 1, 9, 9)
    assert np.all(decoded.train_images[0] == 77)


def test_test_split_may_lack_a_class_but_not_add_one(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "set")
    shutil.rmtree(root / "test" / "cat")
    decoded = cached(folders.source(root), roots=[tmp_path / "cache"])
    assert decoded.test_labels.tolist() == [1, 1]
    (root / "test" / "bird").mkdir()
    with pytest.raises(DataError, match="'bird'"):
        folders.source(root)


@pytest.mark.parametrize(
    ("remove", "message"),
    [
        ("train", "train does not exist"),
        ("test", "has no test images"),
        ("train/*", "has no directories"),
        ("train/dog/*.png", "has no PNG or JPEG files"),
    ],
)
def test_incomplete_folders_are_refused(tmp_path: Path, remove: str, message: str) -> None:
    root = write_folder(tmp_path / "set")
    for path in list(root.glob(remove)):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    with pytest.raises(DataError, match=message):
        folders.source(root)


def test_number_of_images_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_MAX_IMAGES", 9)
    with pytest.raises(DataError, match="more than the limit of 9"):
        folders.source(write_folder(tmp_path / "set"))
