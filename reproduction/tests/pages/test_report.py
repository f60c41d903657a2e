"""`sigil report` on results: one page, complete in itself."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from harness.commands import Command
from sigil.cli.main import main
from sigil_reproduction import registry, reproduce
from sigil_reproduction.paper import table3_fidelity as fidelity
from sigil_reproduction.runner import scales
from sigil_reproduction.runner.experiment import Finding, Measured
from sigil_reproduction.runner.store import Store

RESULTS = Path(__file__).parents[2] / "results"
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
    store = Store("cpu", results=folder, runs=folder.parent / "runs")
    for cell in fidelity.model_cells(scales.get("cpu"), [0, 1], "resnet18"):
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


def test_only_what_was_measured_has_a_place(results: Path, page: str) -> None:
    measured = {"fidelity", "training-curves", "orthogonality", "gradient-norms"}
    assert set(re.findall(r'<section id="([\w-]+)">', page)) == measured | {"notes"}
    for name in measured:
        assert f'href="#{name}"' in page
    for text in (
        page,
        (results / "report.md").read_text("utf-8"),
        (results / "report.csv").read_text("utf-8"),
    ):
        assert "not run" not in text
        assert "not measured:" not in text


def test_what_was_not_is_one_line_with_its_command_and_cost(results: Path, page: str) -> None:
    text = (results / "report.md").read_text("utf-8")
    last = text.splitlines()[-1]
    assert re.fullmatch(r"Not measured: \d+ cells: `sigil reproduce all --scale cpu`\.", last)
    command = "<code>sigil reproduce fidelity --scale cpu --seeds 2</code>"
    assert f"Not measured: 24 cells: {command}" in section(page, "fidelity")


def test_ours_and_the_papers_numbers_stand_together(page: str) -> None:
    text = section(page, "fidelity")
    assert '90.5 ± 0.7 <span class="paper">(92.6)</span>' in text
    assert "vgg11" not in text


def test_agreement_is_stated_in_words_with_the_reasons_given_by_hand(page: str) -> None:
    text = section(page, "fidelity")
    assert re.search(r'badge agrees">agrees</span><span>The mark embeds at λ = 0.1', text)
    assert re.search(r'badge differs">differs</span><span>The mark embeds at λ = 0.01', text)
    assert "The mark is <i>too weak</i> here." in text
    assert "The beginning." in page
    assert "Where it differs" in section(page, "notes")


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
    assert not any(row["experiment"] == "removal" for row in rows)


def test_every_verdict_of_an_empty_store_is_not_measured() -> None:
    for name, experiment in registry.EXPERIMENTS.items():
        cells = experiment.cells(scales.get("smoke"), [0])
        measured = Measured(cells, {})
        findings: list[Finding] = [claim.held(measured).finding for claim in experiment.claims]
        findings += experiment.verdict(measured)
        assert all(finding.agrees is None for finding in findings), name


def test_what_is_no_result_is_one_sentence(tmp_path: Path, refused: Command) -> None:
    assert "holds no results; give a folder such as results/cpu" in refused("report", tmp_path)
    assert "one folder of results" in refused("report", tmp_path, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("scale", ["cpu"])
def test_the_committed_pages_are_what_the_cells_give(
    scale: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After new cells or other words: `sigil reproduce NAME --trained` and `sigil report`, of this scale.

    The report of `cpu` showed fifty rows without a number, of cells that had long been measured.
    """

    def blank(figure: Figure, target: Any, **options: Any) -> None:
        (target.write if hasattr(target, "write") else target.write_bytes)(b"<svg></svg>")

    # Words and numbers are compared, and figures take most of the time.
    monkeypatch.setattr(Figure, "savefig", blank)
    monkeypatch.setattr(Figure, "tight_layout", lambda figure, **options: None)
    results = tmp_path / "results"
    shutil.copytree(RESULTS / scale, results / scale)
    if scale != "desk":
        (results / "desk").symlink_to(RESULTS / "desk")
    store = Store(scale, results=results, runs=tmp_path / "runs")
    pages = sorted((RESULTS / scale).glob("*/README.md"))
    for page in pages:
        assert reproduce.show(page.parent.name, store, [0]).read_text("utf-8") == page.read_text("utf-8")
    assert main(["report", str(results / scale)]) == 0
    for name in ("report.md", "report.csv"):
        assert (results / scale / name).read_text("utf-8") == (RESULTS / scale / name).read_text("utf-8")
    for page in (*pages, RESULTS / scale / "report.md"):
        empty = r"^\|[^|\n]*\|[^|\n]*(?:\| – ){3,}\|$"
        assert re.findall(empty, page.read_text("utf-8"), re.MULTILINE) == [], page
