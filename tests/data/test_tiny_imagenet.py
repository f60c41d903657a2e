from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sigil.data import tiny_imagenet
from sigil.data.cache import cached
from sigil.errors import DataError

# Not in alphabetical order, as in the official list.
WNIDS = ("n02124075", "n01443537", "n04067472")
BRIGHTNESS = {"n01443537": 40, "n02124075": 120, "n04067472": 220}


def write_set(data_dir: Path) -> Path:
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


def test_official_layout_is_read(tmp_path: Path) -> None:
    write_set(tmp_path)
    decoded = cached(tiny_imagenet.source(tmp_path), roots=[tmp_path / "cache"])
    assert decoded.classes == 3
    assert decoded.train_images.shape == (6, 3, 64, 64)
    assert decoded.train_labels.tolist() == [0, 0, 1, 1, 2, 2]
    red = decoded.train_images[:, 0].mean(axis=(1, 2))
    assert np.all(np.abs(red - [40, 40, 120, 120, 220, 220]) < 4)
    green = decoded.train_images[:, 1].mean(axis=(1, 2))
    assert np.all(np.abs(green - [0, 10, 0, 10, 0, 10]) < 4)
    assert decoded.test_labels.tolist() == [2, 1]
    assert np.all(np.abs(decoded.test_images.mean(axis=(2, 3)) - [[220] * 3, [120] * 3]) < 2)


def test_every_picture_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    root = write_set(tmp_path)
    files = tiny_imagenet.source(tmp_path).files
    pictures = {str(path.relative_to(root)) for path in root.rglob("*.JPEG")}
    assert set(files) == pictures | {"wnids.txt", "val/val_annotations.txt"}


@pytest.mark.parametrize("path", ["wnids.txt", "train", "val/val_annotations.txt"])
def test_missing_set_says_where_and_what_to_do(tmp_path: Path, path: str) -> None:
    root = write_set(tmp_path)
    (root / path).rename(tmp_path / "gone")
    with pytest.raises(DataError, match=rf"{path}.*sigil data fetch tiny-imagenet"):
        tiny_imagenet.source(tmp_path)


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
    change(write_set(tmp_path))
    with pytest.raises(DataError, match=message):
        tiny_imagenet.source(tmp_path)


def test_damaged_picture_is_named(tmp_path: Path) -> None:
    root = write_set(tmp_path)
    (root / "val/images/val_1.JPEG").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"val_1\.JPEG"):
        cached(tiny_imagenet.source(tmp_path), roots=[tmp_path / "cache"])


def test_lists_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_set(tmp_path)
    monkeypatch.setattr(tiny_imagenet, "_MAX_TEXT_BYTES", 20)
    with pytest.raises(DataError, match=r"wnids\.txt is larger"):
        tiny_imagenet.source(tmp_path)
