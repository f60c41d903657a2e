"""Images without labels, to show to a suspect: from a folder of pictures or from a data set."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sigil.data import images as pictures
from sigil.data.batches import evaluate_batches
from sigil.data.datasets import load
from sigil.errors import DataError

MOST_IMAGES = 2_000
_MOST_FILES = 1_000_000
_PICTURES = (".png", ".jpg", ".jpeg")


def load_images(
    source: str | os.PathLike[str],
    *,
    shape: Sequence[int] | None = None,
    most: int = MOST_IMAGES,
    data_dir: Path | None = None,
) -> Tensor:
    """Load at most ``most`` images, evenly chosen, for ``probe_data`` of :func:`sigil.verify`.

    ``source`` is a folder of PNG and JPEG pictures, however deep they lie, or the name of a data set (see
    :func:`sigil.data.load`, which takes ``data_dir``). Pictures are resized to ``shape`` (C, H, W) and come
    as uint8; of a data set the test images come, in float32 and normalised as in training.
    """
    if most < 1:
        raise DataError(f"{most} images were asked for, but one is the least.")
    folder = Path(source).expanduser()
    if not folder.is_dir():
        return _of_data_set(os.fspath(source), most, data_dir)
    if shape is None or len(shape) != 3:
        raise DataError(f"Pictures must be resized: give the shape (C, H, W) for those in {folder}.")
    channels, height, width = shape
    if channels not in (1, 3):
        raise DataError(f"Pictures have 1 or 3 channels, but the shape {tuple(shape)} asks for {channels}.")
    return _of_folder(folder, (channels, height, width), most)


def _of_data_set(name: str, most: int, data_dir: Path | None) -> Tensor:
    dataset = load(name, data_dir=data_dir)
    chosen = _evenly(len(dataset.test), most)
    ((found, _),) = evaluate_batches(
        np.asarray(dataset.test.images)[chosen],
        dataset.test.labels[chosen],
        batch_size=len(chosen),
        mean=dataset.mean,
        std=dataset.std,
    )
    return found


def _of_folder(folder: Path, shape: tuple[int, int, int], most: int) -> Tensor:
    files = sorted(itertools.islice(_picture_files(folder), _MOST_FILES))
    if not files:
        raise DataError(f"There are no PNG or JPEG pictures in {folder}: name a folder that holds some.")
    chosen = [files[i] for i in _evenly(len(files), most)]
    table = np.empty((len(chosen), *shape), np.uint8)
    pictures.fill(table, chosen, lambda file: pictures.decode(file, shape))
    return torch.from_numpy(table)


def _evenly(count: int, most: int) -> list[int]:
    return np.linspace(0, count - 1, min(most, count)).astype(int).tolist()


def _picture_files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (Path(place) / name for name in names if name.lower().endswith(_PICTURES))
