"""Narrow and wide: two trainings that differ in nothing else, and what the page says of gaps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sigil.pages.drawing import markdown
from sigil_reproduction.beyond import width
from sigil_reproduction.runner import scales
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.stealth import OUTLIERS
from sigil_reproduction.runner.store import Result


def measured(numbers: dict[str, dict[str, Any]]) -> Measured:
    cells = width.cells(scales.get("desk"), [0])
    named = {cell.name: cell for cell in cells}
    return Measured(
        cells, {(name, 0): Result(name, 0, named[name].options, row) for name, row in numbers.items()}
    )


def row(accuracy: float, wsr: float, log10_p: float, **more: float) -> dict[str, float]:
    return {
        "accuracy": accuracy,
        "wsr": wsr,
        "log10_p": log10_p,
        "wsr_inputs": wsr,
        "log10_p_inputs": log10_p,
        **more,
    }


def test_the_trainings_differ_in_width_alone() -> None:
    for scale in ("smoke", "cpu", "desk", "paper"):
        cells = width.cells(scales.get(scale), [0])
        trainings = {cell.trainings[0] for cell in cells}
        assert len(trainings) == 2
        alike = {
            each.model_copy(update={"model": each.model.model_copy(update={"width": None})})
            for each in trainings
        }
        assert len(alike) == 1
        assert len({cell.name for cell in cells}) == len(cells) == 2 * len(width.ATTACKS)


def test_the_page_shows_what_an_attack_leaves_and_costs(tmp_path: Path) -> None:
    found = measured(
        {
            "width 16 none": row(70.0, 100.0, -15.0, **{OUTLIERS: 20.0, "dimension": 4096}),
            "width 16 reversal": row(68.5, 56.0, -0.7),
            "width 64 none": row(75.0, 100.0, -15.0, **{OUTLIERS: 9.0, "dimension": 16384}),
        }
    )
    page = markdown(width.show(found, tmp_path))
    lines = {line.split(" | ")[0].strip("| "): line for line in page.splitlines()}
    assert lines["dimensions at the cut"] == "| dimensions at the cut | 4,096 | 16,384 |"
    assert "+1.5" in lines["reversal"]
    assert "not run" in lines["reversal"]
    assert "both for 4 rounds at a rate of at most 0.05:" in page
    assert "fine-tune for 4 epochs at a rate of 0.0001" in page
    embeds, stealth, *attacked = width.verdict(found)
    assert (embeds.agrees, stealth.agrees) == (True, True)
    assert {finding.agrees for finding in attacked} == {None}
