"""Both schemes after every attack: what counts as proof, what is shared, and what a page says of gaps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sigil.pages.drawing import markdown
from sigil_reproduction.beyond import proof, schemes
from sigil_reproduction.runner import scales
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.store import Result, Store

SCALE = scales.get("cpu")


def measured(numbers: dict[str, dict[str, Any]]) -> Measured:
    cells = schemes.cells(SCALE, [0])
    results = {
        (cell.name, 0): Result(cell.name, 0, cell.options, numbers[cell.name])
        for cell in cells
        if cell.name in numbers
    }
    return Measured(cells, results)


def row(noise: float, inputs: float | None, origin: float) -> dict[str, Any]:
    found = {"accuracy": 40.0, "wsr": 90.0, "log10_p": noise, "wsr_origin": 80.0, "log10_p_origin": origin}
    return found if inputs is None else found | {"wsr_inputs": 95.0, "log10_p_inputs": inputs}


@pytest.mark.parametrize(
    ("log10_p", "plain", "stamped"), [(-31.3, True, True), (-31.1, False, True), (-14.2, False, False)]
)
def test_proof_is_what_remains_after_the_allowance(log10_p: float, plain: bool, stamped: bool) -> None:
    """3e-7 / (4 · 2^80) is 6.2e-32, and with 2^24 4.5e-15."""
    assert schemes.proven(log10_p, schemes.KEYS["plain"]) is plain
    assert schemes.proven(log10_p, schemes.KEYS["stamped"]) is stamped


def test_the_better_reading_of_the_mark_and_the_origin_are_judged_apart() -> None:
    page = markdown(
        schemes.show(
            measured(
                {
                    "paper none": row(-38.5, -38.5, -5000.0),
                    "paper reversal": row(-0.5, -0.4, -5000.0),
                    "shares none": row(-20.0, -36.0, -5000.0),
                    "shares pruning 80 %": row(-20.0, None, -0.2),
                }
            ),
            Path(),
        )
    )
    lines = {line.split(" | ")[0].strip("| "): line for line in page.split("## shares")[0].splitlines()}
    assert lines["none"].count("1 of 1") == 3
    assert lines["reversal"].count("0 of 1") == 2
    assert lines["reversal"].count("1 of 1") == 1
    assert "not run" in lines["reading"]
    shares = {line.split(" | ")[0].strip("| "): line for line in page.split("## shares")[1].splitlines()}
    assert shares["none"].count("1 of 1") == 3
    pruned = shares["pruning 80 %"]
    assert "too few images" in pruned
    assert (pruned.count("0 of 1"), pruned.count("1 of 1")) == (2, 1)


def test_what_was_not_measured_is_not_judged() -> None:
    assert {finding.agrees for finding in schemes.verdict(measured({}))} == {None}
    found = schemes.verdict(measured({"shares reversal": row(-23.0, -24.0, -5000.0)}))
    assert [
        one.agrees for one in found if "shares a stamped key's mark is proven after reversal" in one.text
    ] == [True]


def test_the_papers_models_are_those_of_the_lengths_that_may_be_proof(tmp_path: Path) -> None:
    store = Store("cpu", results=tmp_path, runs=tmp_path)
    mine = {
        store.folder(cell.trainings[0])
        for cell in schemes.cells(SCALE, [0])
        if cell.options == {"scheme": "paper", "attack": "reversal"}
    }
    theirs = {store.folder(cell.trainings[0]) for cell in proof.cells(SCALE, [0]) if "128 bits" in cell.name}
    assert mine <= theirs
    # Two schemes, each with a training and one with noise.
    assert len({store.folder(cell.trainings[0]) for cell in schemes.cells(SCALE, [0])}) == 4
