"""The ablation on the length: all of the paper's columns, and no cell or training twice."""

from __future__ import annotations

from pathlib import Path

from sigil.pages.drawing import markdown
from sigil_reproduction.beyond import proof
from sigil_reproduction.paper import figure6_splitout as splitout
from sigil_reproduction.paper import table7_length as length
from sigil_reproduction.paper.ablations import SPLITOUT
from sigil_reproduction.runner import scales
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.scales import LENGTHS, PROOF
from sigil_reproduction.runner.store import Result

SCALE = scales.get("cpu")


def test_every_column_of_the_paper_at_every_length() -> None:
    cells = length.cells(SCALE, [0])
    assert len(cells) == len({(cell.experiment, cell.file) for cell in cells}) == 9 * len(LENGTHS.at(SCALE))
    rows = markdown(length.show(Measured(cells, {}), Path())).splitlines()[2:-2]
    assert [row.split("|")[1].strip() for row in rows] == [f"k = {bits}" for bits in LENGTHS.at(SCALE)]
    assert all(row.count("(") == 17 for row in rows)


def test_one_training_a_length() -> None:
    cells = length.cells(SCALE, [0])
    trainings = {cell.trainings for cell in cells}
    assert len(trainings) == len(LENGTHS.at(SCALE))
    assert {settings.watermark.bits for (settings,) in trainings} == set(LENGTHS.at(SCALE))


def test_cells_of_other_tables_are_theirs() -> None:
    known = [*proof.cells(SCALE, [0]), *splitout.cells(SCALE, [0])]
    for cell in length.cells(SCALE, [0]):
        if cell.experiment == "splitout" or (
            cell.experiment == "proof" and cell.options["bits"] in PROOF.at(SCALE)
        ):
            assert cell in known


def test_only_measured_lengths_are_compared() -> None:
    cells = length.cells(SCALE, [0])

    def results(*accuracies: tuple[int, float]) -> dict[tuple[str, int], Result]:
        return {
            (length.name_of(bits, "none"), 0): Result("", 0, {}, {"accuracy": accuracy, "wsr": 100.0})
            for bits, accuracy in accuracies
        }

    def cost(found: dict[tuple[str, int], Result]) -> tuple[str, bool | None]:
        finding = length.verdict(Measured(cells, found))[1]
        return finding.text, finding.agrees

    assert cost(results((50, 40.0)))[1] is None
    text, agrees = cost(results((50, 40.0), (500, 39.0)))
    assert "-1.0 (k = 500 less k = 50)" in text
    assert agrees is True
    assert cost(results((50, 40.0), (500, 39.0), (2000, 30.0)))[1] is False


def test_the_detectors_column_has_its_own_name() -> None:
    assert length.name_of(50, SPLITOUT) == "layer3 strength 0.1"
    assert length.name_of(500, SPLITOUT) == "500 bits"
