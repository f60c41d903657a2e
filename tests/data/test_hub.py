from __future__ import annotations

import io
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sigil.data import hub
from sigil.data.cache import Dataset, cached, source_digest
from sigil.errors import DataError


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let no test reach the network, and fail one that tries."""
    # Not above: every worker that collects the tests would wait for it.
    global datasets
    import datasets

    tried = []

    def refuse(_: socket.socket, address: Any) -> None:
        tried.append(address)
        raise OSError("no network in tests")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    yield
    assert tried == []


def load(root: Path, tmp_path: Path, **options: Any) -> Dataset:
    source = hub.source(str(root), downloads=tmp_path / "downloads", **options)
    return cached(source, roots=[tmp_path / "cache"])


def picture(pixels: np.ndarray) -> dict[str, Any]:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


PIXELS = np.random.default_rng(0).integers(0, 256, (8, 6, 6), dtype=np.uint8)


def write_parquet(root: Path, labels: Any, feature: Any, *, column: str = "label") -> Path:
    """Eight pictures to train and the first four of them to test, as Parquet files."""
    root.mkdir()
    features = datasets.Features({column: feature, "image": datasets.Image()})
    rows = {column: list(labels), "image": [picture(pixels) for pixels in PIXELS]}
    whole = datasets.Dataset.from_dict(rows, features=features)
    whole.to_parquet(str(root / "train-00000.parquet"))
    whole.select(range(4)).to_parquet(str(root / "validation-00000.parquet"))
    return root


def test_parquet_with_class_labels(tmp_path: Path) -> None:
    feature = datasets.ClassLabel(names=["a", "b", "never seen"])
    root = write_parquet(tmp_path / "set", [0, 1] * 4, feature)
    decoded = load(root, tmp_path)
    assert np.array_equal(decoded.train.images[:, 0], PIXELS)
    assert np.array_equal(decoded.test.images[:, 0], PIXELS[:4])
    assert decoded.train.labels.tolist() == [0, 1] * 4
    assert decoded.classes == 3
    assert load(root, tmp_path, size=9).train.images.shape == (8, 1, 9, 9)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["x", "y"] * 4, "string"),
        ([10, 70] * 4, "int32"),
    ],
)
def test_other_labels_are_numbered_in_order(tmp_path: Path, values: Any, kind: str) -> None:
    decoded = load(write_parquet(tmp_path / "set", values, datasets.Value(kind)), tmp_path)
    assert decoded.train.labels.tolist() == [0, 1] * 4
    assert decoded.classes == 2


def test_class_column_of_another_name_is_found(tmp_path: Path) -> None:
    feature = datasets.ClassLabel(names=["a", "b"])
    root = write_parquet(tmp_path / "set", [1, 0] * 4, feature, column="species")
    assert load(root, tmp_path).train.labels.tolist() == [1, 0] * 4


def test_directory_of_pictures_is_a_folder(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "set")
    assert np.array_equal(load(root, tmp_path).train.images, load(root, tmp_path, folder=True).train.images)


def test_changed_local_files_change_the_fingerprint(tmp_path: Path) -> None:
    root = write_parquet(tmp_path / "set", [0, 1] * 4, datasets.Value("int64"))
    before = source_digest(hub.source(str(root), downloads=tmp_path))
    (root / "more.parquet").write_bytes(b"x")
    assert source_digest(hub.source(str(root), downloads=tmp_path)) != before


def test_loading_script_is_refused_and_not_run(tmp_path: Path) -> None:
    root = tmp_path / "scripted"
    root.mkdir()
    (root / "scripted.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(DataError, match="script"):
        load(root, tmp_path)
    assert not (tmp_path / "ran").exists()


def test_unknown_labels_are_refused(tmp_path: Path) -> None:
    root = write_parquet(tmp_path / "set", [0] * 8, datasets.Value("int64"))
    features = datasets.Features({"label": datasets.Value("int64"), "image": datasets.Image()})
    odd = {"label": [5], "image": [picture(PIXELS[0])]}
    other = datasets.Dataset.from_dict(odd, features=features)
    other.to_parquet(str(root / "validation-00000.parquet"))
    with pytest.raises(DataError, match="label 5"):
        load(root, tmp_path)


def test_set_without_test_split_or_pictures_is_refused(tmp_path: Path) -> None:
    root = write_parquet(tmp_path / "set", [0, 1] * 4, datasets.Value("int64"))
    (root / "validation-00000.parquet").unlink()
    with pytest.raises(DataError, match="has the splits train"):
        load(root, tmp_path)
    plain = tmp_path / "plain"
    plain.mkdir()
    for split in ("train", "test"):
        datasets.Dataset.from_dict({"label": [0, 1]}).to_parquet(str(plain / f"{split}.parquet"))
    with pytest.raises(DataError, match="has the columns label"):
        load(plain, tmp_path)


def test_row_without_a_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="without a picture"):
        hub._content({"bytes": None, "path": str(tmp_path / "absent.png")}, "set")
    with pytest.raises(DataError, match="without a picture"):
        hub._content(None, "set")


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
    decoded = load(root, tmp_path, folder=True)
    assert decoded.classes == 2
    assert decoded.train.images.shape == (6, 3, 10, 12)
    assert decoded.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert decoded.train.images[:, 0, 0, 0].tolist() == [30, 30, 30, 200, 200, 200]
    assert decoded.train.images[:, 1, 0, 0].tolist() == [0, 1, 2, 0, 1, 2]
    assert decoded.test.labels.tolist() == [0, 0, 1, 1]


def test_images_get_the_size_of_the_first_or_the_one_given(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "set")
    Image.new("L", (50, 40), 99).save(root / "train" / "dog" / "large.JPG")
    first = load(root, tmp_path, folder=True)
    assert first.train.images.shape == (7, 3, 10, 12)
    assert np.all(np.abs(first.train.images[6].astype(int) - 99) <= 1)
    given = load(root, tmp_path, folder=True, size=16)
    assert given.train.images.shape == (7, 3, 16, 16)


def test_grey_first_image_makes_a_grey_set(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "set")
    Image.new("L", (9, 9), 77).save(root / "train" / "cat" / "0.png")
    decoded = load(root, tmp_path, folder=True)
    assert decoded.train.images.shape == (6, 1, 9, 9)
    assert np.all(decoded.train.images[0] == 77)


def test_test_split_may_lack_a_class_but_not_add_one(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "set")
    shutil.rmtree(root / "test" / "cat")
    decoded = load(root, tmp_path, folder=True)
    assert decoded.test.labels.tolist() == [1, 1]
    (root / "test" / "dog").rename(root / "test" / "bird")
    with pytest.raises(DataError, match="'bird'"):
        load(root, tmp_path, folder=True)


@pytest.mark.parametrize(
    ("remove", "message"),
    [
        ("../*", "not a directory, but train/CLASS"),
        ("train", "has the splits test"),
        ("test", "has the splits train"),
        ("train/*", "has the splits test"),
        ("train/dog/*.png", "has the label 'dog'"),
        ("t*/dog", "has one class, from which nothing can be learned"),  # it was trained on for nothing
        ("*", "put them into one directory per class, under train and test"),  # it was "check the connection"
    ],
)
def test_incomplete_folders_are_refused(tmp_path: Path, remove: str, message: str) -> None:
    root = write_folder(tmp_path / "set")
    for path in list(root.parent.glob(f"set/{remove}")):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    with pytest.raises(DataError, match=message):
        load(root, tmp_path, folder=True)
