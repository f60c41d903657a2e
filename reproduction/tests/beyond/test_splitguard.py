"""The live trainings at smoke scale, and how they are shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from sigil.federation.settings import Settings
from sigil.pages.drawing import markdown
from sigil.pages.tables import Words
from sigil_reproduction.beyond import fsha, splitguard
from sigil_reproduction.paper import figure5_scrutinizer as scrutinizer
from sigil_reproduction.paper import figure6_splitout as splitout
from sigil_reproduction.runner import scales, stealth
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.store import Cell, Result, Store

SMOKE = scales.get("smoke")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("splitguard")
    return Store("smoke", results=folder / "results", runs=folder / "runs")


def cell(server: str) -> Cell:
    (found,) = (
        cell for cell in splitguard.cells(SMOKE, [0]) if cell.name == splitguard.name_of("layer3", server)
    )
    return found


def test_a_hijacked_training_is_measured_by_all_detectors_and_says_what_it_sees(store: Store) -> None:
    numbers = splitguard.measure(cell("FSHA"), [], store)
    assert set(splitguard.NAMES) < set(numbers)
    assert numbers["chance"] == 100 / 20  # the client's images
    assert "nearest" not in splitguard.measure(cell("honest"), [], store)


def test_live_trainings_have_fewer_clients_but_not_fewer_images_each() -> None:
    def settings(scale: str) -> Settings:
        live = splitguard.cells(scales.get(scale), [0])[0].live
        assert live is not None
        return live

    def noise(scale: str) -> Settings:
        return scales.get(scale).settings(seed=0, variation=True, watermark={"strength": 0.0})

    small, usual = settings("cpu"), noise("cpu")
    assert small.data.train_limit is not None
    assert usual.data.train_limit is not None
    assert small.federation.clients == 2 < usual.federation.clients
    assert small.data.train_limit / 2 == usual.data.train_limit / usual.federation.clients
    assert small.federation.rounds == usual.federation.rounds
    assert settings("paper") == noise("paper")


def test_live_and_recorded_cells_have_names_of_their_own() -> None:
    for module in (scrutinizer, splitout):
        names = [(cell.name, cell.seed) for cell in module.EXPERIMENT.cells(scales.get("cpu"), [0])]
        assert len(names) == len(set(names))


def verdicts(score: float | None, **changes: object) -> dict[str, object]:
    found: dict[str, object] = {
        "score": score,
        "mean": score,
        "highest": score,
        "lowest": score,
        "alarm": False,
        "first_alarm": None,
        "suspicious": 0.0,
        "scores": 3,
        "outliers": 1.0,
        "curves": {"scored_step": [1, 2], "score": [0.5, 0.6]},
    }
    return found | changes


def test_the_table_says_alarms_their_step_and_what_is_missing(tmp_path: Path) -> None:
    caught = verdicts(0.2, alarm=True, first_alarm=130, suspicious=80.0)
    numbers = dict.fromkeys(splitguard.NAMES, caught) | {"nearest": 1.2, "chance": 0.4, "error": 1.5}
    name = splitguard.name_of("layer3", "FSHA")
    results = {(name, 0): Result(name, 0, {}, numbers)}
    cells = splitguard.cells(SMOKE, [0])
    page = markdown(splitguard.show(Measured(cells, results), tmp_path))
    assert "| layer3 | FSHA | **alarm at 130**, 80 % suspicious, last 0.20 |" in page
    assert "1.2 % (chance 0.4 %), error 1.50" in page
    assert "| layer4 | honest | not run |" in page
    findings = splitguard.verdict(Measured(cells, results))
    assert [finding.agrees for finding in findings] == [None, True, None]
    assert stealth.said({"splitguard": verdicts(None)}, "splitguard") == Words("no score")


def test_the_digits_training_is_the_same_for_both_servers_and_uses_adam() -> None:
    for scale in ("cpu", "paper"):
        one, other = (cell.live for cell in fsha.cells(scales.get(scale), [0]))
        assert one is not None
        assert one == other
        assert one.optimizer.name == "adam"
