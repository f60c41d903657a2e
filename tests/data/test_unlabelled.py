"""Images without labels, from folders and data sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sigil import data
from sigil.errors import DataError


def pictures(folder: Path, count: int) -> None:
    for number in range(count):
        place = folder / f"part{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((6, 4, 3), number, np.uint8)).save(place / f"{number:03}.png")


def test_pictures_of_a_folder_are_resized_and_evenly_chosen(tmp_path: Path) -> None:
    pictures(tmp_path, 9)
    (tmp_path / "notes.txt").write_text("no picture")
    found = data.load_images(tmp_path, shape=(3, 8, 8))
    assert (found.shape, found.dtype) == ((9, 3, 8, 8), torch.uint8)
    # In the order of the paths: the even numbers first.
    assert found[:, 0, 0, 0].tolist() == [0, 2, 4, 6, 8, 1, 3, 5, 7]
    assert data.load_images(str(tmp_path), shape=(1, 8, 8), most=3)[:, 0, 0, 0].tolist() == [0, 8, 7]


def test_a_data_set_gives_its_normalised_test_images() -> None:
    digits = data.load("digits")
    found = data.load_images("digits", most=50)
    assert (found.shape, found.dtype) == ((50, *digits.shape), torch.float32)
    ((everything, _),) = data.evaluate_batches(
        digits.test.images,
        digits.test.labels,
        batch_size=len(digits.test),
        mean=digits.mean,
        std=digits.std,
    )
    torch.testing.assert_close(found[0], everything[0], rtol=0, atol=0)
    torch.testing.assert_close(found[-1], everything[-1], rtol=0, atol=0)


def test_bad_use_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"give the shape"):
        data.load_images(tmp_path)
    with pytest.raises(DataError, match=r"no PNG or JPEG pictures"):
        data.load_images(tmp_path, shape=(3, 8, 8))
    with pytest.raises(DataError, match=r"1 or 3 channels"):
        data.load_images(tmp_path, shape=(2, 8, 8))
    with pytest.raises(DataError, match=r"one is the least"):
        data.load_images("digits", most=0)
    with pytest.raises(DataError, match=r"digits"):
        data.load_images("digitz")
