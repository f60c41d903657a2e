from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sigil.data import Batches, Dataset, Split, evaluate_batches
from sigil.data.batches import crop
from sigil.errors import DataError

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (50, 3, 16, 24), dtype=np.uint8)
LABELS = np.arange(50, dtype=np.int64)
SPLIT = Split(IMAGES, LABELS)
DATASET = Dataset("made", SPLIT, SPLIT, 50, (3, 16, 24), MEAN, STD, augment="none")


def batches(count: int = 50, **options: Any) -> Batches:
    settings = {"batch_size": 8, "mean": MEAN, "std": STD} | options
    return Batches(IMAGES, LABELS, np.arange(count), **settings)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normalised(images: np.ndarray) -> torch.Tensor:
    mean, std = (np.array(v).reshape(1, 3, 1, 1) for v in (MEAN, STD))
    return torch.from_numpy((images / 255 - mean) / std).float()


def test_without_augmentation_an_epoch_is_a_shuffle_of_normalised_images() -> None:
    indices = np.array([3, 7, 11, 19, 42])
    own = Batches(IMAGES, LABELS, indices, batch_size=2, mean=MEAN, std=STD)
    epoch = list(own.epoch(seeded(0)))
    labels = torch.cat([labels for _, labels in epoch])
    assert labels.dtype == torch.int64
    assert sorted(labels.tolist()) == indices.tolist()
    for images, chosen in epoch:
        assert images.dtype == torch.float32
        torch.testing.assert_close(images, normalised(IMAGES[chosen]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("augment", ["none", "crop", "crop-flip"])
def test_epoch_follows_bit_for_bit_from_the_state_of_the_generator(augment: str) -> None:
    own = batches(augment=augment)
    generator = seeded(5)
    first = list(own.epoch(generator))
    state = generator.get_state()
    second = list(own.epoch(generator))
    resumed = torch.Generator()
    resumed.set_state(state)
    for (images, labels), (again, again_labels) in zip(
        second, batches(augment=augment).epoch(resumed), strict=True
    ):
        assert torch.equal(images, again)
        assert torch.equal(labels, again_labels)
    assert not torch.equal(first[0][1], second[0][1])


def test_random_numbers_are_drawn_before_the_first_batch_is_asked_for() -> None:
    own = batches(augment="crop-flip")
    generator = seeded(1)
    epoch = own.epoch(generator)
    after = generator.get_state()
    torch.rand(1000, generator=generator)
    disturbed = list(epoch)
    calm = list(own.epoch(seeded(1)))
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(disturbed, calm, strict=True))
    again = seeded(1)
    list(own.epoch(again))
    assert torch.equal(again.get_state(), after)


def test_global_random_state_is_untouched() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    list(batches(augment="crop-flip").epoch(seeded(0)))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002


def placed(image: np.ndarray, top: int, left: int) -> np.ndarray:
    """Crop one image the slow way: margins 2 and 3 for 16 x 24."""
    return np.pad(image, ((0, 0), (2, 2), (3, 3)))[:, top : top + 16, left : left + 24]


def test_crop_takes_each_image_at_its_own_place() -> None:
    top, left = RNG.integers(0, 5, 50), RNG.integers(0, 7, 50)
    found = crop(IMAGES, top=top, left=left)
    expected = [placed(*one) for one in zip(IMAGES, top, left, strict=True)]
    assert np.array_equal(found, np.stack(expected))


@pytest.mark.parametrize("augment", ["crop", "crop-flip"])
def test_augmented_images_are_crops_and_flips_of_their_own_image(augment: str) -> None:
    choices = [(top, left, flip) for top in range(5) for left in range(7) for flip in (1, -1)]
    places, mirrored = set(), 0
    for images, labels in batches(augment=augment).epoch(seeded(0)):
        for image, label in zip(images, labels.tolist(), strict=True):
            pixels = [placed(IMAGES[label][..., ::flip], top, left) for top, left, flip in choices]
            distance = (normalised(np.stack(pixels)) - image).abs().amax(dim=(1, 2, 3))
            (match,) = np.flatnonzero(distance < 1e-4)
            places.add(choices[match][:2])
            mirrored += choices[match][2] == -1
    # 50 draws of 35 places and of two sides.
    assert len(places) > 18
    assert (mirrored == 0) if augment == "crop" else (10 < mirrored < 40)


@pytest.mark.parametrize("side", [8, 28, 32, 64])
def test_margin_is_an_eighth_of_the_side(side: int) -> None:
    image = np.full((1, 1, side, side), 255, dtype=np.uint8)
    corner = crop(image, top=np.array([0]), left=np.array([0]))
    assert int((corner[0, 0, side // 2] == 0).sum()) == side // 8


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(16, [8, 8]), (17, [8, 9]), (18, [8, 8, 2]), (9, [9]), (5, [5]), (2, [2])],
)
def test_single_last_sample_joins_the_batch_before(count: int, sizes: list[int]) -> None:
    own = batches(count)
    assert [len(labels) for _, labels in own.epoch(seeded(0))] == sizes
    assert len(own) == len(sizes)


def test_memory_format_changes_the_layout_and_no_value() -> None:
    plain = next(batches(augment="crop-flip").epoch(seeded(2)))[0]
    last = next(batches(augment="crop-flip", memory_format=torch.channels_last).epoch(seeded(2)))[0]
    assert plain.is_contiguous()
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(plain, last)


def test_source_images_are_not_changed() -> None:
    before = IMAGES.copy()
    for images, _ in batches(augment="crop-flip").epoch(seeded(0)):
        images.zero_()
    assert np.array_equal(IMAGES, before)


def test_read_only_maps_can_be_used(tmp_path: Any) -> None:
    np.save(tmp_path / "images.npy", IMAGES)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    own = Batches(mapped, LABELS, batch_size=8, mean=MEAN, std=STD, augment="crop-flip")
    expected = batches(augment="crop-flip").epoch(seeded(0))
    for (images, _), (wanted, _) in zip(own.epoch(seeded(0)), expected, strict=True):
        assert torch.equal(images, wanted)
    (images, _), *_ = evaluate_batches(Split(mapped, LABELS), DATASET, batch_size=50)
    images.zero_()
    assert np.array_equal(mapped, IMAGES)


def test_evaluation_goes_in_order_over_everything() -> None:
    epoch = list(evaluate_batches(SPLIT, DATASET, batch_size=49))
    assert [len(labels) for _, labels in epoch] == [49, 1]
    assert torch.equal(torch.cat([labels for _, labels in epoch]), torch.arange(50))
    together = torch.cat([images for images, _ in epoch])
    torch.testing.assert_close(together, normalised(IMAGES), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"augment": "rotate"}, "no augmentation 'rotate'"),
        ({"batch_size": 1}, "batch size is 1"),
        ({"count": 1}, "holds 1 samples"),
    ],
)
def test_impossible_batches_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        batches(**options)


def test_impossible_evaluation_is_refused() -> None:
    with pytest.raises(DataError, match="batch size is 0"):
        next(evaluate_batches(SPLIT, DATASET, batch_size=0))
