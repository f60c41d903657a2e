"""Random keys on a model that never saw them: the test's p-values must be uniform, the rates about a half."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sigil import models
from sigil.federation.run import Run
from sigil.federation.settings import Settings
from sigil.pages.drawing import markdown
from sigil_reproduction.paper import section5_threshold as threshold
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.store import Cell, Store


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Cell, dict[str, object]]:
    folder = tmp_path_factory.mktemp("clean")
    whole = models.build("resnet18", classes=10, width=8, channels=1, input_size=8, seed=0)
    client_half, _ = models.split(whole, "layer3")
    models.save(folder / "client.safetensors", client_half)
    cell = Cell("threshold", "resnet18", 0, (), {"keys": 120})
    store = Store("smoke", results=folder, runs=folder)
    return cell, threshold.measure(cell, [Run(folder, Settings(), [])], store)


def test_a_clean_model_and_random_keys(measured: tuple[Cell, dict[str, object]]) -> None:
    _, numbers = measured
    assert numbers["keys"] == sum(numbers["histogram"]) == 120  # type: ignore[arg-type]
    assert numbers["proven"] == 0
    assert sum(numbers["expected"]) == pytest.approx(120, abs=0.1)  # type: ignore[arg-type]
    assert float(numbers["uniformity_p"]) > 1e-4  # type: ignore[arg-type]
    assert len(set(numbers["p_values"])) > 60  # type: ignore[arg-type]
    # The spread that the exact null distributions expect is the spread that is seen.
    places = (np.arange(threshold.BINS) + 0.5) * 100 / threshold.BINS
    law = np.array(numbers["expected"]) / 120
    expected = float(np.sqrt((law * (places - 50) ** 2).sum()))
    assert numbers["wsr_deviation"] == pytest.approx(expected, rel=0.3)
    assert abs(float(numbers["wsr_mean"]) - 50) < 4 * expected / np.sqrt(120)  # type: ignore[arg-type]


def test_the_table_the_figure_and_the_verdict(
    measured: tuple[Cell, dict[str, object]], tmp_path: Path
) -> None:
    from sigil_reproduction.runner.store import Result

    cell, numbers = measured
    results = {(cell.name, cell.seed): Result(cell.name, cell.seed, cell.options, numbers)}
    cells = [cell, Cell("threshold", "vgg11", 0, (), {"keys": 120})]
    text = markdown(threshold.show(Measured(cells, results), tmp_path))
    assert "(68.0)" in text
    assert "| vgg11 | not run |" in text
    assert (tmp_path / "threshold.png").exists()
    findings = threshold.verdict(Measured(cells, results))
    assert findings[3].agrees is True
    assert "no false proof" in findings[3].text
    assert threshold.verdict(Measured(cells, {}))[0].agrees is None


def test_a_rate_on_the_rule_is_not_above_it() -> None:
    rates = np.array([0.0, 0.7, 0.7001, 1.0])
    assert (threshold._bins(rates) >= threshold.RULE_BIN).tolist() == [False, False, True, True]


def test_the_same_probes_are_answered_once() -> None:
    class Half(torch.nn.Module):
        calls = 0

        def forward(self, batch: Tensor) -> Tensor:
            self.calls += 1
            return batch + 1

    half = Half()
    memory = threshold.Memory(half)
    first, second = torch.randn(2, 3), torch.randn(2, 3)
    for batch in (first, second, first.clone()):
        assert torch.equal(memory(batch), batch + 1)
    assert half.calls == 2
