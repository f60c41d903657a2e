"""Attack curves: which points there are, what an attack costs, and what the page says of gaps."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from sigil.pages.drawing import markdown
from sigil_reproduction.beyond import curves
from sigil_reproduction.beyond.thief import READINGS
from sigil_reproduction.paper import table3_fidelity as fidelity
from sigil_reproduction.runner import scales
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.reading import KEYS
from sigil_reproduction.runner.store import Result, Store

SCALE = scales.get("cpu")


def numbers(accuracy: float, noise: float, images: float, origin: float) -> dict[str, Any]:
    return {
        "accuracy": accuracy,
        **{f"wsr{end}": 60.0 for end in READINGS.values()},
        **{"log10_p": noise, "log10_p_inputs": images, "log10_p_origin": origin},
    }


def measured(found: dict[tuple[str, int], dict[str, Any]]) -> Measured:
    cells = curves.cells(SCALE, sorted({seed for _, seed in found} or {0}))
    named = {cell.name: cell for cell in cells}
    return Measured(
        cells,
        {(name, seed): Result(name, seed, named[name].options, row) for (name, seed), row in found.items()},
    )


REVERSED = [f"paper reversal r {r}, 4 epochs" for r in ("0.25", "0.5", "1")]


def test_the_price_is_that_of_the_cheapest_model_without_the_proof() -> None:
    """A stamped key needs 10^-14.3 of the better reading; the second strength leaves -10, for 3 points."""
    found = measured(
        {
            ("paper none", 0): numbers(80.0, -15.0, -15.0, -5000.0),
            (REVERSED[0], 0): numbers(79.0, -2.0, -15.0, -5000.0),
            (REVERSED[1], 0): numbers(77.0, -10.0, -2.0, -5000.0),
            (REVERSED[2], 0): numbers(70.0, -1.0, -1.0, -4000.0),
        }
    )
    assert curves.price(found, "paper", "reversal", "mark") == pytest.approx(3.0)
    assert curves.price(found, "paper", "reversal", "origin") is None
    assert [point.lost for point in curves.curve(found, "paper", "reversal")] == [1.0, 3.0, 10.0]
    page = markdown(_shown(found))
    rows = {line.split(" | ")[0].strip("| "): line for line in page.split("## shares")[0].splitlines()}
    assert rows["reversal"] == "| reversal | +3.0 | still proven | not run | not run |"
    assert rows["reading"].count("not run") == 4
    assert "+3.0" in rows["reversal r 0.5, 4 epochs"]


def _shown(found: Measured) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return curves.show(found, Path(folder))


def test_what_is_done_gently_is_another_point_of_the_same_attack() -> None:
    cells = {cell.name: cell.options for cell in curves.cells(SCALE, [0])}
    assert cells["paper flattening γ 1, 16 epochs, gently"]["rate"] == 1e-4
    assert [
        name for name, options in cells.items() if "rate" in options and not name.endswith("gently")
    ] == []
    found = measured(
        {
            ("paper none", 0): numbers(80.0, -15.0, -15.0, -5000.0),
            ("paper flattening γ 1, 4 epochs", 0): numbers(75.0, -1.0, -1.0, -5000.0),
            ("paper flattening γ 1, 16 epochs, gently", 0): numbers(79.0, -1.0, -8.0, -5000.0),
        }
    )
    assert curves.price(found, "paper", "flattening", "mark") == pytest.approx(1.0)


def test_seeds_are_paired_and_the_weakest_proof_counts() -> None:
    found = measured(
        {
            ("paper none", 0): numbers(80.0, -15.0, -15.0, -5000.0),
            ("paper none", 1): numbers(60.0, -15.0, -15.0, -5000.0),
            (REVERSED[0], 0): numbers(78.0, -15.0, -15.0, -5000.0),
            (REVERSED[0], 1): numbers(56.0, -3.0, -4.0, -5000.0),
            (REVERSED[1], 0): numbers(70.0, -15.0, -15.0, -5000.0),
        }
    )
    first, second = curves.curve(found, "paper", "reversal")
    assert (first.lost, first.mark) == (3.0, -4.0)
    assert second.lost == 10.0  # of the seed that has both


def test_a_mark_that_was_never_proven_is_not_called_removed() -> None:
    found = measured(
        {
            ("paper none", 0): numbers(80.0, -5.0, -5.0, -5000.0),
            (REVERSED[0], 0): numbers(79.0, -2.0, -2.0, -5000.0),
        }
    )
    assert "never proven" in markdown(_shown(found))
    mark, origin, *others = curves.verdict(found)
    assert mark.agrees is None
    assert "not proven before any attack" in mark.text
    assert origin.agrees is True
    assert {finding.agrees for finding in others} == {None}


def test_at_desk_the_attacked_models_are_those_of_the_other_tables(tmp_path: Path) -> None:
    """Trainings take hours there: clean, the paper's mark, shares, and no other for layer3."""
    desk = scales.get("desk")
    store = Store("desk", results=tmp_path, runs=tmp_path)

    def folders(cells: list[Any]) -> set[Path]:
        return {store.folder(settings) for cell in cells for settings in cell.trainings}

    paper = folders([cell for cell in fidelity.cells(desk, [0]) if cell.name == "resnet18 strength 0.1"])
    shares = folders([cell for cell in curves.cells(desk, [0]) if cell.options["scheme"] == "shares"])
    assert len(paper) == len(shares) == 1
    assert folders(curves.cells(desk, [0])) == paper | shares


@pytest.mark.parametrize(
    ("log10_p", "plain", "stamped"), [(-31.3, True, True), (-31.1, False, True), (-14.2, False, False)]
)
def test_proof_is_what_remains_after_the_allowance(log10_p: float, plain: bool, stamped: bool) -> None:
    """3e-7 / (4 · 2^80) is 6.2e-32, and with 2^24 4.5e-15."""
    assert KEYS["plain"].proves(log10_p) is plain
    assert KEYS["stamped"].proves(log10_p) is stamped
