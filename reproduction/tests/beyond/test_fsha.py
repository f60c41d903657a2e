from __future__ import annotations

import base64
from pathlib import Path

import numpy as np

from sigil import data
from sigil.pages.drawing import markdown
from sigil_reproduction.beyond import fsha, splitguard
from sigil_reproduction.runner import scales, stealth
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.store import Result, Store


def test_pixels_undo_the_normalisation() -> None:
    dataset = data.load("digits")
    images = dataset.test.images[:5]
    np.testing.assert_array_equal(fsha.pixels(dataset, stealth.normalised(dataset, images)), images)
    bright = stealth.normalised(dataset, images) + 100
    assert fsha.pixels(dataset, bright).min() == 255


def test_the_hijacked_training_is_drawn_with_the_clients_own_images(tmp_path: Path) -> None:
    store = Store("smoke", results=tmp_path / "results", runs=tmp_path / "runs")
    cells = fsha.cells(scales.get("smoke"), [0])
    hijacked = cells[1]
    numbers = fsha.measure(hijacked, [], store)
    assert {"nearest", "error", "pictures", *splitguard.NAMES} < set(numbers)
    pictures = numbers["pictures"]
    shown = np.frombuffer(base64.b64decode(pictures["original"]), np.uint8).reshape(pictures["shape"])
    private = {image.tobytes() for image in np.asarray(data.load("digits").train.images)}
    assert all(image.tobytes() in private for image in shown)
    results = {(hijacked.name, 0): Result(hijacked.name, 0, {}, numbers)}
    page = markdown(fsha.show(Measured(cells, results), tmp_path))
    assert f"{numbers['nearest']:.1f} % of 256 reconstructions" in page
    assert "| honest | not run |" in page
    assert (tmp_path / "fsha.png").read_bytes().startswith(b"\x89PNG")
    assert fsha.verdict(Measured(cells, results))[0].agrees is False  # two steps reconstruct nothing
