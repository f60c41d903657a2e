"""The whole machinery at smoke scale: every experiment, interruption, missing cells."""

from __future__ import annotations

import json
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.commands import Command
from sigil.cli.main import main
from sigil.errors import ExperimentError
from sigil.federation.precision import choose
from sigil.federation.progress import MetricsObserver
from sigil.federation.run import train
from sigil.hardware import in_words
from sigil.pages import drawing
from sigil_reproduction import registry, reproduce
from sigil_reproduction.pages import claims, prose
from sigil_reproduction.runner import scales
from sigil_reproduction.runner import store as store_module
from sigil_reproduction.runner.store import Cell, Store, computed_on


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every experiment, once, by the command line."""
    folder = tmp_path_factory.mktemp("smoke")
    places = ["--results", str(folder / "results"), "--runs", str(folder / "runs")]
    assert main(["reproduce", "all", "--scale", "smoke", "--jobs", "2", "--quiet", *places]) == 0
    return folder


def make_store(folder: Path) -> Store:
    return Store("smoke", results=folder / "results", runs=folder / "runs")


def test_every_cell_is_measured_and_every_page_written(everything: Path) -> None:
    store = make_store(everything)
    for name, done, count in reproduce.status(list(registry.EXPERIMENTS), store, [0]):
        assert done == count > 0, name
        page = (store.results / name / "README.md").read_text()
        assert "not run" not in page
        assert f"sigil reproduce {name} --scale smoke" in page
        for line in page.splitlines():
            if line.startswith("!["):
                picture = store.results / name / line.split("(")[1].rstrip(")")
                assert picture.read_bytes().startswith(b"\x89PNG")


def test_smoke_names_its_data_and_judges_nothing(everything: Path) -> None:
    store = make_store(everything)
    pages = {name: (store.results / name / "README.md").read_text() for name in registry.EXPERIMENTS}
    for name, page in pages.items():
        assert not re.search(r"cifar|tiny-imagenet", page, re.IGNORECASE), name
        assert not re.search(r"^- (\*\*differs|agrees|cannot be)", page, re.MULTILINE), name
    assert "| resnet18 / digits |" in pages["fidelity"]
    assert "| vgg11 / digits32 |" in pages["fidelity"]


def test_the_report_of_everything_has_no_gap(everything: Path) -> None:
    summary, results = everything / "summary.md", everything / "results"
    (results / prose.SUMMARY).write_text('{{ n("fidelity", "vgg11 strength 0.1") }}')
    summary.write_text(f"{prose.BEGIN}\n{prose.END}\n")
    assert main(["report", str(results / "smoke"), "--summary", str(summary)]) == 0
    assert re.fullmatch(rf"{prose.BEGIN}\n[\d.]+\n{prose.END}\n", summary.read_text())
    page = (everything / "results" / "smoke" / "report.html").read_text("utf-8")
    assert scales.NOT_JUDGED in page.replace("&#39;", "'")
    assert "CIFAR" not in page
    assert not re.search(r'class="badge (agrees|differs|partly)"', page)
    assert "not run" not in page
    assert "cannot be tested" not in page
    for name in registry.EXPERIMENTS:
        assert f'<section id="{name}">' in page


def test_a_cell_says_how_it_was_made(everything: Path) -> None:
    cells = sorted((everything / "results/smoke/fidelity").glob("*.json"))
    assert len(cells) == 16
    for path in cells:
        content = json.loads(path.read_text())
        assert path.stat().st_size < 20_000
        assert content["settings"][0]["run"]["seed"] == content["seed"] == 0
        assert {"torch", "numpy", "python", "sigil"} <= set(content["versions"])
        assert content["machine"] == choose("auto", "float32").describe() | {"threads": 1}
        assert content["training_machines"] == [content["machine"]]
        assert 0 <= content["numbers"]["accuracy"] <= 100
        marked = content["settings"][0]["watermark"]["strength"] > 0
        assert marked == ("wsr" in content["numbers"])


def test_a_page_names_the_processors_of_its_cells(everything: Path) -> None:
    page = (everything / "results/smoke/fidelity/README.md").read_text()
    assert f"Computed on: {in_words(choose('auto', 'float32').describe())} (16 cells)." in page


def test_cells_of_before_processors_were_recorded_are_read_and_say_so(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    old, new = Cell("fidelity", "old", 0, ()), Cell("fidelity", "new", 0, ())
    store.measure(new, lambda cell, runs, store: {"accuracy": 1.0})
    folder = store.results / "fidelity"
    content = json.loads((folder / "new.seed0.json").read_text())
    here = in_words(content["machine"])
    del content["machine"], content["training_machines"]
    (folder / "old.seed0.json").write_text(json.dumps(content))
    assert store.results_of([old])["old", 0].numbers == {"accuracy": 1.0}
    assert computed_on(store.results_of([old]).values()) == ""
    both = computed_on(store.results_of([old, new]).values())
    assert both == f"Computed on: processor not recorded (1 cell); {here} (1 cell)."


def test_tables_share_trainings(everything: Path) -> None:
    store, scale = make_store(everything), scales.get("smoke")
    cells = {
        (cell.experiment, cell.file): cell
        for name in registry.EXPERIMENTS
        for cell in registry.get(name).cells(scale, [0])
    }
    wanted = {store.folder(settings) for cell in cells.values() for settings in cell.trainings}
    # Trainings have the hash of their settings as a name; one experiment keeps what it trains itself.
    own = {"carriers"}
    found = {
        path for path in store.runs.iterdir() if path.is_dir() and path.name.partition(" ")[0] not in own
    }
    assert found == wanted
    # The IID, balanced, 4-client and noise-free trainings and those that are attacked are fidelity's own.
    assert len(wanted) < len(cells) - 50


def test_finished_cells_are_not_computed_again(everything: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError("nothing was missing")

    monkeypatch.setattr(reproduce, "_measure", refuse)
    reproduce.reproduce(["fidelity"], make_store(everything), seeds=[0])


def test_a_missing_cell_is_shown_as_missing_and_only_it_is_computed(everything: Path, tmp_path: Path) -> None:
    store = make_store(everything)
    removed = store.results / "fidelity" / "resnet18_strength_0.1.seed0.json"
    others = {path: path.stat().st_mtime_ns for path in removed.parent.glob("*.json") if path != removed}
    before = json.loads(removed.read_text())
    removed.unlink()
    page = reproduce.show("fidelity", store, [0]).read_text()
    assert "not run" not in page
    assert page.count("Not measured: 1 cell (") == 1
    assert "| acc " in page
    said: list[str] = []
    reproduce.reproduce(["fidelity"], store, seeds=[0], jobs=1, say=said.append)
    assert "fidelity: resnet18 strength 0.1, seed 0 measured; 0 cells left" in said
    after = json.loads(removed.read_text())
    assert after["numbers"] == before["numbers"]
    assert {path: path.stat().st_mtime_ns for path in others} == others


def test_a_page_keeps_the_seeds_that_were_measured_before(tmp_path: Path) -> None:
    """Asking for one seed must not draw a page of three with one: the cells of all of them are there."""
    store, experiment = make_store(tmp_path), registry.get("fidelity")
    for seed, accuracy in ((0, 10.0), (1, 20.0), (2, 60.0)):
        for cell in experiment.cells(scales.get("smoke"), [seed]):
            number = accuracy
            store.measure(replace(cell, trainings=()), lambda cell, runs, store: {"accuracy": number})  # noqa: B023
    page = reproduce.show("fidelity", store, [0]).read_text()
    assert "Not measured" not in page
    assert "30.0 ± 26.5" in page
    assert experiment.seeds(store) == [0, 1, 2]
    assert experiment.seeds(store, [5]) == [0, 1, 2, 5]


def test_honest_servers_of_further_seeds_make_no_seed_of_a_page(tmp_path: Path) -> None:
    store, experiment = make_store(tmp_path), registry.get("scrutinizer")
    assert experiment.seeds(store) == [0]
    cells = [cell for cell in experiment.cells(scales.get("smoke"), [0]) if cell.experiment == "scrutinizer"]
    assert {cell.seed for cell in cells} == {0, 1, 2}
    for cell in cells:
        store.measure(replace(cell, trainings=()), lambda cell, runs, store: {"accuracy": 1.0})
    assert experiment.seeds(store) == [0]


def test_only_cells_of_finished_trainings_are_measured_if_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of fidelity's trainings is there; splitguard's cells would train while they are measured."""
    store = make_store(tmp_path)
    (first, *_) = registry.get("fidelity").cells(scales.get("smoke"), [0])
    store.train(first.trainings[0])
    places = ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
    names = ["fidelity", "splitguard"]
    assert main(["reproduce", *names, "--trained", "--jobs", "1", *places]) == 0
    missing = sum(len(registry.get(name).cells(scales.get("smoke"), [0])) for name in names)
    said = capsys.readouterr().out
    assert f"1 of {missing} missing cells can be measured without training" in said
    assert [path.name for path in store.runs.iterdir()] == [store.folder(first.trainings[0]).name]
    assert [path.name for path in store.results.rglob("*.json")] == [first.file]
    assert "Not measured: 15 cells (" in (store.results / "fidelity" / "README.md").read_text()


