"""Real inputs: from wherever they lie, in a fixed order, with one sentence for everything that is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from sigil.data import Inputs, open_inputs
from sigil.data.inputs import parse_normalisation
from sigil.errors import DataError

SHAPE = (3, 4, 4)
MOMENTS = ((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))


def pixels(count: int = 300) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, *SHAPE), dtype=np.uint8)


def test_images_are_scaled_and_normalised() -> None:
    images = pixels()
    (batch,) = Inputs(images, normalisation=MOMENTS).batches([5, 2], 8)
    mean, std = (torch.tensor(part).view(3, 1, 1) for part in MOMENTS)
    assert torch.allclose(batch, (torch.from_numpy(images[[5, 2]]).float() / 255 - mean) / std, atol=1e-6)


def test_floating_point_inputs_are_taken_as_they_are() -> None:
    values = torch.randn(300, *SHAPE)
    assert torch.equal(torch.cat(list(Inputs(values).batches(range(300), 64))), values)


def test_what_a_key_states_normalises_images_and_nothing_else() -> None:
    images, other = pixels(), ((0.0,) * 3, (1.0,) * 3)
    floats = torch.randn(300, *SHAPE)
    assert Inputs(images).normalised(None, otherwise=MOMENTS).normalisation == MOMENTS
    assert Inputs(images, normalisation=other).normalised(None, otherwise=MOMENTS).normalisation == MOMENTS
    assert Inputs(images, normalisation=other).normalised(MOMENTS).normalisation == MOMENTS
    # Floating-point inputs are as the model takes them: they would be normalised twice.
    assert Inputs(floats).normalised(None, otherwise=MOMENTS).normalisation is None
    same = Inputs(images).normalised(MOMENTS)
    assert same.digest == Inputs(images).digest


def test_every_way_to_give_the_same_inputs_has_the_same_digest(tmp_path: Path) -> None:
    images = pixels()
    np.save(tmp_path / "images.npy", images)
    save_file({"images": images}, tmp_path / "images.safetensors")
    digests = {
        open_inputs(source, shape=SHAPE).digest
        for source in (
            images,
            torch.from_numpy(images),
            tmp_path / "images.npy",
            str(tmp_path / "images.safetensors"),
        )
    }
    assert len(digests) == 1
    assert digests != {Inputs(images[::-1]).digest}
    assert digests != {Inputs(images.astype(np.float32)).digest}


def test_a_folder_of_pictures_in_the_order_of_its_paths(tmp_path: Path) -> None:
    for number in range(256):
        folder = tmp_path / f"class{number % 3}"
        folder.mkdir(exist_ok=True)
        Image.new("L", (9, 9), number).save(folder / f"{number:03}.png")
    inputs = open_inputs(tmp_path, shape=(1, 4, 4))
    (batch,) = inputs.normalised(((0.0,), (1 / 255,))).batches(range(3), 3)
    assert batch[:, 0, 0, 0].round().tolist() == [0, 3, 6]


def test_a_data_set_by_name_and_split() -> None:
    test, train = open_inputs("digits"), open_inputs("digits:train")
    assert len(train) > len(test) >= 256
    assert test.normalisation is not None
    assert test.digest != train.digest


def test_a_file_larger_than_the_memory_is_not_read_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "huge.npy"
    header = np.lib.format.header_data_from_array_1_0(np.empty(0, np.uint8))
    header["shape"] = (200_000, 3, 200, 200)
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + 200_000 * 120_000)  # 24 GB of nothing
    inputs = open_inputs(path).normalised(((0.0,) * 3, (1.0,) * 3))
    (batch,) = inputs.batches([0, 199_999], 2)
    assert batch.shape == (2, 3, 200, 200)


def test_a_safetensors_file_larger_than_the_memory_is_not_read_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "huge.safetensors"
    shape, size = [200_000, 3, 200, 200], 200_000 * 120_000
    header = json.dumps({"images": {"dtype": "U8", "shape": shape, "data_offsets": [0, size]}}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)  # 24 GB of nothing
    inputs = open_inputs(path).normalised(((0.0,) * 3, (1.0,) * 3))
    (batch,) = inputs.batches([0, 199_999], 2)
    assert batch.shape == (2, 3, 200, 200)


def test_a_pipe_among_the_pictures_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(DataError, match="no PNG or JPEG"):
        open_inputs(tmp_path, shape=SHAPE)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: folder, "no PNG or JPEG"),
        (lambda folder: pixels(255), "at least 256"),
        (lambda folder: pixels()[:, :1], "the model takes"),
        (lambda folder: np.arange(300), "labels"),
        (lambda folder: pixels().astype(np.int64), "labels"),
        (lambda folder: pixels()[:, 0, 0, 0], "number, *shape"),
        (lambda folder: np.empty((0, *SHAPE), np.uint8), "number, *shape"),
        (lambda folder: folder / "text.npy", "cannot be read as an array"),
        (lambda folder: folder / "two.safetensors", "leave labels"),
        (lambda folder: folder / "pickled.npy", "cannot be read as an array"),
        (lambda folder: folder / "half.safetensors", "16, 32 or 64 bits"),
        (lambda folder: folder / "images.txt", "not a folder of pictures"),
        (lambda folder: "digits:validation", "splits train and test"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, make: object, words: str) -> None:
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "images.txt").write_text("no array")
    np.save(tmp_path / "pickled.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    save_file({"images": pixels(), "labels": np.zeros(300, np.float32)}, tmp_path / "two.safetensors")
    save_torch({"images": torch.zeros(300, *SHAPE, dtype=torch.bfloat16)}, tmp_path / "half.safetensors")
    with pytest.raises(DataError) as info:
        open_inputs(make(tmp_path), shape=SHAPE)  # type: ignore[operator]
    assert words in str(info.value)
    assert "\n" not in str(info.value)


def test_values_that_are_not_finite_and_missing_normalisation() -> None:
    broken = torch.randn(300, *SHAPE)
    broken[7, 0, 0, 0] = torch.nan
    with pytest.raises(DataError, match="not finite"):
        list(Inputs(broken).batches(range(300), 64))
    with pytest.raises(DataError, match="normalised"):
        list(Inputs(pixels()).batches(range(4), 4))
    with pytest.raises(DataError, match="per channel"):
        Inputs(pixels(), normalisation=((0.5,), (0.5,)))
    with pytest.raises(DataError, match="above 0"):
        Inputs(pixels(), normalisation=((0.5,) * 3, (0.5, 0.0, 0.5)))


def test_the_spelling_of_a_statement_is_understood() -> None:
    assert parse_normalisation("0.5,0.4/0.2,0.25") == ([0.5, 0.4], [0.2, 0.25])
    assert parse_normalisation(None) is None
