"""The data sets by name, whole or reduced."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sigil.data import cifar10, digits, fashion_mnist, folders, hub, tiny_imagenet
from sigil.data.cache import Source, cached
from sigil.data.locations import cache_roots, data_directory
from sigil.data.statistics import channel_statistics
from sigil.data.subsets import stratified
from sigil.errors import DataError


@dataclass(frozen=True)
class Split:
    """Images and their labels.

    `images` is uint8 (n, C, H, W), memory-mapped and read-only unless the set was reduced; `labels`
    is int64 (n,).
    """

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Dataset:
    """A data set for classification with a training and a test split.

    `shape` is (C, H, W); `mean` and `std` are those of each channel on the scale 0 to 1; `augment` is
    the augmentation that is usual for the set, a name that :class:`sigil.data.Batches` takes.
    """

    name: str
    train: Split
    test: Split
    classes: int
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: str


@dataclass(frozen=True)
class _Official:
    """A set with a published layout: where it is, its usual normalisation and augmentation.

    The constants are those of the whole training split, so that a reduced or partial copy of a set
    is normalised like the whole.
    """

    source: Callable[[Path], Source]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: str


# Embedded sets and how much larger than 8 x 8 they are: some architectures need 32 x 32 at least.
_DIGITS = {"digits": 1, "digits32": 4}

_OFFICIAL = {
    "cifar10": _Official(
        source=cifar10.source,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        augment="crop-flip",
    ),
    "tiny-imagenet": _Official(
        source=tiny_imagenet.source,
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
        augment="crop-flip",
    ),
    "fashion-mnist": _Official(source=fashion_mnist.source, mean=(0.2860,), std=(0.3530,), augment="crop"),
}


def names() -> list[str]:
    """List the data sets that have a name of their own (`folder:PATH` and `hub:NAME` have none)."""
    return [*_DIGITS, *_OFFICIAL]


def load(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    train_limit: int | None = None,
    test_limit: int | None = None,
    classes: int | None = None,
    seed: int = 0,
    size: int | None = None,
) -> Dataset:
    """Load a data set by name, whole or reduced.

    `name` is one of :func:`names`, `folder:PATH` for an image folder or `hub:NAME` for a data set of
    the Hugging Face hub. Official sets are looked for in `data_dir`, or else in the directory that
    `SIGIL_DATA` names.

    Reductions, in this order: `classes` keeps the classes up to this number; `train_limit` and
    `test_limit` keep at most this many images of a split, every class in its proportion, chosen by
    `seed` alone. `size` resizes the images of a folder or hub set to `size` x `size`.
    """
    whole = _whole(name, data_dir=data_dir, size=size)
    if classes is None and train_limit is None and test_limit is None:
        return whole
    kept = whole.classes if classes is None else classes
    if not 2 <= kept <= whole.classes:
        raise DataError(
            f"{kept} classes of '{name}' were asked for, but it has {whole.classes}: choose 2 to "
            f"{whole.classes}."
        )
    return replace(
        whole,
        train=_reduced(whole.train, classes=kept, limit=train_limit, seed=seed, what="train_limit"),
        test=_reduced(whole.test, classes=kept, limit=test_limit, seed=seed, what="test_limit"),
        classes=kept,
    )


def _whole(name: str, *, data_dir: str | os.PathLike[str] | None, size: int | None) -> Dataset:
    """Load a data set without reductions."""
    kind, _, rest = name.partition(":")
    if size is not None and kind not in ("folder", "hub"):
        raise DataError(
            f"A size was given for '{name}', but only folder:PATH and hub:NAME can be resized: leave it out."
        )
    if name in _DIGITS:
        return _digits(name, scale=_DIGITS[name])
    if name in _OFFICIAL:
        official = _OFFICIAL[name]
        directory = data_directory(data_dir, name=name)
        whole = _decoded(name, official.source(directory), roots=cache_roots(directory))
        return replace(whole, mean=official.mean, std=official.std, augment=official.augment)
    if kind == "folder" and rest:
        folder = Path(rest).expanduser()
        return _decoded(name, folders.source(folder, size=size), roots=cache_roots(folder))
    if kind == "hub" and rest:
        beside = data_dir or os.environ.get("SIGIL_DATA")
        roots = cache_roots(Path(beside).expanduser() if beside else None)
        found = hub.source(rest, downloads=roots[0] / "huggingface", size=size)
        return _decoded(name, found, roots=roots)
    near = difflib.get_close_matches(name, names(), n=1)
    guess = f" (did you mean '{near[0]}'?)" if near else ""
    raise DataError(
        f"There is no data set '{name}'{guess}: choose {', '.join(names())}, folder:PATH or hub:NAME."
    )


def _decoded(name: str, source: Source, *, roots: list[Path]) -> Dataset:
    """Open a data set through the cache, with the statistics of its own training images."""
    decoded = cached(source, roots=roots)
    channels, height, width = decoded.train_images.shape[1:]
    return Dataset(
        name=name,
        train=Split(decoded.train_images, decoded.train_labels),
        test=Split(decoded.test_images, decoded.test_labels),
        classes=decoded.classes,
        shape=(channels, height, width),
        mean=decoded.mean,
        std=decoded.std,
        augment="crop-flip",
    )


def _digits(name: str, *, scale: int) -> Dataset:
    train, test = digits.read(scale)
    mean, std = channel_statistics(train[0])
    return Dataset(
        name=name,
        train=Split(*train),
        test=Split(*test),
        classes=digits.CLASSES,
        shape=(1, *train[0].shape[2:]),
        mean=mean,
        std=std,
        augment="none",
    )


def _reduced(split: Split, *, classes: int, limit: int | None, seed: int, what: str) -> Split:
    """Keep the samples of the first `classes` classes, and of these at most `limit`."""
    if limit is not None and limit < 1:
        raise DataError(f"{what} is {limit}, but at least one image is needed: choose 1 or more.")
    kept = np.flatnonzero(split.labels < classes)
    if limit is not None:
        kept = kept[stratified(split.labels[kept], limit, seed=seed)]
    if len(kept) == len(split):
        return split
    if len(kept) == 0:
        raise DataError(f"No image of the first {classes} classes is left in a split: choose more classes.")
    return Split(np.array(split.images[kept]), split.labels[kept])
