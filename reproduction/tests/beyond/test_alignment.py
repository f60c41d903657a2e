"""Disguises that keep a model's function, tests of the null by hand, and the page with what is missing."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sigil import models
from sigil.attacks.halves import Halves
from sigil.keys.key import Key
from sigil.pages.drawing import markdown
from sigil.probing import noise
from sigil.verdict.verification import verify
from sigil_reproduction.beyond import alignment_null
from sigil_reproduction.beyond.alignment import cells, same_channels, show, verdict
from sigil_reproduction.beyond.disguises import DISGUISES, permuted
from sigil_reproduction.runner import scales
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.store import Cell, Result

SHAPE = (3, 16, 16)


@cache
def halves() -> Halves:
    model = models.build("resnet18", classes=10, width=4, input_size=SHAPE[1:], seed=0).eval()
    return models.split(model, "layer4")


def images() -> torch.Tensor:
    return torch.randn(8, *SHAPE, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", [name for name in DISGUISES if "replaced" not in name])
@torch.no_grad()
def test_a_disguise_changes_the_activation_and_not_the_output(name: str) -> None:
    client, server = halves()
    changed = DISGUISES[name](halves(), 1)
    activation = changed.client.eval()(images())
    torch.testing.assert_close(
        changed.server.eval()(activation), server(client(images())), rtol=1e-3, atol=1e-3
    )
    original = client(images())
    if activation.shape == original.shape:
        moved = ~torch.isclose(activation, original, rtol=1e-2, atol=1e-3).all(3).all(2).all(0)
        assert 10 <= int(moved.sum()) <= 32
    else:
        assert activation.shape[1] == 40


@torch.no_grad()
def test_copies_take_the_place_of_other_channels() -> None:
    changed = DISGUISES["25 % replaced by copies"](halves(), 1)
    table = changed.client.eval()(images()).transpose(0, 1).flatten(1)
    correlation = np.corrcoef(table.numpy())
    copies = (np.tril(correlation, -1) > 0.9999).any(1)
    assert copies.sum() >= 8


def test_channels_are_recognised_up_to_a_scale() -> None:
    client, _ = halves()
    same = same_channels(client, permuted(halves(), seed=1).client, SHAPE)
    assert same.shape == (32, 32)
    assert bool((same.sum(0) == 1).all())
    assert bool((same.sum(1) == 1).all())
    assert not torch.equal(same, torch.eye(32, dtype=torch.bool))
    mixed = same_channels(client, DISGUISES["mixed by 45 degrees"](halves(), 1).client, SHAPE)
    assert int(mixed.any(1).sum()) < 8


def test_a_test_of_the_null_is_the_one_that_verification_makes() -> None:
    client, _ = halves()
    key = Key.generate("ACME", shape=(32, 2, 2), bits=50, seed=bytes(32))
    with torch.no_grad():
        answers = client(noise(SHAPE, 512, generator=torch.Generator().manual_seed(0)))
    p, z = alignment_null.p_and_z(answers, key)
    reading = verify(client, key, input_shape=SHAPE, seed=0).readings[0]
    assert p == pytest.approx(10.0**reading.log10_p_before, rel=1e-6)
    weights = np.array(reading.weights)
    statistic = (2 * reading.wsr - 1) * 512 * 50
    assert z == pytest.approx(statistic / np.sqrt((weights**2).sum()))


class _Clean:
    """As much of a run as is asked for."""

    def halves(self) -> Halves:
        client, server = halves()
        client.input_shape = SHAPE
        return client, server


def test_an_order_chosen_afterwards_forges() -> None:
    key = Key.generate("ACME", shape=(32, 2, 2), bits=50, seed=bytes(32))
    found = alignment_null.chosen_afterwards(_Clean(), key)  # type: ignore[arg-type]
    assert found["as it is"]["wsr"] < 65
    assert found["chosen"]["wsr"] > found["as it is"]["wsr"] + 10
    assert found["chosen"]["log10_p"] < -3


def test_the_cpu_scale_has_what_is_asked_for() -> None:
    plan = {cell.name: cell for cell in cells(scales.get("cpu"), [0])}
    assert len([name for name in plan if name.startswith("random keys")]) == 6
    siblings = [cell for cell in plan.values() if cell.options.get("sibling")]
    assert [cell.name for cell in siblings] == ["random keys 0"]
    assert plan["random keys 1"].options["keys"] == 1_000
    real = plan["real keys"]
    assert len(real.trainings) == 1 + 2 * real.options["pairs"] == 41
    assert {cell.options["model"] for cell in plan.values() if "model" in cell.options} > set(models.names())


def verdict_of(wsr: float, log10_p: float, **more: Any) -> dict[str, Any]:
    return {"wsr": wsr, "log10_p": log10_p, **more}


def plan() -> list[Cell]:
    return [
        Cell("alignment", "attack none", 0, (), {"attack": "none"}),
        Cell("alignment", "attack INT4", 0, (), {"attack": "INT4"}),
        Cell("alignment", "model vgg11", 0, (), {"model": "vgg11"}),
        Cell("alignment", "random keys 1", 0, (), {"keys": 400, "sibling": False}),
        Cell("alignment", "real keys", 0, (), {"pairs": 20}),
    ]


def measured(p_values: Any) -> dict[tuple[str, int], Result]:
    aligned = verdict_of(99.8, -15.0, recovered=100.0, aligned=True)
    doubted = verdict_of(50.0, -0.3, recovered=12.0, aligned=False)
    attack = {
        "accuracy_before": 40.0,
        "accuracy": 40.0,
        "before": verdict_of(99.9, -15.1),
        "as it is": verdict_of(50.0, -0.3),
        "images": aligned,
        "noise": doubted,
        "initial weights": aligned,
    }
    ways = ("as it is", "images", "noise", "initial weights")
    sure = {"sure": 60, "partners": 128, "channels": 128, "believed": False}
    random = {
        "p_values": {way: list(p_values) for way in ways},
        "sure": dict.fromkeys(ways[1:], sure),
    }
    numbers = {"attack none": attack, "attack INT4": attack, "random keys 1": random}
    return {(name, 0): Result(name, 0, {}, json.loads(json.dumps(found))) for name, found in numbers.items()}


def test_the_page_shows_what_was_measured_and_what_was_not(tmp_path: Path) -> None:
    page = markdown(show(Measured(plan(), measured(np.linspace(0.001, 0.999, 400))), tmp_path))
    assert "100 % recovered<br>WSR 99.8<br>p = 10^-15.0" in page
    assert "not believed, 12 % recovered<br>WSR 50.0" in page
    assert "| vgg11 | not run |" in page
    assert "p = 1, 400 tests" in page
    assert (tmp_path / "null.png").read_bytes().startswith(b"\x89PNG")


def test_claims_are_held_against_the_cells() -> None:
    uniform, crowded = np.linspace(0.001, 0.999, 400), np.linspace(0.001, 0.6, 400)
    claims = {
        finding.text.split(":")[0]: finding.agrees for finding in verdict(Measured(plan(), measured(uniform)))
    }
    assert claims["Disguised and as it is, the copy is no proof (log10 p > −2)"] is True
    assert claims["Aligned, WSR is at least 99 %"] is False  # noise alone was not believed
    assert claims["Random keys on clean models"] is True
    assert claims["Real keys on clean models"] is None
    assert claims["No clean model of other origin is believed, of 1"] is True
    moved = {
        finding.text.split(":")[0]: finding.agrees for finding in verdict(Measured(plan(), measured(crowded)))
    }
    assert moved["Random keys on clean models"] is False
    assert all(finding.agrees is None for finding in verdict(Measured(plan(), {})))
