from __future__ import annotations

import shutil
from pathlib import Path

from sigil.pages.drawing import markdown
from sigil_reproduction.paper import figure5_scrutinizer as scrutinizer
from sigil_reproduction.runner import scales
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.store import Cell, Result, Store

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


def test_of_a_sparse_recording_the_whole_rounds_and_the_share_are_read_apart(tmp_path: Path) -> None:
    store = Store("smoke", results=tmp_path / "results", runs=tmp_path / "runs")
    cells = scrutinizer.cells(SMOKE, [0])
    (name,) = {cell.name for cell in cells if cell.name == "layer3 honest"}
    pages, read = [], []
    for whole in (0, 1):
        settings = SMOKE.settings(
            seed=0,
            data={"train_limit": 320},
            federation={"clients": 2, "batch_size": 8},
            watermark={"strength": 0.0},
            record={"clients": [0], "share": 0.5, "whole_rounds": whole},
        )
        cell = Cell("scrutinizer", name, 0, (settings,), {"setting": "layer3", "server": "honest"})
        numbers = scrutinizer.measure(cell, [store.train(settings)], store)
        read.append(numbers)
        results = {(name, 0): Result(name, 0, {}, numbers)}
        pages.append(markdown(scrutinizer.show(Measured(cells, results), tmp_path)))
        shutil.rmtree(store.folder(settings))
    without, with_rounds = read
    assert set(without) == {"sparse"}
    assert set(with_rounds) == {"sparse", "pooled scrutinizer", "gradient-scrutinizer", "compat"}
    # One round of 20 batches, and half of both rounds' batches.
    assert with_rounds["gradient-scrutinizer"]["steps"] == with_rounds["sparse"]["steps"] == 20
    assert with_rounds["sparse"]["score"] == without["sparse"]["score"]
    assert with_rounds["sparse"]["score"] != with_rounds["gradient-scrutinizer"]["score"]
    assert all("| whole training |" in page for page in pages)


def test_the_papers_claims_are_held_against_the_cells() -> None:
    cells = scrutinizer.cells(SMOKE, [0])
    shares = {"layer4 honest": 0.0, "layer4 strength 0.1": 10.0, "layer3 honest": 90.0}
    results = {
        (name, 0): Result(name, 0, {}, {"pooled scrutinizer": {"suspicious": share, "scores": 12}})
        for name, share in shares.items()
    }
    found = [claim.held(Measured(cells, results)).finding for claim in scrutinizer.CLAIMS]
    assert [finding.agrees for finding in found[:4]] == [False, True, True, None]
    # A training too short for a score shows nothing.
    silent = {"pooled scrutinizer": {"suspicious": 0.0, "scores": 0}}
    results["layer4 honest", 0] = Result("layer4 honest", 0, {}, silent)
    assert scrutinizer.CLAIMS[1].held(Measured(cells, results)).finding.agrees is None


def test_an_alarm_later_in_the_training_counts_too() -> None:
    cells = scrutinizer.cells(SMOKE, [0])

    def found(pooled: float, sparse: float) -> dict[str, dict[str, float]]:
        return {
            "pooled scrutinizer": {"suspicious": pooled, "scores": 9},
            "sparse": {"suspicious": sparse, "scores": 2},
        }

    results = {
        (name, 0): Result(name, 0, {}, found(*shares))
        for name, shares in {
            "layer4 honest": (0.0, 0.0),
            "layer4 strength 0.1": (0.0, 0.0),
            "layer3 honest": (0.0, 100.0),
        }.items()
    }
    findings = [claim.held(Measured(cells, results)).finding for claim in scrutinizer.CLAIMS]
    assert [finding.agrees for finding in findings[:4]] == [True, True, True, None]
    assert "100.0 % of scores" in findings[2].text
