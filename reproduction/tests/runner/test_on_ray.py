"""The same cells on a local Ray with two workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ray._private import services

from sigil.errors import ExperimentError
from sigil_reproduction import reproduce
from sigil_reproduction.paper.table3_fidelity import model_cells
from sigil_reproduction.runner import on_ray, scales
from sigil_reproduction.runner.experiment import final_numbers
from sigil_reproduction.runner.store import Store


def test_cells_measured_on_ray_are_those_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.chdir(tmp_path)
    store = Store("smoke", results=Path("results"), runs=Path("runs"))
    said: list[str] = []
    reproduce.reproduce(["gradient-norms"], store, seeds=[0], jobs=2, ray="local", say=said.append)
    cells = [cell for cell in model_cells(scales.get("smoke"), [0], "resnet18") if cell.options["strength"]]
    assert all(store.has(cell) for cell in cells)
    assert len([line for line in said if "measured" in line]) == len(cells) == 3
    assert (store.results / "gradient-norms" / "gradient-norms.png").exists()
    assert not list(store.runs.glob(".shared-*"))

    other = Store("smoke", results=Path("others"), runs=Path("others"))
    other.measure(cells[0], final_numbers)
    first, second = (
        json.loads((place.results / "fidelity" / cells[0].file).read_text()) for place in (store, other)
    )
    assert first["numbers"] == second["numbers"]


def test_a_machine_without_the_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"does not see .* share"):
        on_ray._work(tmp_path / "nowhere" / ".shared", print)


def test_no_cluster_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # Ray looks at every process of the machine and in a folder that all share: there may be one of others.
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(services, "find_gcs_addresses", set)
    monkeypatch.setattr(services, "find_bootstrap_address", lambda folder: None)
    store = Store("smoke", results=tmp_path, runs=tmp_path)
    with (
        pytest.raises(ExperimentError, match="Ray cannot be reached at 'auto'"),
        on_ray.cluster("auto", store),
    ):
        pass
