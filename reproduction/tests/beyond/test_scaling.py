"""Checks of the reduced scale: the training of another table beside one that differs in a single thing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from sigil.federation.settings import FederationSettings, Settings
from sigil.pages.drawing import markdown
from sigil_reproduction.beyond import proof, scaling
from sigil_reproduction.paper import figure6_splitout as splitout
from sigil_reproduction.paper import figure7_noise as noise
from sigil_reproduction.paper import table6_split_point as split_point
from sigil_reproduction.paper import table12_clients as clients
from sigil_reproduction.runner import scales
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.stealth import OUTLIERS
from sigil_reproduction.runner.store import Result

SCALE = scales.get("cpu")
LARGER = {"data.train_limit": None, "federation.local_epochs": 2, "federation.batch_size": 32}


def pairs() -> dict[str, tuple[Settings, Settings]]:
    found: dict[str, list[Settings]] = {}
    for cell in scaling.cells(SCALE, [0]):
        found.setdefault(cell.options["check"], []).extend(cell.trainings)
    return {check: (small, undone) for check, (small, undone) in found.items()}


def changed(small: Settings, undone: Settings) -> dict[str, Any]:
    """What differs, with the dots of `--set`."""
    before, after = small.model_dump(), undone.model_dump()
    return {
        f"{section}.{name}": value
        for section, values in after.items()
        for name, value in values.items()
        if before[section][name] != value
    }


def test_the_small_trainings_are_those_of_the_other_tables() -> None:
    tables = (split_point, proof, noise, clients.EXPERIMENT, splitout)
    known = [cell.trainings for table in tables for cell in table.cells(SCALE, [0])]
    assert all((small,) in known for small, _ in pairs().values())


def test_one_reduction_is_undone() -> None:
    size = {"data.train_limit": 10_000, "run.evaluate_every": 2}
    differences = {check: changed(*pair) for check, pair in pairs().items()}
    assert differences == {
        **{cut: {"watermark.bits": 6} for cut in split_point.CUTS},
        "256 bits": {"model.width": 16},
        "noise 1/10": {"federation.clients": 2, **size},
        "noise 1/100": {"federation.clients": 2, **size},
        "many clients": {"federation.rounds": 50, **size},
        "λ = 0.01": {"federation.clients": 2, "watermark.bits": 6},
        "R_wm 10": {"watermark.bits": 6},
        "averaging, γ = 100": {"model.width": 16, "watermark.bits": 256},
        **{f"all images, {check}": LARGER for check in ("clean", "λ = 0.01", "λ = 0.1", "R_wm 10")},
        "all images, noise 1/100": {**LARGER, "run.evaluate_every": 2},
        **{
            f"all images, few bits, {check}": {**LARGER, "watermark.bits": 6}
            for check in ("λ = 0.01", "λ = 0.1", "R_wm 10")
        },
    }


def test_the_paper_beside_both() -> None:
    cells = scaling.cells(SCALE, [0])
    numbers = {"accuracy": 40.0, "wsr": 99.0, "log10_p": -12.0, OUTLIERS: 8.0}
    found = {("layer1 undone", 0): Result("", 0, {}, numbers)}
    rows = [
        row.split(" | ")
        for row in markdown(scaling.show(Measured(cells, found), Path())).splitlines()
        if "| layer1" in row
    ]
    (row,) = rows
    assert row[1] == "acc 92.4<br>WSR 99.8<br>outliers 16.7"
    assert row[2] == "acc not run<br>WSR not run"
    assert row[3].startswith("acc 40.0<br>WSR 99.0<br>p = 10^-12.0<br>outliers 8.0")


def test_only_what_was_measured_is_judged() -> None:
    cells = scaling.cells(SCALE, [0])

    def agrees(**rates: float) -> list[bool | None]:
        found = {
            (f"{name} undone".replace("_", " "), 0): Result("", 0, {}, {"wsr": rate})
            for name, rate in rates.items()
        }
        return [finding.agrees for finding in scaling.verdict(Measured(cells, found))]

    assert agrees() == [None] * 14
    found = agrees(layer1=99.0, layer2=80.0, many_clients=96.0)
    assert found == [False, None, None, None, True, *[None] * 9]


def test_a_client_has_the_papers_images_and_steps_where_all_are_used() -> None:
    _, larger = pairs()["all images, λ = 0.1"]
    published = scales.get("paper").settings(seed=0).federation
    images = 50_000 // larger.federation.clients

    def steps(federation: FederationSettings) -> int:
        return federation.rounds * federation.local_epochs * math.ceil(images / federation.batch_size)

    assert larger.federation.clients == published.clients
    assert steps(larger.federation) == pytest.approx(steps(published), rel=0.03)


def test_the_cost_of_a_mark_is_that_beside_its_clean_model() -> None:
    cells = scaling.cells(SCALE, [0])
    accuracies = {"clean": 70.0, "λ = 0.1": 69.5, "λ = 0.01": 68.5}
    found = {
        (f"all images, {name} undone", 0): Result("", 0, {}, {"accuracy": accuracy})
        for name, accuracy in accuracies.items()
    }
    (cost,) = (finding for finding in scaling.verdict(Measured(cells, found)) if "costs" in finding.text)
    assert "-0.5 (all images, λ = 0.1), -1.5 (all images, λ = 0.01)" in cost.text
    assert cost.agrees is False
