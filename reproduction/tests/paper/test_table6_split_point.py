"""The ablation on the cut: all of the paper's columns, and no cell or training twice."""

from __future__ import annotations

from pathlib import Path

from sigil.pages.drawing import markdown
from sigil_reproduction.paper import figure6_splitout as splitout
from sigil_reproduction.paper import figure7_noise as noise
from sigil_reproduction.paper import table5_adaptive as adaptive
from sigil_reproduction.paper import table6_split_point as split_point
from sigil_reproduction.paper.ablations import NOISE, SPLITOUT
from sigil_reproduction.runner import scales
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.stealth import OUTLIERS
from sigil_reproduction.runner.store import Result

SCALE = scales.get("cpu")


def test_every_column_of_the_paper_at_every_cut() -> None:
    cells = split_point.cells(SCALE, [0])
    assert len(cells) == len({(cell.experiment, cell.file) for cell in cells}) == 4 * 10
    text = markdown(split_point.show(Measured(cells, {}), Path()))
    (header, _, *rows) = text.splitlines()[:6]
    assert header.count("|") == 12
    assert len(rows) == 4
    # Every place has the paper's numbers: nine pairs and one count.
    assert all(row.count("(") == 19 for row in rows)


def test_cells_of_other_tables_are_theirs() -> None:
    cells = split_point.cells(SCALE, [0])
    others = [cell for cell in cells if cell.experiment != "split-point"]
    known = [*adaptive.cells(SCALE, [0]), *splitout.cells(SCALE, [0])]
    assert len(others) == 8
    assert all(cell in known for cell in others)


def test_noise_at_the_default_cut_is_the_noise_figures_training() -> None:
    (cell,) = [cell for cell in split_point.cells(SCALE, [0]) if cell.name == f"layer3 {NOISE}"]
    trainings = [each.trainings for each in noise.cells(SCALE, [0])]
    assert cell.trainings in trainings


def test_depth_is_judged_by_the_ends() -> None:
    cells = split_point.cells(SCALE, [0])

    def results(first: float, last: float) -> dict[tuple[str, int], Result]:
        found = {("layer1", first), ("layer4", last)}
        return {
            (name, 0): Result(name, 0, {}, {OUTLIERS: number})
            for cut, number in found
            for name in [split_point.name_of(cut, SPLITOUT)]
        }

    def agrees(found: dict[tuple[str, int], Result]) -> bool | None:
        return next(
            each.held(Measured(cells, found)).finding.agrees
            for each in split_point.CLAIMS
            if "fewer outliers" in each.text
        )

    assert agrees(results(16.7, 0.0)) is True
    assert agrees(results(1.0, 2.0)) is False
    assert agrees({}) is None


def test_a_training_of_its_own_for_each_cut() -> None:
    trainings = {
        cell.options["cut"]: cell.trainings[0]
        for cell in split_point.cells(SCALE, [0])
        if cell.options.get("column") == "none"
    }
    assert {cut: settings.model.cut for cut, settings in trainings.items()} == {
        "layer1": "layer1",
        "layer2": "layer2",
        "layer3": None,
        "layer4": "layer4",
    }
    assert all(settings.record.clients == (0,) for settings in trainings.values())