def test_a_run_at_the_papers_scale_goes_on_after_an_interruption_and_fits_the_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything as at `paper`, its recording too, but for a small task and three rounds."""
    paper, smoke = scales.PAPER, scales.SMOKE
    reduced = replace(paper, base={**smoke.base, "federation": {**smoke.base["federation"], "rounds": 3}})
    monkeypatch.setitem(scales.SCALES, "paper", replace(reduced, models=smoke.models))
    stores = [
        Store("paper", results=tmp_path / f"{name} results", runs=tmp_path / f"{name} runs")
        for name in ("whole", "interrupted")
    ]
    rounds: list[int] = []

    def log(numbers: Any, step: int) -> None:
        rounds.append(step)
        if rounds == [1]:
            raise KeyboardInterrupt

    def interrupted(*arguments: Any, **options: Any) -> Any:
        return train(*arguments, **options, metrics_observers=[MetricsObserver(log)])

    names = ("resnet18 clean", "resnet18 strength 0.1")
    experiment = registry.get("fidelity")
    cells = [cell for cell in experiment.cells(scales.get("paper"), [0]) if cell.name in names]
    for cell in cells:
        stores[0].measure(cell, experiment.measure)
    monkeypatch.setattr(store_module, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stores[1].measure(cells[0], experiment.measure)
    assert not stores[1].has(cells[0])
    for cell in cells:
        stores[1].measure(cell, experiment.measure)
    # The first training went on after its first round; the second was made whole.
    assert rounds == [1, 2, 3, 1, 2, 3]
    whole, again = ([store.result(cell).numbers for cell in cells] for store in stores)
    assert whole == again
    held = {one.claim.text: one for one in claims.held(stores[1])}
    assert held["Marking at λ = 0.1 leaves accuracy as it is, ResNet-18 (within 1 point)"].found is not None
    table = drawing.markdown(claims.page(stores[1]))
    assert "| The mark embeds at λ = 0.1 (WSR ≥ 95 %) | 100.0 % |" in table
    assert "Not measured yet: " in table


def test_status_counts(everything: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = ["--results", str(everything / "results"), "--runs", str(everything / "runs")]
    assert main(["reproduce", "fidelity", "--status", "--seeds", "2", *places]) == 0
    assert capsys.readouterr().out.split() == ["fidelity", "16", "of", "32", "cells"]


def test_unknown_names_are_one_sentence(refused: Command) -> None:
    assert "did you mean 'fidelity'" in refused("reproduce", "fidelty")
    assert "choose one of smoke, cpu, desk, paper" in refused("reproduce", "fidelity", "--scale", "huge")


def test_a_damaged_cell_is_named(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    cell = Cell("fidelity", "a b", 0, ())
    path = store.results / "fidelity" / "a_b.seed0.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(ExperimentError, match="delete it"):
        store.results_of([cell])


def test_a_failing_cell_stops_with_its_error_and_keeps_the_others(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    scale = scales.get("smoke")
    settings = scale.settings(seed=0, data={"name": "digits"}, watermark={"strength": 0.0})
    store.measure(
        Cell("fidelity", "good", 0, (settings,)), lambda cell, runs, store: {"rounds": len(runs[0].metrics)}
    )

    def fail(cell: Cell, runs: Any, store: Store) -> dict[str, Any]:
        raise ExperimentError("no")

    with pytest.raises(ExperimentError, match="no"):
        store.measure(Cell("fidelity", "bad", 0, (settings,)), fail)
    assert [path.name for path in (store.results / "fidelity").iterdir()] == ["good.seed0.json"]


def test_a_process_that_is_killed_is_one_sentence() -> None:
    with (
        pytest.raises(ExperimentError, match=r"ended from outside.* goes on from there"),
        reproduce._processes(1) as pool,
    ):
        pool.submit(signal.raise_signal, signal.SIGKILL).result()


def test_a_training_of_two_threads_takes_two_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy: list[int] = []
    most: list[int] = []

    def work(threads: int) -> None:
        busy.append(threads)
        most.append(sum(busy))
        time.sleep(0.02)
        busy.remove(threads)

    monkeypatch.setattr(reproduce, "_train", lambda store, settings: work(settings.run.threads or 2))
    monkeypatch.setattr(reproduce, "_measure_cell", lambda store, cell: work(1))
    scale, store = scales.get("smoke"), make_store(tmp_path)
    cells = [
        Cell("fidelity", f"{number}", number, (scale.settings(seed=number, run={"threads": threads}),))
        for number, threads in enumerate((1, 2, 1, 1, 3, 0))
    ]

    class Threads(ThreadPoolExecutor):
        size = 2

    said: list[str] = []
    with Threads(8) as pool:
        reproduce._measure(cells, store, pool, said.append)
    assert len(said) == len(cells)
    # What asks for more threads than there are places, or for all of them, is alone.
    assert max(sums for sums in most if sums != 3) == 2
    assert most.count(3) == 1
