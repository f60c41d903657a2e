from __future__ import annotations

import numpy as np
import pytest

from sigil.data import statistics
from sigil.data.statistics import channel_statistics


def test_equals_the_statistics_of_all_pixels_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_CHUNK", 7)
    images = np.random.default_rng(0).integers(0, 256, (45, 3, 5, 6), dtype=np.uint8)
    images[:, 2] //= 3
    mean, std = channel_statistics(images)
    scaled = images.astype(np.float64) / 255
    np.testing.assert_allclose(mean, scaled.mean(axis=(0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, scaled.std(axis=(0, 2, 3)), rtol=1e-12)


def test_sums_do_not_overflow_on_bright_images() -> None:
    images = np.full((300, 1, 256, 256), 255, dtype=np.uint8)
    images[::2] = 253
    mean, std = channel_statistics(images)
    assert mean == pytest.approx((254 / 255,))
    assert std == pytest.approx((1 / 255,))


def test_channel_without_contrast_can_be_divided_by() -> None:
    _, std = channel_statistics(np.full((4, 2, 3, 3), 9, dtype=np.uint8))
    assert std == pytest.approx((1 / 255, 1 / 255))
