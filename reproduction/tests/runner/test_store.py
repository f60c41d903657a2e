"""Cells and trainings must be found again by later versions."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import Field

from sigil.federation.settings import RunSettings, Settings
from sigil_reproduction import registry
from sigil_reproduction.runner import costs, scales
from sigil_reproduction.runner.store import KEY, MODEL, Cell, Store

RESULTS = Path(__file__).parents[2] / "results"


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


def test_the_scheme_of_the_paper_leaves_old_trainings_where_they_are(tmp_path: Path) -> None:
    """Names from before there were schemes: sha256 of [DEFAULTS, what differed from the defaults then].

    New trainings have other keys, which their names say.
    """
    store = Store("smoke", results=tmp_path, runs=tmp_path)
    smoke = scales.get("smoke")
    for mark in ({}, {"strength": 0.1}, {"strength": 0.01}):
        settings = smoke.settings(seed=3, watermark=mark)
        assert (settings.watermark.scheme, settings.watermark.strength) == (
            "paper",
            mark.get("strength", 0.1),
        )
        watermark = {"bits": 50, "probes": 16, "statistics_every": 1}
        if mark.get("strength", 0.1) != 0.1:
            watermark |= mark
        changed = {
            "data": {"train_limit": 80, "test_limit": 40},
            "federation": {"clients": 4, "rounds": 2, "local_epochs": 1, "batch_size": 16},
            "model": {"width": 8},
            "optimizer": {"lr": 0.05, "warmup_rounds": 0},
            "run": {"precision": "float32", "seed": 3, "threads": 1, "workers": 1},
            "watermark": watermark,
        }
        for early, kind in ((True, []), (False, ["stated key"])):
            text = json.dumps([2, changed, *kind], sort_keys=True)
            named = hashlib.sha256(text.encode()).hexdigest()[:16]
            assert store.folder(settings, early=early).name == named
        shares = smoke.settings(seed=3, watermark={**mark, "scheme": "shares"})
        assert store.folder(shares) != store.folder(settings)


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


def test_a_kept_model_stands_in_for_its_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smoke = scales.get("smoke")
    monkeypatch.setitem(scales.SCALES, "smoke", replace(smoke, keeps_models=True))
    store = Store("smoke", results=tmp_path / "results", runs=tmp_path / "runs")
    mark = {"strength": 0.1}
    recorded = smoke.settings(seed=0, watermark=mark, record=smoke.recording)
    run = store.train(recorded)
    kept = store.kept(recorded)
    assert {path.name for path in kept.iterdir()} == {*MODEL, KEY}

    other = Store("smoke", results=tmp_path / "results", runs=tmp_path / "others")
    found = other.train(smoke.settings(seed=0, watermark=mark))
    assert found.folder == kept
    assert found.metrics == run.metrics
    for one, two in zip(run.halves(), found.halves(), strict=True):
        torch.testing.assert_close(one.state_dict(), two.state_dict(), rtol=0, atol=0)
    assert not other.runs.exists()
    # The gradients are not kept: a training that must have them is done again.
    assert other.train(recorded).folder == other.folder(recorded)

    (kept / "run.json").unlink()
    assert other.train(smoke.settings(seed=0, watermark=mark)).folder == other.folder(recorded)


def test_where_models_are_kept_every_training_is_recorded_and_known_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smoke = scales.get("smoke")
    monkeypatch.setitem(scales.SCALES, "smoke", replace(smoke, keeps_models=True))
    store = Store("smoke", results=tmp_path / "results", runs=tmp_path / "runs")
    plain = smoke.settings(seed=0, watermark={"strength": 0.0})
    recorded = smoke.settings(seed=0, watermark={"strength": 0.0}, record=smoke.recording)
    assert store.folder(plain) == store.folder(recorded)
    assert not store.trained(plain)
    run = store.train(plain)
    assert (run.folder / "recording").is_dir()
    assert store.trained(plain)
    assert store.trained(recorded)

    # With the kept model alone, what needs no gradients is trained and what needs them is not.
    other = Store("smoke", results=tmp_path / "results", runs=tmp_path / "others")
    assert other.trained(plain)
    assert not other.trained(recorded)


def test_models_are_kept_only_where_the_scale_says_so(tmp_path: Path) -> None:
    store = Store("smoke", results=tmp_path / "results", runs=tmp_path / "runs")
    store.train(scales.get("smoke").settings(seed=0, watermark={"strength": 0.0}))
    assert not store.results.exists()
    assert [name for name, scale in scales.SCALES.items() if scale.keeps_models] == ["desk"]


def test_a_large_model_stays_with_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scales.SCALES, "smoke", replace(scales.get("smoke"), keeps_models=True))
    monkeypatch.setattr("sigil_reproduction.runner.store.LARGEST_KEPT", 100_000)
    store = Store("smoke", results=tmp_path / "results", runs=tmp_path / "runs")
    settings = scales.get("smoke").settings(seed=0, watermark={"strength": 0.0})
    run = store.train(settings)
    assert not store.kept(settings).exists()
    assert store.train(settings).folder == run.folder


def test_the_seeds_of_which_anything_was_measured(tmp_path: Path) -> None:
    store = Store("smoke", results=tmp_path, runs=tmp_path)
    assert store.seeds("fidelity") == set()
    for seed in (0, 12):
        store.measure(Cell("fidelity", "a", seed, ()), lambda cell, runs, store: {})
    (store.results / "fidelity" / "other.json").write_text("{}")
    assert store.seeds("fidelity") == {0, 12}


def test_what_is_missing_is_counted_by_trainings_and_their_measured_times(tmp_path: Path) -> None:
    """Two cells of one training are one training; the time of an image is that of the trainings that ran."""
    store, scale = Store("desk", results=tmp_path, runs=tmp_path / "runs"), scales.get("desk")
    clean, first, second = (
        Cell("fidelity", f"{number}", 0, (scale.settings(seed=0, watermark={"strength": strength}),))
        for number, strength in enumerate((0.0, 0.1, 0.1))
    )
    cells = [clean, first, second]
    assert costs.unmeasured(store, cells, "fidelity") == (
        "Not measured: 3 cells: `sigil reproduce fidelity --scale desk`."
    )
    path = tmp_path / "desk" / "fidelity" / clean.file
    path.parent.mkdir(parents=True)
    settings = [clean.trainings[0].model_dump(mode="json")]
    content = {"numbers": {}, "settings": settings, "training_seconds": [7_200.0], "seconds": 360.0}
    path.write_text(json.dumps(content))
    assert costs.unmeasured(store, cells, "fidelity", [0, 1]) == (
        "Not measured: 2 cells (1 training, about 2.2 core-hours): "
        "`sigil reproduce fidelity --scale desk --seeds 2`."
    )
    assert costs.spent(store, cells).startswith(
        "1 training took 2.0 core-hours, what was measured on them 0.1"
    )
    assert costs.unmeasured(store, [clean], "fidelity") == ""
