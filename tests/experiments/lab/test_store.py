"""Cells and trainings must be found again by later versions."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from sigil.experiments.lab import registry, scales
from sigil.experiments.lab.store import Cell, Store
from sigil.federation.settings import RunSettings, Settings

RESULTS = Path(__file__).parents[3] / "results"


class MoreRunSettings(RunSettings):
    added: int = 3


class MoreSettings(Settings):
    run: MoreRunSettings = Field(default_factory=MoreRunSettings)
    section: RunSettings = Field(default_factory=RunSettings)


def test_a_new_setting_leaves_old_trainings_where_they_are(tmp_path: Path) -> None:
    store = Store("smoke", results=tmp_path, runs=tmp_path)
    settings = scales.get("smoke").settings(seed=3, watermark={"strength": 0.1})
    values = settings.model_dump()
    assert store.folder(MoreSettings.model_validate(values)) == store.folder(settings)
    values["run"]["added"] = 4
    assert store.folder(MoreSettings.model_validate(values)) != store.folder(settings)


def test_every_committed_cell_is_asked_for_by_its_experiment() -> None:
    """The names of cells are their identity: a changed name would leave the committed file behind."""
    store = Store("cpu", results=RESULTS, runs=RESULTS)
    files = {path.relative_to(store.results) for path in store.results.glob("*/*.json")}
    assert len(files) > 500
    cells = [
        cell
        for experiment in registry.EXPERIMENTS.values()
        for cell in experiment.cells(scales.get("cpu"), [0, 1, 2])
    ]
    assert files <= {Path(cell.experiment) / cell.file for cell in cells}


def test_the_seeds_of_which_anything_was_measured(tmp_path: Path) -> None:
    store = Store("smoke", results=tmp_path, runs=tmp_path)
    assert store.seeds("fidelity") == set()
    for seed in (0, 12):
        store.measure(Cell("fidelity", "a", seed, ()), lambda cell, runs, store: {})
    (store.results / "fidelity" / "other.json").write_text("{}")
    assert store.seeds("fidelity") == {0, 12}
