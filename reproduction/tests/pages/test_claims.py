"""The paper's claims in one table: every one has its cell, and a number that is held against a limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sigil.pages.drawing import markdown
from sigil_reproduction import registry
from sigil_reproduction.pages import claims, overview
from sigil_reproduction.runner import scales
from sigil_reproduction.runner.store import Cell, Store

RESULTS = Path(__file__).parents[2] / "results"


def put(store: Store, experiment: str, name: str, seed: int, numbers: dict[str, Any]) -> None:
    store.measure(Cell(experiment, name, seed, ()), lambda cell, runs, store: numbers)


@pytest.mark.parametrize("scale", ["cpu", "desk", "paper"])
def test_every_claim_is_held_against_a_cell_of_its_experiment(scale: str) -> None:
    for experiment in registry.EXPERIMENTS.values():
        names = {cell.name for cell in experiment.cells(scales.get(scale), [0])}
        for claim in experiment.claims:
            assert {claim.cell, claim.instead_of or claim.cell} <= names, claim.text


def test_the_numbers_of_the_claims_are_in_the_committed_cells() -> None:
    """A misspelt number would read as "not run" for ever."""
    found = claims.held(Store("cpu", results=RESULTS, runs=RESULTS))
    missing = [one.claim.text for one in found if one.found is None and "adaptive" not in one.claim.text]
    assert len(found) > 20
    assert missing == []


def test_claims_agree_differ_or_cannot_be_tested(tmp_path: Path) -> None:
    store = Store("cpu", results=tmp_path, runs=tmp_path)
    for seed, (clean, marked) in enumerate(((80.0, 79.8), (81.0, 80.7), (79.0, 78.9))):
        put(store, "fidelity", "resnet18 clean", seed, {"accuracy": clean})
        numbers = {"accuracy": marked, "wsr": 99.0 + seed / 10, "cosine": 1e-4}
        put(store, "fidelity", "resnet18 strength 0.1", seed, numbers)
    put(store, "fidelity", "vgg11 clean", 0, {"accuracy": 70.0})
    put(store, "fidelity", "vgg11 strength 0.1", 0, {"accuracy": 70.0, "wsr": 100.0})
    put(store, "fidelity", "resnet18 strength 0.01", 0, {"accuracy": 80.0, "wsr": 60.0})
    put(store, "scrutinizer", "layer4 strength 0.1", 0, {"pooled scrutinizer": {"suspicious": 0.0}})
    both = {"pooled scrutinizer": {"suspicious": 0.0}, "sparse": {"suspicious": 50.0}}
    put(store, "scrutinizer", "layer3 honest", 0, both)
    found = {one.claim.text: one for one in claims.held(store)}
    cost = found["Marking at λ = 0.1 leaves accuracy as it is, ResNet-18 (within 1 point)"]
    assert (cost.ours, cost.word) == ("-0.2 points [-0.4, +0.0], 3 seeds; same: p = 0.0026", "agrees")
    alone = found["Marking at λ = 0.1 leaves accuracy as it is, VGG11 (within 1 point)"]
    assert (alone.verdict, alone.word) == ("cannot be tested here", "**cannot be tested here, one seed**")
    assert found["The mark embeds at λ = 0.01 (WSR ≥ 95 %)"].verdict == "differs"
    assert found["The mark embeds at λ = 1 (WSR ≥ 95 %)"].verdict == "not run"
    quiet = found["Gradient Scrutinizer at layer4 never calls λ = 0.1 an attack"]
    assert quiet.verdict == "agrees"
    loud = found["Gradient Scrutinizer at layer3 calls an honest server an attack"]
    assert (loud.ours, loud.verdict) == ("50.0 % of scores, one seed", "agrees")
    text = markdown(claims.page(store))
    assert "| 100.0 % | 60.0 %" not in text
    assert "| 99.1 % | 60.0 %, one seed | **differs, one seed** |" in text
    # What was not measured is no row, and one line below.
    assert "not run" not in text
    assert sum("50 clients carry it" in line for line in text.splitlines()) == 0
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1


def test_a_rate_that_keeps_the_papers_rule_need_not_be_proof(tmp_path: Path) -> None:
    """By the one set of rules: a plain key needs 10^-31.2, a stamped one 10^-14.3."""
    store = Store("desk", results=tmp_path, runs=tmp_path)
    for cell, wsr, log10_p in (
        ("λ = 0.1 prune 80 %", 94.0, -13.8),
        ("λ = 0.1 INT4", 100.0, -15.05),
        ("λ = 0.1 finetune 100", 100.0, -31.3),
    ):
        put(store, "removal", cell, 0, {"accuracy": 80.0, "wsr": wsr, "log10_p": log10_p})
    found = {one.claim.text: one for one in claims.held(store)}
    pruned = found["Pruning 80 % leaves the mark of λ = 0.1 (WSR ≥ 70 %)"]
    assert (pruned.word, claims.proof(pruned)) == ("agrees, one seed", "no (10^-13.8)")
    rounded = found["INT4 leaves the mark of λ = 0.1 (WSR ≥ 95 %)"]
    assert claims.proof(rounded) == "with a stamped key (10^-15.1)"
    tuned = found["Fine-tuning (100 steps) leaves the mark of λ = 0.1 (WSR ≥ 95 %)"]
    assert claims.proof(tuned) == "yes (10^-31.3)"
    text = markdown(claims.page(store))
    assert text.count("50 bits prove nothing with a plain key") == 1
    assert "at least 104 bits" in text
    missing = [line for line in text.splitlines() if line.startswith("Not measured yet: ")]
    assert len(missing) == 1
    assert "50 clients carry it" in missing[0]


def test_the_quick_scale_shows_only_what_its_home_has_not(tmp_path: Path) -> None:
    quick, home = (Store(scale, results=tmp_path, runs=tmp_path) for scale in ("cpu", "desk"))
    for store in (quick, home):
        put(store, "removal", "λ = 0.1 INT4", 0, {"accuracy": 80.0, "wsr": 99.0, "log10_p": -15.0})
    put(quick, "clients", "50 strength 0.1", 0, {"accuracy": 80.0, "wsr": 99.0, "log10_p": -15.0})
    assert "INT4" in markdown(claims.page(home))
    text = markdown(claims.page(quick))
    assert "50 clients carry it" in text
    assert "INT4" not in text


def test_no_committed_page_of_the_quick_scale_has_a_home_elsewhere() -> None:
    pages = {page.parent.name for page in RESULTS.glob("cpu/*/README.md")}
    home = Store("desk", results=RESULTS, runs=RESULTS)
    assert pages
    assert [name for name in pages if claims.is_measured(home, name)] == []


def test_the_figures_are_drawn_from_what_there_is(tmp_path: Path) -> None:
    empty = Store("cpu", results=tmp_path, runs=tmp_path)
    assert overview.page(empty, tmp_path) == []
    store = Store("cpu", results=RESULTS, runs=RESULTS)
    drawn = [picture.file for picture in overview.page(store, tmp_path) if not isinstance(picture, str)]  # type: ignore[union-attr]
    assert {overview.TRAINING, overview.DETECTORS} <= set(drawn)
    for name in drawn:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
