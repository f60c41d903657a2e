"""Image folders: one directory per class, as many tools write them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from sigil.data import images
from sigil.data.cache import Allocate, Source
from sigil.errors import DataError

_EXTENSIONS = (".png", ".jpg", ".jpeg")
_MAX_IMAGES = 5_000_000


def source(root: Path, *, size: int | None = None) -> Source:
    """Describe the image folder `root`: train/CLASS/*.png|jpg and val/CLASS or test/CLASS.

    Classes are numbered in alphabetical order. All images get the size of the first one (the first
    file of the first class), or `size` x `size`; they are grey if the first one is.
    """
    if not (root / "train").is_dir():
        raise DataError(
            f"No image folder was found: {root / 'train'} does not exist, but train/CLASS/*.png and "
            "test/CLASS/*.png (or val) are expected."
        )
    held_out = next((name for name in ("test", "val") if (root / name).is_dir()), None)
    if held_out is None:
        raise DataError(
            f"{root} has no test images: put them into {root / 'test'} or {root / 'val'}, one "
            "directory per class."
        )
    classes = _directories(root / "train")
    unknown = sorted(set(_directories(root / held_out)) - set(classes))
    if unknown:
        raise DataError(
            f"{root / held_out} has the class '{unknown[0]}', which {root / 'train'} lacks: both must "
            "have the same classes."
        )
    labels = {name: label for label, name in enumerate(classes)}
    samples = {
        split: [
            (f"{folder}/{name}/{file}", labels[name])
            for name in _directories(root / folder)
            for file in _pictures(root / folder / name)
        ]
        for split, folder in (("train", "train"), ("test", held_out))
    }

    def decode(allocate: Allocate) -> int:
        shape = images.shape_of(images.open_picture(root / samples["train"][0][0]), size=size)
        for split, pairs in samples.items():
            array = allocate(f"{split}-images", (len(pairs), *shape))
            images.fill(array, pairs, lambda pair: images.decode(root / pair[0], shape))
            allocate(f"{split}-labels", (len(pairs),))[:] = np.array([own for _, own in pairs])
        return len(classes)

    files = [file for pairs in samples.values() for file, _ in pairs]
    if len(files) > _MAX_IMAGES:
        raise DataError(
            f"{root} holds {len(files):,} images, more than the limit of {_MAX_IMAGES:,}: use fewer."
        )
    return Source(
        name=f"folder-{root.resolve().name}", root=root, files=files, decode=decode, options=f"{size}"
    )


def _directories(path: Path) -> list[str]:
    with os.scandir(path) as entries:
        names = sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
    if not names:
        raise DataError(f"{path} has no directories, but one for each class is expected.")
    return names


def _pictures(path: Path) -> list[str]:
    names = sorted(name for name in os.listdir(path) if name.lower().endswith(_EXTENSIONS))
    if not names:
        raise DataError(f"{path} has no PNG or JPEG files: add some or remove the directory.")
    return names
