"""Prose about results: every number in it comes from a cell, and the pages are what the cells give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sigil.cli.main import main
from sigil.errors import ExperimentError
from sigil_reproduction.beyond import frontier
from sigil_reproduction.pages import prose
from sigil_reproduction.runner.intervals import NOT_RUN
from sigil_reproduction.runner.store import Cell, Store

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "reproduction" / "results"
TEMPLATES = sorted([*RESULTS.glob("*.jinja"), *RESULTS.glob(f"*/{prose.NOTES}")])
# Names that have digits in them: strengths, cuts, windows, architectures, settings of an experiment.
NAMES = (
    r"λ = [\d.]+( and [\d.]+)?",
    r"layer\d",
    r"R_wm \d+",
    r"ResNet-18|VGG11|MobileNetV2|DenseNet-121|CIFAR-10|INT[48]|log10 p|1/100",
    r"pruning \d+ %|in 256|\d+ bits|with 160|\d+ clients|with 50|100 times the penalty",
    r"Dirichlet [\d.]+|log-normal \d|\(paper 9\)|256 random inputs|from 128",
    r"^\d\. ",
)


def store(scale: str) -> Store:
    return Store(scale, results=RESULTS, runs=RESULTS)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.relative_to(RESULTS)))
def test_no_number_is_typed(path: Path) -> None:
    text = re.sub(r"\{\{.*?\}\}|\{%.*?%\}", "", path.read_text("utf-8"), flags=re.DOTALL)
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)
    for name in NAMES:
        text = re.sub(name, "", text, flags=re.MULTILINE)
    assert re.findall(r".{0,40}\d.{0,40}", text) == []


@pytest.mark.parametrize("path", sorted(RESULTS.glob(f"*/{prose.NOTES}")), ids=lambda path: path.parent.name)
def test_the_page_of_a_scale_is_what_its_cells_give(path: Path) -> None:
    """After new cells: `sigil report results/SCALE`."""
    page = (path.parent / "README.md").read_text("utf-8")
    assert page == prose.render(path.read_text("utf-8"), store(path.parent.name))


def test_the_readme_says_what_the_cells_of_desk_give() -> None:
    """After new cells: `sigil report results/desk --summary ../README.md`."""
    page = ROOT / "README.md"
    shown = page.read_text("utf-8").split(prose.BEGIN)[1].split(prose.END)[0].strip()
    assert shown == prose.render((RESULTS / prose.SUMMARY).read_text("utf-8"), store("desk")).strip()
    assert NOT_RUN not in shown
    # What a mark costs in accuracy is an interval and a test, not that no difference was seen.
    assert prose.render('{{ gained("resnet18", 0.1) }}', store("desk")) in shown
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", shown):
        assert (ROOT / link).exists(), link


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.name
)
def test_no_number_of_results_is_typed_into_prose(page: Path) -> None:
    """No paragraph that links to results has a rate, nor has README outside of what is drawn."""
    # That no difference was seen shows nothing: an interval and two one-sided tests say what is shown.
    assert not re.search(r"what\s+seeds\s+differ", page.read_text("utf-8"))
    text = re.sub(f"{prose.BEGIN}.*?{prose.END}", "", page.read_text("utf-8"), flags=re.DOTALL)
    rate = r"\d+\.\d+(?: ?%| points| and \d)|log10 p[^.]{0,20} [−-]\d"
    for paragraph in re.split(r"\n\n|\n(?=\||- )", text):
        if page.name == "README.md" or "reproduction/results/" in paragraph:
            assert re.findall(rate, paragraph) == [], paragraph
        if "reproduction/results/cpu/" in paragraph:  # what the quick scale measured stays on its pages
            assert re.findall(r"\b\d+ of \d+\b|\b\d{2,}\b", paragraph) == [], paragraph


def test_every_page_of_results_that_is_named_is_there() -> None:
    """A number was said to be on a page that had long been removed."""
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "reproduction" / "src").rglob("*.py")]
    for path in [*sources, *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]:
        for name in re.findall(r"results/(?:cpu|desk)/[a-z-]+", path.read_text("utf-8")):
            assert (ROOT / "reproduction" / name).exists(), f"{path}: {name}"


def test_what_a_copy_survives_is_what_the_cells_say() -> None:
    """Each row of the table of the page on tracing is one of `desk/copies`, rounded."""

    def rows(page: Path, heading: str) -> list[list[str]]:
        table = re.search(rf"\| {heading}.*?\n\n", page.read_text("utf-8") + "\n\n", re.DOTALL)
        assert table is not None
        return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table[0].splitlines()[2:-1]]

    cells = RESULTS / "desk" / "copies" / "README.md"
    measured = rows(cells, "what was done") + rows(cells, "copies")
    shown = rows(ROOT / "docs" / "tracing.md", "what was done to the copy")
    assert len(shown) > 10
    for name, accuracy, deviations in shown:
        said = re.findall(r"[\d.]+", deviations.partition(":")[0])
        assert any(
            accuracy == row[1]
            and all(
                abs(float(ours) - float(theirs)) <= (0.05 if "." in ours else 0.5) + 1e-9
                for ours, theirs in zip(said, re.findall(r"[\d.]+", row[3]), strict=False)
            )
            for row in measured
        ), name


def test_every_page_of_results_with_prose_has_a_template() -> None:
    scales = [folder for folder in RESULTS.iterdir() if (folder / "report.md").exists()]
    assert scales
    assert [folder.name for folder in scales if not (folder / prose.NOTES).exists()] == []


def put(place: Store, cell: str, seed: int, wsr: float) -> None:
    numbers = {"wsr": wsr, "accuracy": 80.0, "curves": {"round": [1], "accuracy": [0.8], "wsr": [wsr / 100]}}
    place.measure(Cell("fidelity", cell, seed, ()), lambda cell, runs, store: numbers)


def test_numbers_are_means_over_seeds_and_gaps_say_so(tmp_path: Path) -> None:
    place = Store("cpu", results=tmp_path, runs=tmp_path)
    for seed, wsr in enumerate((98.0, 100.0)):
        put(place, "resnet18 strength 0.1", seed, wsr)
    template = '{{ n("fidelity", "resnet18 strength 0.1") }} % {{ pm("fidelity", "resnet18 strength 0.1") }} '
    assert prose.render(template, place) == "99.0 % 99.0 ± 1.4 "
    assert prose.render('{{ n("fidelity", "vgg11 clean", "accuracy") }} %', place) == "not run"
    assert prose.render('{{ gained("resnet18", 0.1) }}', place) == "not run"
    assert prose.render('{{ seeds("fidelity", "resnet18 strength 0.1") }}', place) == "2"


def test_the_seed_that_proves_least_decides_what_is_proven(tmp_path: Path) -> None:
    place = Store("cpu", results=tmp_path, runs=tmp_path)
    cell = "resnet18 strength 0.1"
    asked = f'"fidelity", "{cell}", "wsr"'
    assert prose.render(f'{{{{ proven({asked}, "plain") }}}} {{{{ largest({asked}) }}}}', place) == (
        "not run not run"
    )
    for seed, log10_p in enumerate((-40.0, -20.0)):
        put(place, cell, seed, log10_p)
    assert prose.render(f"{{{{ largest({asked}) }}}}", place) == "-20.0"
    assert prose.render(f'{{{{ proven({asked}, "plain") }}}}', place) == "**no**"
    assert prose.render(f'{{{{ proven({asked}, "stamped") }}}}', place) == "yes"


def test_what_an_attack_costs_is_a_difference(tmp_path: Path) -> None:
    place = Store("desk", results=tmp_path, runs=tmp_path)
    assert prose.render('{{ lost("paper fine-tuning, 1 epoch") }}', place) == "not run"
    for name, accuracy in (("paper none", 80.0), ("paper fine-tuning, 1 epoch", 77.5)):
        place.measure(Cell("curves", name, 0, ()), lambda cell, runs, store, is_=accuracy: {"accuracy": is_})
    assert prose.render('{{ lost("paper fine-tuning, 1 epoch") }}', place) == "2.5"
    # A second seed whose attack was not made does not count.
    place.measure(Cell("curves", "paper none", 1, ()), lambda cell, runs, store: {"accuracy": 90.0})
    assert prose.render('{{ lost("paper fine-tuning, 1 epoch") }}', place) == "2.5"


MISTAKES = (
    '{{ n("fidelity", "resnet19 clean") }}',
    "{{ nonsense }}",
    "{{ n(",
    '{{ n("fidelty", "a") }}',
)


@pytest.mark.parametrize("template", MISTAKES)
def test_a_mistake_in_a_template_is_one_sentence(tmp_path: Path, template: str) -> None:
    with pytest.raises(ExperimentError):
        prose.render(template, Store("cpu", results=tmp_path, runs=tmp_path))


def test_the_summary_replaces_what_lies_between_its_marks(tmp_path: Path) -> None:
    place = Store("cpu", results=tmp_path / "results", runs=tmp_path)
    put(place, "vgg11 strength 0.1", 0, 99.0)
    (tmp_path / "results" / prose.SUMMARY).write_text('WSR {{ n("fidelity", "vgg11 strength 0.1") }} %')
    page = tmp_path / "README.md"
    page.write_text(f"Before.\n{prose.BEGIN}\nold\n{prose.END}\nAfter.\n")
    prose.write_summary(place, page)
    assert page.read_text() == f"Before.\n{prose.BEGIN}\nWSR 99.0 %\n{prose.END}\nAfter.\n"
    page.write_text("No marks.\n")
    assert main(["report", str(place.results), "--summary", str(page)]) == 2
    assert page.read_text() == "No marks.\n"


def test_the_search_for_the_cheapest_removal_decides_what_the_readme_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A price below half a point is said in a sentence, and both is a row only if a recipe reaches it."""
    template = (RESULTS / prose.SUMMARY).read_text("utf-8")
    cheap = "less than half a point"

    def searched(prices: dict[str, float]) -> str:
        trials = {
            goal: frontier.Recipe("trial 0", {}, [{}], lost, [lost], seconds=120.0)
            for goal, lost in prices.items()
        }
        monkeypatch.setattr(frontier, "best", lambda _, goal, kind: trials.get(goal))
        return prose.render(template, store("desk"))

    without = searched({})
    assert "rid of mark and origin**" not in without
    assert cheap not in without
    found = searched({"mark": 0.34, "both": 2.26})
    spent = "**, in 2 minutes of one core |"
    assert f"| **the cheapest way found to be rid of the mark{spent} **0.3** | **no** | **no** | – |" in found
    assert f"rid of mark and origin{spent} **2.3** | **no** | **no** | **no** |" in found
    assert f"rid of the mark for {cheap}" in found
    # As long as recipes are left to try, the README says so.
    monkeypatch.setattr(frontier, "is_done", lambda measured: False)
    assert "the search has only begun" in searched({})
    monkeypatch.setattr(frontier, "is_done", lambda measured: True)
    assert "the search has only begun" not in searched({})
