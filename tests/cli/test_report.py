"""`sigil report`: one page of results or of runs, complete in itself."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from sigil.cli.main import main
from sigil.experiments import registry
from sigil.experiments.lab import scales
from sigil.experiments.lab.experiment import Finding, Measured
from sigil.experiments.lab.store import Store
from sigil.experiments.paper import table3_fidelity as fidelity
from sigil.federation.from_settings import cut_shape
from sigil.federation.run import train
from sigil.federation.settings import make
from sigil.keys.key import Key

CURVES = {
    name: [1, 2] if name == "round" else [0.5, 0.6]
    for name in (
        "round",
        "loss",
        "accuracy",
        "wsr",
        "injection_cosine",
        "injection_cosine_abs",
        "injection_main_norm",
        "injection_watermark_norm",
        "injection_injected_norm",
    )
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a few cells of the fidelity table: ResNet-18 for two seeds, VGG11 not at all."""
    folder = tmp_path_factory.mktemp("store") / "results"
    store = Store("smoke", results=folder, runs=folder.parent / "runs")
    for cell in fidelity.model_cells(scales.get("smoke"), [0, 1], "resnet18"):
        strength = cell.options["strength"]
        numbers: dict[str, object] = {"accuracy": 90.0 + cell.seed, "curves": CURVES}
        if strength:
            numbers |= {"wsr": 100.0 if strength > 0.01 else 60.0, "log10_p": -15.1, "cosine": 1e-5}
        path = store.results / "fidelity" / cell.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"numbers": numbers}))
    (store.results / "README.md").write_text(
        "# By hand\n\nThe beginning.\n\n| experiment | reason |\n| --- | --- |\n"
        "| [fidelity](fidelity/) | The mark is *too weak* here. |\n\n"
        "## Where it differs\n\n- See [noise](noise/).\n"
    )
    return store.results


@pytest.fixture(scope="module")
def page(results: Path) -> str:
    assert main(["report", str(results)]) == 0
    return (results / "report.html").read_text("utf-8").replace("\u00a0", " ")


def section(page: str, name: str) -> str:
    found = re.search(rf'<section id="{name}">.*?</section>', page, re.DOTALL)
    assert found is not None
    return found[0]


def test_every_experiment_has_its_place(page: str) -> None:
    for name in registry.EXPERIMENTS:
        assert f'href="#{name}"' in page
        section(page, name)


def test_ours_and_the_papers_numbers_stand_together(page: str) -> None:
    text = section(page, "fidelity")
    assert '90.5 ± 0.7 <span class="paper">(92.6)</span>' in text
    assert "4 of 16 of seed 0, 4 of 16 of seed 1" in text
    assert 'missing"><span class="quantity">WSR</span> not run <span class="paper">(99.9)' in text


def test_agreement_is_stated_in_words_with_the_reasons_given_by_hand(page: str) -> None:
    text = section(page, "fidelity")
    assert re.search(r'badge agrees">agrees</span><span>The mark is embedded at λ = 0.1', text)
    assert re.search(r'badge differs">differs</span><span>The mark is embedded at λ = 0.01', text)
    assert "The mark is <i>too weak</i> here." in text
    assert "The beginning." in page
    assert "Where it differs" in section(page, "notes")
    assert 'badge not measured">not measured' in section(page, "removal")


def test_the_page_needs_nothing_from_elsewhere(page: str) -> None:
    own = re.sub(r"base64,[A-Za-z0-9+/=\s]+|xmlns(:\w+)?=\"[^\"]+\"", "", page)
    assert "http" not in own.replace("http-equiv", "")
    assert "<script" not in page
    assert "<svg" in section(page, "training-curves")
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page


def test_identifiers_are_unique(page: str) -> None:
    identifiers = re.findall(r'\bid="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers))


def test_the_same_tables_as_markdown_and_csv(results: Path, page: str) -> None:
    text = (results / "report.md").read_text("utf-8")
    assert "| resnet18 / cifar10 | 90.5 ± 0.7 (92.6) |" in text
    assert "(training-curves/training-curves.png)" in text
    with (results / "report.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    clean = next(row for row in rows if row["experiment"] == "fidelity" and row["row"].startswith("resnet18"))
    assert (clean["column"], clean["ours"], clean["deviation"], clean["paper"]) == (
        "clean",
        "90.5",
        "0.7",
        "92.6",
    )
    assert any(row["experiment"] == "removal" and row["ours"] == "not run" for row in rows)


def test_every_verdict_of_an_empty_store_is_not_measured() -> None:
    for name, experiment in registry.EXPERIMENTS.items():
        cells = experiment.cells(scales.get("smoke"), [0])
        findings: list[Finding] = experiment.verdict(Measured(cells, {}))
        assert all(finding.agrees is None for finding in findings), name


def test_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def settings(strength: float) -> dict[str, dict[str, object]]:
        return {
            "model": {"width": 8, "cut": "layer1"},
            "data": {"train_limit": 40, "test_limit": 20},
            "federation": {"clients": 2, "rounds": 2, "local_epochs": 1, "batch_size": 16},
            "watermark": {"strength": strength, "probes": 8},
            "run": {"workers": 1, "threads": 1},
        }

    marked = make(settings(0.1))
    key = Key.generate("ACME <b>", shape=cut_shape(marked), bits=8, seed=bytes(32))
    train(marked, tmp_path / "marked", key=key)
    train(make(settings(0.0)), tmp_path / "clean")
    assert main(["report", str(tmp_path / "marked"), str(tmp_path / "clean")]) == 2
    assert "A page about 2 runs belongs to none of them" in capsys.readouterr().err
    assert not (tmp_path / "marked" / "report.html").exists()
    out = tmp_path / "both.html"
    assert main(["report", str(tmp_path / "marked"), str(tmp_path / "clean"), "--out", str(out)]) == 0
    assert str(out) in capsys.readouterr().out
    text = out.read_text("utf-8")
    assert key.commitment in section(text, "marked")
    assert "ACME &lt;b&gt;" in text
    assert "no key" in section(text, "clean")
    assert "<code>federation.rounds</code>" in text
    assert section(text, "curves").count("<svg") == 1
    assert main(["report", str(tmp_path / "clean")]) == 0
    assert "<svg" in (tmp_path / "clean" / "report.html").read_text("utf-8")


def test_what_is_no_result_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no results; give a folder such as results/cpu" in capsys.readouterr().err
    assert main(["report", str(tmp_path), str(tmp_path)]) == 2
    assert "one folder of results" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
