"""Tiny-ImageNet from its official folders (200 classes of 64 x 64 JPEG pictures)."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np

from sigil.data import images
from sigil.data.cache import Allocate, Source
from sigil.errors import DataError

DIRECTORY = "tiny-imagenet-200"
SHAPE = (3, 64, 64)

_MAX_TEXT_BYTES = 16 * 2**20
_MAX_PER_CLASS = 10_000
_WNID = re.compile(r"n\d{8}")
_PICTURE = re.compile(r"[\w-]+\.JPEG")


def source(data_dir: Path) -> Source:
    """Describe Tiny-ImageNet in `data_dir`/tiny-imagenet-200.

    Classes are numbered in the alphabetical order of their WordNet ids, as image folders are. The
    official validation pictures are the test split (the official test split has no labels).
    """
    root = data_dir / DIRECTORY
    missing = [p for p in ("wnids.txt", "train", "val/val_annotations.txt") if not (root / p).exists()]
    if missing:
        raise DataError(
            f"Tiny-ImageNet was not found: {root / missing[0]} does not exist; download it with "
            f"`sigil data fetch tiny-imagenet --data-dir {data_dir}`."
        )
    wnids = sorted(set(_lines(root / "wnids.txt")))
    bad = [wnid for wnid in wnids if not _WNID.fullmatch(wnid)]
    if bad or not wnids:
        raise DataError(
            f"{root / 'wnids.txt'} does not list WordNet ids such as n01443537 (found "
            f"{bad[:1] or 'nothing'}): fetch tiny-imagenet again."
        )
    train = [(file, label) for label, wnid in enumerate(wnids) for file in _train_files(root, wnid)]
    test = _validation_files(root, wnids)
    files = [file for file, _ in train + test]

    def decode(allocate: Allocate) -> int:
        for split, samples in (("train", train), ("test", test)):
            array = allocate(f"{split}-images", (len(samples), *SHAPE))
            images.fill(array, samples, lambda sample: images.decode(root / sample[0], SHAPE))
            allocate(f"{split}-labels", (len(samples),))[:] = np.array([own for _, own in samples])
        return len(wnids)

    listed = ["wnids.txt", "val/val_annotations.txt", *files]
    return Source(name="tiny-imagenet", root=root, files=listed, decode=decode)


def _lines(path: Path) -> list[str]:
    """Read a text file of bounded size as stripped, non-empty lines."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_TEXT_BYTES + 1)
        if len(content) > _MAX_TEXT_BYTES:
            raise DataError(
                f"{path} is larger than {_MAX_TEXT_BYTES // 2**20} MiB: fetch tiny-imagenet again."
            )
        return [line.strip() for line in content.decode().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}): fetch tiny-imagenet again.") from error


def _train_files(root: Path, wnid: str) -> list[str]:
    """List the pictures of one class as sorted paths under `root`."""
    folder = f"train/{wnid}/images"
    try:
        names = [name for name in os.listdir(root / folder) if _PICTURE.fullmatch(name)]
    except OSError as error:
        raise DataError(
            f"{root / folder} cannot be read ({error.strerror}): fetch tiny-imagenet again."
        ) from error
    if not 1 <= len(names) <= _MAX_PER_CLASS:
        raise DataError(
            f"{root / folder} holds {len(names)} JPEG files, but 1 to {_MAX_PER_CLASS} are expected: "
            "fetch tiny-imagenet again."
        )
    return [f"{folder}/{name}" for name in sorted(names)]


def _validation_files(root: Path, wnids: list[str]) -> list[tuple[str, int]]:
    """List the validation pictures with their labels, as val_annotations.txt gives them."""
    labels = {wnid: label for label, wnid in enumerate(wnids)}
    path = root / "val" / "val_annotations.txt"
    samples = []
    for number, line in enumerate(_lines(path), start=1):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        # The pattern has no slash: a name cannot lead out of the folder.
        if not _PICTURE.fullmatch(name) or wnid not in labels:
            raise DataError(
                f"Line {number} of {path} is not a picture name and one of the ids of wnids.txt: "
                "fetch tiny-imagenet again."
            )
        samples.append((f"val/images/{name}", labels[wnid]))
    if not samples:
        raise DataError(f"{path} lists no pictures: fetch tiny-imagenet again.")
    return samples
