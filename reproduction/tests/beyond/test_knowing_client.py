"""What a client that knows Sigil measures: by hand, and on recordings with and without a common part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sigil.federation.observers import Step
from sigil.federation.recording import GradientRecorder
from sigil.federation.run import Run
from sigil.federation.settings import make
from sigil.pages.drawing import markdown
from sigil_reproduction.beyond import knowing_client as informed
from sigil_reproduction.beyond.knowing_client import Statistics, auc, common, cosine
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.store import Cell, Result, Store

SHAPE = (4, 2, 2)


def test_what_gradients_have_in_common_by_hand() -> None:
    assert common(np.array([[3.0, 0.0], [0.0, 4.0]])) == pytest.approx(5 / 7)
    # Maps are averaged over their positions: (1 + 3)/2 and (−2 + 2)/2.
    maps = np.array([[[[1.0, 3.0]], [[-2.0, 2.0]]]])
    assert maps.shape == (1, 2, 1, 2)
    assert common(np.concatenate([maps, -maps])) == 0.0
    assert common(np.concatenate([maps, 5 * maps])) == pytest.approx(1.0)
    assert common(np.zeros((3, 2))) == 0.0


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_length_of_the_gradients_does_not_matter(scale: float) -> None:
    rows = np.random.default_rng(0).standard_normal((8, 5))
    assert common(scale * rows) == pytest.approx(common(rows))


def test_auc_and_cosine_by_hand() -> None:
    assert auc([3.0, 4.0], [1.0, 2.0]) == 100.0
    assert auc([1.0, 2.0], [3.0, 4.0]) == 0.0
    assert auc([1.0, 3.0], [2.0, 3.0]) == pytest.approx(37.5)  # one of four pairs larger, one equal
    assert auc([], [1.0]) is None
    assert auc([1.0], []) is None
    assert cosine(np.array([1.0, 0.0]), np.array([2.0, 2.0])) == pytest.approx(0.5**0.5)
    assert cosine(np.zeros(2), np.ones(2)) == 0.0


def record(folder: Path, shift: float) -> Run:
    """Three rounds of gradients that cancel, plus a part that is the same for all samples and batches."""
    random = torch.Generator().manual_seed(0)
    mark = torch.randn(SHAPE, generator=random)
    recorder = GradientRecorder(folder / "recording", SHAPE, clients=[0])
    for number in range(1, 4):
        for step, count in enumerate((8, 8, 8, 3), start=1):
            gradient = torch.randn(count, *SHAPE, generator=random)
            gradient += shift * mark - gradient.mean(0)
            recorder.on_gradient_received(Step(number, 0, step), gradient, torch.zeros(count))
        recorder.on_round_end(number)
    recorder.close()
    return Run(folder, make({}), [])


def test_a_common_part_shows_in_both_statistics(tmp_path: Path) -> None:
    honest, marked = (Statistics(record(tmp_path / str(shift), shift), 8) for shift in (0.0, 0.3))
    assert {number: len(values) for number, values in honest.by_round.items()} == {1: 3, 2: 3, 3: 3}
    assert max(honest.all) < 1e-6
    assert min(marked.all) > 0.1
    assert auc(marked.all, honest.all) == 100.0
    assert marked.persistence == pytest.approx([1.0, 1.0])


def test_a_client_without_a_full_batch_is_measured_as_far_as_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is divided by the number of its batches, which is zero, and the page leaves places empty."""
    monkeypatch.setattr(informed, "local_gradients_of_run", lambda *arguments, **options: [torch.ones(3, 4)])
    settings = make({"federation": {"batch_size": 16}})
    runs = [
        Run(found.folder, settings, [{"accuracy": 50.0}])
        for found in (record(tmp_path / name, 0.3) for name in ("honest", "marked"))
    ]
    store = Store("smoke", results=tmp_path / "results", runs=tmp_path / "runs")
    monkeypatch.setattr(store, "dataset", lambda settings: None)
    options = {"setting": "layer3", "server": "strength 0.1"}
    cell = Cell("informed", "layer3 strength 0.1", 0, (), options)
    numbers = informed.measure(cell, runs, store)
    assert [numbers[name] for name in ("common", "auc", "above_limit")] == [None] * 3
    assert numbers["persistence"] == pytest.approx(1.0)
    assert numbers["curves"]["auc"] == numbers["curves"]["round"] == []
    measured = Measured([cell], {(cell.name, 0): Result(cell.name, 0, {}, numbers)})
    page = markdown(informed.show(measured, tmp_path))
    assert "| layer3 | λ = 0.1 |  |  |  |  |  | 1.00 |" in page
    assert [finding.agrees for finding in informed.verdict(measured)] == [None, None, None]


def test_the_page_has_a_row_a_server_and_says_what_is_missing(tmp_path: Path) -> None:
    cells = [
        Cell("informed", f"layer3 {server}", 0, (), {"setting": "layer3", "server": server})
        for server in ("honest", "strength 0.1")
    ]
    numbers = {
        "common": 0.03,
        "auc": 91.0,
        "limit": 0.02,
        "above_limit": 70.0,
        "persistence": 0.8,
        "final": {"wsr": 0.99},
        "curves": {"round": [1, 2], "common": [0.04, 0.02], "auc": [99.0, 83.0], "persistence": [0.8]},
    }
    results = {("layer3 strength 0.1", 0): Result("layer3 strength 0.1", 0, {}, numbers)}
    page = markdown(informed.show(Measured(cells, results), tmp_path))
    assert "| layer3 | λ = 0.1 | 99 % | 0.030 | 91 % | 99 % | 70.0 % | 0.80 |" in page
    assert "| layer3 | honest | not run |" in page
    assert (tmp_path / "informed.png").read_bytes().startswith(b"\x89PNG")
    assert [finding.agrees for finding in informed.verdict(Measured(cells, results))] == [None, False, None]
