from __future__ import annotations

from pathlib import Path

import pytest

from sigil.errors import ExperimentError
from sigil.pages.tables import Number
from sigil_reproduction import registry
from sigil_reproduction.runner import scales
from sigil_reproduction.runner.experiment import Finding, Measured, check_claim, listed
from sigil_reproduction.runner.scales import SCALES, PerScale
from sigil_reproduction.runner.store import Cell, Result, Store


def test_a_claim_must_hold_for_every_number() -> None:
    def high(wsr: float) -> bool:
        return wsr >= 95

    assert check_claim("High", {"a": 99.0, "b": 96.0}, high) == Finding("High: 99.0 (a), 96.0 (b).", True)
    assert check_claim("High", {"a": 99.0, "b": 94.0}, high).agrees is False
    assert check_claim("High", {"a": 99.0, "b": None}, high) == Finding("High: 99.0 (a).", True)
    assert check_claim("High", {"a": None, "b": None}, high) == Finding("High: not measured.", None)


def test_findings_as_a_list() -> None:
    found = [Finding("One.", True), Finding("Two.", False), Finding("Three.", None)]
    assert listed([*found, Finding("Four.", None, untestable=True)]).splitlines() == [
        "- agrees: One.",
        "- **differs**: Two.",
        "- not measured: Three.",
        "- cannot be tested here: Four.",
    ]


def test_only_what_was_measured_counts() -> None:
    measured = Measured(
        [Cell("x", name, seed, ()) for name in ("a", "b") for seed in (0, 1, 2)],
        {
            ("a", 1): Result("a", 1, {}, {"wsr": 98.0}),
            ("a", 2): Result("a", 2, {}, {"wsr": 100.0, "accuracy": None}),
            ("b", 0): Result("b", 0, {}, {"wsr": 1.0}),
        },
    )
    assert measured.seed == 0
    assert measured.values("a", "wsr") == [98.0, 100.0]
    assert measured.mean("a", "wsr") == 99.0
    assert measured.mean("a", "accuracy") is None
    assert measured.first("a") is None
    assert measured.first("b") == {"wsr": 1.0}
    assert measured.number("b", "wsr", "WSR", paper=2.0) == Number(1.0, "WSR", paper=2.0)
    assert measured.number("b", "accuracy").text == "not run"


def test_what_an_experiment_chooses_for_a_scale() -> None:
    knob = PerScale(30, cpu=3)
    assert [knob.at(name) for name in ("paper", "cpu", "desk")] == [30, 3, 30]
    assert knob.at(scales.get("cpu")) == 3


@pytest.mark.parametrize("scale", list(SCALES))
def test_every_cell_is_measured_by_an_experiment_that_lists_it(scale: str) -> None:
    """Pages borrow cells; each must be one that its own experiment would measure, with the same trainings."""
    listed: dict[str, dict[tuple[str, int], Cell]] = {}
    borrowed = 0
    for name, experiment in registry.EXPERIMENTS.items():
        for cell in experiment.cells(scales.get(scale), [0]):
            listed.setdefault(cell.experiment, {}).setdefault((cell.name, cell.seed), cell)
            assert listed[cell.experiment][cell.name, cell.seed] == cell
            borrowed += cell.experiment != name
    assert borrowed > 20
    assert set(listed) <= set(registry.EXPERIMENTS)


def test_an_experiment_without_cells_of_its_own_measures_nothing(tmp_path: Path) -> None:
    store = Store("smoke", results=tmp_path, runs=tmp_path)
    with pytest.raises(ExperimentError, match="has none of its own"):
        store.measure(Cell("orthogonality", "a", 0, ()), registry.get("orthogonality").measure)
