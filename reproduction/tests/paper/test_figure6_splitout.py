from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sigil.pages.drawing import markdown
from sigil_reproduction.paper import figure6_splitout as splitout
from sigil_reproduction.runner import scales
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.store import Result, Store

SMOKE = scales.get("smoke")


def test_split_points_and_lengths_share_the_default_training() -> None:
    cells = {cell.name: cell for cell in splitout.cells(scales.get("cpu"), [0]) if cell.trainings}
    default = cells["layer3 strength 0.1"].trainings[0]
    assert (default.model.cut, default.watermark.bits) == (None, 50)
    assert {name for name in cells if "bits" in name} == {
        f"{bits} bits" for bits in (128, 160, 256, 500, 1_000, 2_000)
    }
    assert cells["500 bits"].trainings[0].watermark.bits == 500
    assert cells["layer1 strength 0.1"].trainings[0].model.cut == "layer1"


def test_a_cell_has_outliers_lengths_and_the_spread_of_activations(tmp_path: Path) -> None:
    store = Store("smoke", results=tmp_path / "results", runs=tmp_path / "runs")
    cell = splitout.cells(SMOKE, [0])[0]
    run = store.train(cell.trainings[0])
    numbers = splitout.measure(cell, [run], store)
    found = numbers["splitout"]
    assert numbers["outliers_256"] == pytest.approx(256 * found["outliers"] / 100)
    assert len(numbers["lengths"]) == len(found["curves"]["score"]) == 4
    assert min(numbers["lengths"]) > 0
    assert numbers["activation_spread"] > 0


def result(name: str, share: float) -> tuple[tuple[str, int], Result]:
    found: dict[str, Any] = {
        "outliers": share,
        "highest": 2 * share / 100,
        "suspicious": 0.0,
        "alarm": False,
        "first_alarm": None,
        "curves": {"scored_step": [1, 2], "score": [0.0, share / 100]},
    }
    numbers = {
        "splitout": found,
        "splitout by batch": found | {"score": 0.0, "scores": 2},
        "outliers_256": 2.56 * share,
        "lengths": [1.0, 2.0],
        "activation_spread": 0.5,
    }
    return (name, 0), Result(name, 0, {}, numbers)


def test_the_tables_have_the_papers_numbers_beside(tmp_path: Path) -> None:
    cells = splitout.cells(scales.get("cpu"), [0])
    results = dict(
        [
            result("layer3 honest", 5.0),
            result("layer3 strength 0.1", 10.0),
            result("500 bits", 20.0),
            result("layer1 strength 0.1", 2.0),
        ]
    )
    page = markdown(splitout.show(Measured(cells, results), tmp_path))
    assert "| layer3 | λ = 0.1 | no | 25.6 | 51 | 0.0 % | 0.50 | no alarm, 0 % suspicious" in page
    assert "| layer1 | 5.1 (16.7) | no | 0.50 |" in page
    assert "| 500 | 51.2 (37.4) | no | 0.50 |" in page
    assert "| 128 | not run | not run | not run |" in page
    assert "| layer3, live | FSHA | not run |" in page
    # Ablations have tables of their own.
    assert "| layer1 | λ = 0.1 |" not in page
    findings = {claim.text: claim.held(Measured(cells, results)).finding.agrees for claim in splitout.CLAIMS}
    assert findings["SplitOut at layer3 counts at most 15 for an honest server"] is True
    assert (
        findings["SplitOut at layer3 counts as few outliers as for an honest server (≤ 15 in 256)"] is False
    )
    assert findings["SplitOut at layer3 counts more for λ = 1"] is None
