"""What a leaked copy survives: how copies are mixed, and what the page says of what is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from sigil import models
from sigil_reproduction.beyond import copies
from sigil_reproduction.runner import scales
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.store import Result

CELLS = copies.cells(scales.get("desk"), [0])


def row(**numbers: Any) -> dict[str, Any]:
    found = {"accuracy": 80.0, "deviations": [400.0], "log10_p_before": [-30_000.0], "log10_p": [-29_998.0]}
    found |= {"named": 1, "others": 2.0, "wrongly": 0, "together": None}
    return found | {"together_names": 0, "together_right": 0, **numbers}


def test_copies_are_mixed_weight_by_weight() -> None:
    halves = [models.build("vgg11", classes=10, width=8, seed=seed) for seed in range(3)]
    states = torch.stack([half.state_dict()["stage1.0.weight"] for half in halves])
    mean, middle, chosen = (
        copies.mixed(halves, way).state_dict()["stage1.0.weight"]
        for way in ("mean", "midpoint", "random choice")
    )
    assert torch.allclose(mean, states.mean(0))
    assert torch.allclose(middle, (states.min(0).values + states.max(0).values) / 2)
    assert bool((states == chosen).any(0).all())
    assert all(0.2 < float((states[number] == chosen).float().mean()) < 0.5 for number in range(3))


def test_the_page_says_what_is_named_for_whom_and_what_was_not_run(tmp_path: Path) -> None:
    numbers = {
        copies.NOTHING: row(),
        copies.LAUNDERED: row(accuracy=78.5, deviations=[9.0], log10_p_before=[-18.0], log10_p=[-16.0]),
        "mean of 2, nothing": row(
            **{"deviations": [300.0, 290.0], "log10_p_before": [-9_000.0, -8_000.0]},
            **{"log10_p": [-8_998.0, -7_998.0], "named": 2, "together": -17_000.0, "together_names": 2},
            together_right=2,
        ),
    }
    results = {(name, 0): Result(name, 0, {}, found) for name, found in numbers.items()}
    single, mixtures, rounds = copies.show(Measured(CELLS, results), tmp_path)
    texts = {
        str(cells[0]): [getattr(cell, "text", cell) for cell in cells]
        for table in (single, mixtures, rounds)
        for cells in table.rows  # type: ignore[union-attr]
    }
    assert texts[copies.NOTHING][6:8] == ["1 of 1", "1 of 1"]
    # 16 decades convince the owner, and not others, for whom it takes 38.5 more.
    assert texts[copies.LAUNDERED][1:3] == ["78.5", "+1.50"]
    assert texts[copies.LAUNDERED][6:8] == ["1 of 1", "0 of 1"]
    assert texts["mean of 2, nothing"][3:] == [
        *("290.0 to 300.0", "-8000.0 to -9000.0", "-7998.0 to -8998.0", "2 of 2", "2 of 2", "2.0", "0"),
        *("-17000.0", "2 of 2"),
    ]
    assert texts["INT4"][1] == "not run"
    wrong, named = copies.verdict(Measured(CELLS, results))
    assert wrong.agrees
    assert named.agrees
    results["INT4", 0] = Result("INT4", 0, {}, row(wrongly=1))
    assert copies.verdict(Measured(CELLS, results))[0].agrees is False
