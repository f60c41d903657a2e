from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sigil.data import digits


def load_digits() -> Any:
    """What scikit-learn gives; imported here, as every worker that collects the tests would wait for it."""
    from sklearn import datasets

    return datasets.load_digits()


def test_split_is_four_to_one_in_every_class_and_complete() -> None:
    (train_images, train_labels), (test_images, test_labels) = digits.read()
    assert train_images.shape == (1438, 1, 8, 8)
    assert test_images.shape == (359, 1, 8, 8)
    assert train_images.dtype == np.uint8
    shares = np.bincount(test_labels) / (np.bincount(test_labels) + np.bincount(train_labels))
    assert np.all(np.abs(shares - 0.2) < 0.01)
    original = load_digits().images.reshape(1797, 64) * 255 / 16
    both = np.concatenate([train_images, test_images]).reshape(1797, 64)
    for found, expected in zip(np.unique(both, axis=0), np.unique(original, axis=0), strict=True):
        assert np.all(np.abs(found - expected) <= 0.5)


def test_split_never_changes() -> None:
    first, second = digits.read(), digits.read()
    assert np.array_equal(first[1][0], second[1][0])
    assert np.array_equal(first[0][1], second[0][1])


def test_the_file_is_what_scikit_learn_gives_and_it_is_asked_where_the_file_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    direct = digits._rows()
    expected = load_digits()
    assert np.array_equal(direct, np.column_stack([expected.data, expected.target]))
    asked = []
    monkeypatch.setattr(Path, "is_file", lambda path: asked.append(path.name))
    assert np.array_equal(digits._rows(), direct)
    assert asked == ["digits.csv.gz"]
