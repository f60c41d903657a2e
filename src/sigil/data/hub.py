"""What the library `datasets` reads: image folders, other local directories, sets of the Hugging Face hub.

Only data are read (Parquet, pictures, …): a data set that comes with a loading script is refused, no
code of a data set is ever run.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sigil.data import images
from sigil.data.cache import Allocate, Source
from sigil.errors import DataError

_TEST_SPLITS = ("test", "validation", "valid", "val")
_LABELS = ("label", "labels")
# Rows in memory at a time.
_CHUNK = 1024


def source(name: str, *, downloads: Path, size: int | None = None, folder: bool = False) -> Source:
    """Describe the hub data set `name` ("ylecun/mnist"), or the local directory `name`.

    With `folder` it is an image folder, train/CLASS/*.png and test/CLASS or val/CLASS, the classes in
    alphabetical order. `downloads` is where the library keeps what it fetches. The images are those of the
    first column of pictures; the labels are the column `label` or `labels`, or else the first column of
    classes. All images get the size of the first one, or `size` x `size`; they are grey if the first one is.
    The files of a local directory are part of the source_digest; a set of the hub is decoded once and
    then taken from the cache until that is removed.
    """
    local = Path(name).expanduser()
    is_local = local.is_dir()
    if folder and not is_local:
        raise DataError(
            f"{local} is not a directory, but train/CLASS/*.png and test/CLASS/*.png are expected."
        )

    def decode(allocate: Allocate) -> int:
        target = str(local.resolve()) if is_local else name
        # Of a folder the library keeps a list of its files, which nobody needs again.
        with tempfile.TemporaryDirectory() as lists:
            splits = _load(target, folder=folder, downloads=Path(lists) if folder else downloads)
            image_column, label_column = _columns(splits["train"], name=name)
            classes = _classes(splits["train"], label_column, only_seen=folder)
            first = splits["train"][0][image_column]
            opened = images.open_picture(_content(first, name), label=first["path"] or name)
            shape = images.shape_of(opened, size=size)
            for split, rows in splits.items():
                array = allocate(f"{split}-images", (len(rows), *shape))
                for start in range(0, len(rows), _CHUNK):
                    pictures = rows[start : start + _CHUNK][image_column]
                    images.fill(
                        array[start : start + _CHUNK],
                        pictures,
                        lambda picture: images.decode(
                            _content(picture, name), shape, label=picture["path"] or name
                        ),
                    )
                labels = allocate(f"{split}-labels", (len(rows),))
                labels[:] = _labels(rows, label_column, classes, name=name)
            if len(classes) < 2:
                raise DataError(
                    f"The data set '{name}' has one class, from which nothing can be learned: put pictures "
                    "of each class into a directory of their own."
                )
            return len(classes)

    plain = local.resolve().name if folder else name
    return Source(
        name=("folder-" if folder else "hub-") + re.sub(r"[^\w.-]+", "-", plain).strip("-"),
        root=local if is_local else Path(),
        files=_files_under(local) if is_local else [],
        decode=decode,
        options=f"{size}" if folder else f"{name} {size}",
    )


def _files_under(root: Path) -> list[str]:
    """List all visible files under `root`, sorted, as paths relative to it."""
    files: list[str] = []
    for directory, folders, names in os.walk(root):
        folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
        relative = os.path.relpath(directory, root)
        files += [os.path.join(relative, name) for name in sorted(names) if name[0] != "."]
    return files


def _load(target: str, *, folder: bool, downloads: Path) -> dict[str, Any]:
    """Load the training and the test split of a data set, pictures left as files."""
    import datasets

    options: dict[str, Any] = {"path": target}
    if folder:
        # Directories are classes, whatever else lies in them.
        options = {"path": "imagefolder", "data_dir": target, "drop_labels": False, "drop_metadata": True}
    try:
        loaded = datasets.load_dataset(**options, cache_dir=str(downloads), trust_remote_code=False)
    except Exception as error:
        # The library raises dozens of kinds, from connection errors to Arrow's own.
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        if folder:
            raise DataError(
                f"{target} could not be read as pictures ({reason}): put them into one directory per class, "
                "under train and test."
            ) from error
        raise DataError(
            f"The data set '{target}' could not be loaded by Hugging Face datasets ({reason}): check "
            "its name, the connection, and that it has no loading script."
        ) from error
    held_out = next((split for split in _TEST_SPLITS if split in loaded), None)
    if "train" not in loaded or held_out is None:
        raise DataError(
            f"The data set '{target}' has the splits {', '.join(map(str, loaded))}, but 'train' and one "
            f"of {', '.join(_TEST_SPLITS)} are needed: choose another."
        )
    undecoded = datasets.Image(decode=False)
    splits = {}
    for split, rows in (("train", loaded["train"]), ("test", loaded[held_out])):
        if len(rows) == 0:
            raise DataError(f"The {split} split of '{target}' is empty: choose another data set.")
        for column, feature in rows.features.items():
            if isinstance(feature, datasets.Image):
                rows = rows.cast_column(column, undecoded)
        splits[split] = rows
    return splits


def _columns(rows: Any, *, name: str) -> tuple[str, str]:
    """Find the column of images and the column of labels."""
    import datasets

    pictures = [key for key, kind in rows.features.items() if isinstance(kind, datasets.Image)]
    classes = [key for key, kind in rows.features.items() if isinstance(kind, datasets.ClassLabel)]
    labels = [key for key in _LABELS if key in rows.features] + classes
    if not pictures or not labels:
        raise DataError(
            f"The data set '{name}' has the columns {', '.join(rows.features)}, but one of images and "
            "one named 'label' (or of class labels) are needed: choose another."
        )
    return pictures[0], labels[0]


def _classes(rows: Any, column: str, *, only_seen: bool) -> dict[Hashable, int]:
    """Number the classes: those that the set declares, or the sorted values of the training split."""
    import datasets

    feature = rows.features[column]
    if isinstance(feature, datasets.ClassLabel) and not only_seen:
        return {value: value for value in range(feature.num_classes)}
    values = sorted(set(rows.select_columns([column])[:][column]))
    return {value: number for number, value in enumerate(values)}


def _labels(rows: Any, column: str, classes: dict[Hashable, int], *, name: str) -> npt.NDArray[np.int64]:
    values = rows.select_columns([column])[:][column]
    unknown = [value for value in values if value not in classes]
    if unknown:
        feature = rows.features[column]
        label = feature.int2str(unknown[0]) if hasattr(feature, "int2str") else unknown[0]
        raise DataError(
            f"The data set '{name}' has the label {label!r} in '{column}', which is none of the "
            f"{len(classes)} classes of its training split: choose another."
        )
    return np.array([classes[value] for value in values], dtype=np.int64)


def _content(picture: Any, name: str) -> Path | bytes:
    """Give the bytes of a picture, or the path of its file."""
    if picture and picture.get("bytes") is not None:
        return bytes(picture["bytes"])
    if picture and picture.get("path") and os.path.isfile(picture["path"]):
        return Path(picture["path"])
    raise DataError(f"The data set '{name}' has a row without a picture: choose another.")
