"""The data sets by name, whole or reduced."""

from __future__ import annotations

import difflib
import functools
import importlib.util
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sigil import extras
from sigil.data import hub
from sigil.data.cache import Dataset, Split, cache_roots, cached, channel_statistics, data_directory
from sigil.data.official import OFFICIAL
from sigil.data.partitions import stratified
from sigil.errors import DataError

# Embedded sets and how much larger than 8 x 8 they are: some architectures need 32 x 32 at least.
_DIGITS = {"digits": 1, "digits32": 4}


def names() -> list[str]:
    """List the data sets that have a name of their own (`folder:PATH` and `hub:NAME` have none)."""
    return [*_DIGITS, *OFFICIAL]


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
        return digits(name)
    if name in OFFICIAL:
        official = OFFICIAL[name]
        directory = data_directory(data_dir, name=name)
        dataset = cached(official.source(directory), roots=cache_roots(directory))
        return replace(dataset, mean=official.mean, std=official.std, augment=official.augment)
    if kind in ("folder", "hub") and rest:
        beside = rest if kind == "folder" else data_dir or os.environ.get("SIGIL_DATA")
        roots = cache_roots(Path(beside).expanduser() if beside else None)
        source = hub.source(rest, downloads=roots[0] / "huggingface", size=size, folder=kind == "folder")
        return replace(cached(source, roots=roots), name=name)
    near = difflib.get_close_matches(name, names(), n=1)
    guess = f" (did you mean '{near[0]}'?)" if near else ""
    raise DataError(
        f"There is no data set '{name}'{guess}: choose {', '.join(names())}, folder:PATH or hub:NAME."
    )


def digits(name: str = "digits") -> Dataset:
    """The handwritten digits that come with scikit-learn, 1,438 to train and 359 to test; no download.

    The original grey levels 0..16 are scaled to 0..255, and each pixel is repeated to a square, whose side
    depends on the `name`. Every class is divided four to one, in the same way whatever the seed of a run:
    test images stay unseen.
    """
    extras.need("train", "sklearn")
    rows, scale = _digit_rows(), _DIGITS[name]
    pixels = np.rint(rows[:, :-1].reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    pixels = pixels.repeat(scale, axis=2).repeat(scale, axis=3)
    labels = rows[:, -1].astype(np.int64)
    is_test = np.zeros(len(labels), dtype=bool)
    is_test[stratified(labels, round(0.2 * len(labels)), seed=0)] = True
    train, test = (Split(pixels[chosen], labels[chosen]) for chosen in (~is_test, is_test))
    mean, std = channel_statistics(train.images)
    return Dataset(name, train, test, 10, (1, 8 * scale, 8 * scale), mean, std, augment="none")


@functools.cache
def _digit_rows() -> npt.NDArray[np.float64]:
    """(1797, 65): pixels and label of each digit.

    scikit-learn's own file is read without scikit-learn, whose import takes longer than most of what is done
    with the digits; where a release has moved the file, its function is asked.
    """
    spec = importlib.util.find_spec("sklearn")
    for folder in (spec and spec.submodule_search_locations) or ():
        file = Path(folder, "datasets", "data", "digits.csv.gz")
        if file.is_file():
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])


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
