from __future__ import annotations

from pathlib import Path

from sigil.experiments.lab import scales
from sigil.experiments.lab.experiment import Measured
from sigil.experiments.lab.store import Result, Store
from sigil.experiments.pages.drawing import markdown
from sigil.experiments.paper import figure5_scrutinizer as scrutinizer

SMOKE = scales.get("smoke")


def test_a_cell_has_both_readings_of_the_overlap_and_is_shown(tmp_path: Path) -> None:
    store = Store("smoke", results=tmp_path / "results", runs=tmp_path / "runs")
    cells = scrutinizer.cells(SMOKE, [0])
    cell = next(cell for cell in cells if cell.name == "layer3 honest")
    run = store.train(cell.trainings[0])
    numbers = scrutinizer.measure(cell, [run], store)
    right, published = numbers["gradient-scrutinizer"], numbers["compat"]
    assert right["scores"] == published["scores"] > 0
    # The published overlap is never smaller, so its scores are never higher.
    assert published["mean"] <= right["mean"]
    assert len(right["curves"]["same"]) == len(right["curves"]["step"]) > 0

    # Four batches of at most 16 are not yet 256 samples.
    assert numbers["pooled scrutinizer"]["scores"] == 0
    page = markdown(
        scrutinizer.show(Measured(cells, {(cell.name, 0): Result(cell.name, 0, {}, numbers)}), tmp_path)
    )
    assert f"| no score | **alarm at {right['first_alarm']}**" in page
    assert f"of {right['scores']}, mean {right['mean']:.2f} |" in page
    assert "| layer4, live | FSHA | not run |" in page
    assert (tmp_path / "scrutinizer.png").read_bytes().startswith(b"\x89PNG")


def test_the_papers_claims_are_held_against_the_cells() -> None:
    cells = scrutinizer.cells(SMOKE, [0])
    shares = {"layer4 honest": 0.0, "layer4 strength 0.1": 10.0, "layer3 honest": 90.0}
    results = {
        (name, 0): Result(name, 0, {}, {"pooled scrutinizer": {"suspicious": share, "scores": 12}})
        for name, share in shares.items()
    }
    assert [finding.agrees for finding in scrutinizer.verdict(Measured(cells, results))] == [
        False,
        True,
        None,
    ]
