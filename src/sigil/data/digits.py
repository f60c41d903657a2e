"""The 8 x 8 handwritten digits that come with scikit-learn: no file, no download."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sigil import extras
from sigil.data.subsets import stratified

CLASSES = 10
SHAPE = (1, 8, 8)
# The split never changes, whatever the seed of a run: test images stay unseen.
_SPLIT_SEED = 0
_TEST_SHARE = 0.2


def read(
    scale: int = 1,
) -> tuple[
    tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]],
    tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]],
]:
    """Give (images, labels) of the training split and of the test split, 1,438 and 359 samples.

    Images are uint8 (n, 1, 8·scale, 8·scale), the original grey levels 0..16 scaled to 0..255, each
    pixel repeated to a square of side `scale`. Every class is divided four to one.
    """
    extras.need("train", "sklearn")
    pixels, labels = _whole()
    pixels = pixels.repeat(scale, axis=2).repeat(scale, axis=3)
    chosen = stratified(labels, round(_TEST_SHARE * len(labels)), seed=_SPLIT_SEED)
    is_test = np.zeros(len(labels), dtype=bool)
    is_test[chosen] = True
    return (pixels[~is_test], labels[~is_test]), (pixels[is_test], labels[is_test])


@functools.cache
def _whole() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """All images and labels; read once, as scikit-learn keeps them as compressed text."""
    rows = _rows()
    pixels = np.rint(rows[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)[:, None]
    return pixels, rows[:, -1].astype(np.int64)


def _rows() -> npt.NDArray[np.float64]:
    """(1797, 65): pixels and label of each digit.

    scikit-learn's own file is read without scikit-learn, whose import takes longer than most of what is done
    with the digits; where a release has moved the file, its function is asked.
    """
    found = importlib.util.find_spec("sklearn")
    for folder in (found and found.submodule_search_locations) or ():
        file = Path(folder, "datasets", "data", "digits.csv.gz")
        if file.is_file():
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])
