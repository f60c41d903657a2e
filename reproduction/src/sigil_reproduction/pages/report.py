"""One self-contained page of all that was measured: tables, figures, and whether the paper's claims hold.

The page is made from the cells alone and shows what was measured; what was not is one line at the end.
"""

from __future__ import annotations

import csv
import io
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from sigil import files
from sigil.errors import ExperimentError
from sigil.pages import drawing, figures, markup
from sigil.pages.drawing import NOTHING, Section, render, shown
from sigil_reproduction import registry
from sigil_reproduction.pages import claims, overview, prose
from sigil_reproduction.pages.prose import FIGURES
from sigil_reproduction.runner import costs, scales
from sigil_reproduction.runner.experiment import Experiment, Finding, Measured, listed
from sigil_reproduction.runner.scales import SCALES
from sigil_reproduction.runner.store import Cell, Store, computed_on

COLUMNS = ("experiment", "table", "row", "column", "quantity", "ours", "deviation", "paper")
# How Sigil knows the tables that it wrote, and may replace.
MARKDOWN = files.Magic(b"# The paper's tables and figures at the scale `")
CSV = files.Magic(",".join(COLUMNS).encode() + b"\n")
READING = (
    "The paper's number stands in brackets beside ours, which is the mean over seeds, ± their standard "
    "deviation where there are several. Agreement is judged in shape, by the rule that each claim states."
)


@dataclass(frozen=True)
class Written:
    """The three files of a report."""

    page: Path
    markdown: Path
    csv: Path


def files_of(results: Path, out: Path | None = None) -> Written:
    """Where the report on `results` is written: beside them, or as `out` and files of the same name."""
    page = out or results.resolve() / "report.html"
    return Written(page, page.with_suffix(".md"), page.with_suffix(".csv"))


def write(results: Path, out: Path | None = None, *, summary: Path | None = None) -> Written:
    """Write the report on `results` (such as results/cpu) as HTML, Markdown and CSV.

    `summary` is a page in which the results are summarised, such as README.md, to be filled too.
    """
    written = files_of(results, out)
    results = results.resolve()
    if results.name not in SCALES or not results.is_dir():
        raise ExperimentError(
            f"{results} holds no results; give a folder such as results/cpu, named by one of the scales "
            f"{', '.join(SCALES)}, or the folders of finished runs."
        )
    store = Store(results.name, results=results.parent, runs=Path("runs"))
    if summary is not None:
        prose.check_summary(store, summary)
    prose.write_notes(store)
    before = written.markdown.read_text("utf-8") if MARKDOWN.matches(written.markdown) else ""
    opening, opening_text, records = _opening(store, written.page.parent / FIGURES, before)
    intro, reasons, rest = _notes(results / "README.md")
    sections, texts = [], []
    findings: list[Finding] = []
    planned = _planned(store)
    for name, cells in planned.items():
        if claims.is_measured(store, name):
            section, text, rows, judged = _section(registry.get(name), store, cells, reasons.get(name, ""))
            sections.append(section)
            texts.append(text)
            records += rows
            findings += judged
    everything = [cell for cells in planned.values() for cell in cells]
    first = [cell for name in planned for cell in registry.get(name).cells(scales.get(store.scale), [0])]
    missing = costs.unmeasured(store, first, "all")
    scale, anchors = scales.get(store.scale), [section.name for section in sections]
    how = "\n\n".join(
        part for part in (scale.note, costs.spent(store, everything), _at_the_papers_scale()) if part
    )
    files.write(
        written.page,
        render(
            title=f"The paper's tables and figures at the scale “{scale.name}”",
            lead=opening + markup.html(f"{how}\n\n{intro}", anchors) + _counted(findings),
            sections=sections,
            rest=markup.html(f"{rest}\n\n{missing}", anchors),
            command=f"sigil report {results.parent.name}/{results.name}",
        ),
        replace=files.PAGE,
        raises=ExperimentError,
    )
    files.write(
        written.markdown,
        f"# The paper's tables and figures at the scale `{scale.name}`\n\n{opening_text}\n{how}\n\n"
        + "\n".join([*texts, f"{missing}\n"] if missing else texts),
        replace=MARKDOWN,
        raises=ExperimentError,
    )
    table = io.StringIO()
    writer = csv.DictWriter(table, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    files.write(written.csv, table.getvalue(), replace=CSV, raises=ExperimentError)
    if summary is not None:
        prose.write_summary(store, summary)
    return written


def _planned(store: Store) -> dict[str, list[Cell]]:
    """The cells of each experiment, without those experiments whose results are at home at another scale."""
    home = claims.home_of(store)
    return {
        name: claims.cells_of(store, name)
        for name in registry.EXPERIMENTS
        if home is None or not claims.is_measured(home, name)
    }


def _at_the_papers_scale() -> str:
    return costs.on_a_gpu(
        cell for experiment in registry.EXPERIMENTS.values() for cell in experiment.cells(scales.PAPER, [0])
    )


def _opening(store: Store, folder: Path, before: str) -> tuple[Markup, str, list[dict[str, str]]]:
    """What a reader sees first, as HTML, as Markdown and as rows: the claims, then four figures.

    The figures are also saved as pictures in the folder, for Markdown; those that the report showed before
    are replaced.
    """
    table = claims.page(store)
    with tempfile.TemporaryDirectory() as drafts, figures.collected() as drawn:
        home = claims.home_of(store)
        pictures = overview.page(store, Path(drafts)) if home is None or not home.results.exists() else []
        body = drawing.html([*table, *pictures], lambda picture: shown(picture, Path(drafts), drawn))
        if pictures:
            folder.mkdir(exist_ok=True)
        for picture in sorted(Path(drafts).iterdir()):
            ours = f"]({FIGURES}/{picture.name})" in before
            files.write(folder / picture.name, picture.read_bytes(), replace=ours, raises=ExperimentError)
    text = drawing.markdown([*table, *pictures], pictures=f"{FIGURES}/")
    return body, text, [{"experiment": "claims", **record} for record in drawing.records(table)]


def _section(
    experiment: Experiment, store: Store, cells: Sequence[Cell], reason: str
) -> tuple[Section, str, list[dict[str, str]], list[Finding]]:
    """An experiment's section of the page, the same as Markdown, its rows of the CSV file, its findings."""
    found = store.results_of(cells)
    measured = Measured(cells, found)
    findings = experiment.findings(measured, scales.get(store.scale))
    with tempfile.TemporaryDirectory() as folder, figures.collected() as drawn:
        page = experiment.page(measured, Path(folder))
        body = drawing.html(page, lambda picture: shown(picture, Path(folder), drawn))
    missing = costs.unmeasured(store, cells, experiment.name, experiment.seeds(store))
    made = f"Made by `sigil reproduce {experiment.name} --scale {store.scale}`."
    foot = " ".join(part for part in (computed_on(found.values()), missing or made) if part)
    why = markup.inline(reason, list(registry.EXPERIMENTS))
    section = Section(
        experiment.name,
        experiment.caption,
        Markup("\n").join(part for part in (_listed(findings), _reason(why), body) if part),
        _word(findings),
        markup.inline(foot),
    )
    # Pictures lie beside the experiment's own page, whose links begin one folder below the report's.
    text = drawing.markdown(page, pictures=f"{experiment.name}/").rstrip().replace("](../", "](")
    parts = [f"## {experiment.name}", experiment.caption, listed(findings), reason, text, foot]
    records = [{"experiment": experiment.name, **record} for record in drawing.records(page)]
    return section, "\n\n".join(part for part in parts if part) + "\n", records, findings


def _word(findings: Sequence[Finding]) -> str:
    """All findings of an experiment in one word."""
    known = [finding.agrees for finding in findings if finding.agrees is not None]
    if not known:
        return "unknown" if findings else ""
    return "agrees" if all(known) else "differs" if not any(known) else "partly"


def _listed(findings: Sequence[Finding]) -> Markup:
    """Findings as a list, each with its word."""
    if not findings:
        return NOTHING
    items = Markup("\n").join(
        Markup('<li><span class="badge {}">{}</span><span>{}</span></li>').format(
            finding.word, finding.word, markup.inline(finding.text)
        )
        for finding in findings
    )
    return Markup('<ul class="findings">\n{}\n</ul>').format(items)


def _reason(text: Markup) -> Markup:
    return Markup('<div class="reason"><p>{}</p></div>').format(text) if text else NOTHING


def _counted(findings: Sequence[Finding]) -> Markup:
    """How many claims hold, and how to read the numbers beside ours."""
    if not findings:
        return NOTHING
    counts = {
        "claims that hold here": sum(finding.agrees is True for finding in findings),
        "that do not": sum(finding.agrees is False for finding in findings),
        "that cannot be told": sum(finding.agrees is None for finding in findings),
    }
    parts = (Markup("<div><dt>{}</dt><dd>{}</dd></div>").format(*pair) for pair in counts.items())
    return Markup('\n<dl class="numbers">\n{}\n</dl>\n<p>{}</p>\n').format(Markup("\n").join(parts), READING)


def _notes(file: Path) -> tuple[str, dict[str, str], str]:
    """What was written by hand about these results: the beginning, a reason for each experiment, the rest.

    The file is results/SCALE/README.md. Its first table has a row for each experiment, which it links to.
    """
    if not file.exists():
        return "", {}, ""
    parts = list(markup.blocks(file.read_text("utf-8")))
    place = next((number for number, block in enumerate(parts) if markup.is_table(block)), len(parts))
    reasons = {}
    for line in parts[place][2:] if place < len(parts) else []:
        match = re.match(r"\| \[[^\]]+\]\((?P<name>[\w-]+)/?\) \| (?P<text>.*) \|$", line.strip())
        if match is not None:
            reasons[match["name"]] = match["text"]
    before = [block for block in parts[:place] if not block[0].startswith("# ")]
    return _joined(before), reasons, _joined(parts[place + 1 :])


def _joined(parts: Sequence[Sequence[str]]) -> str:
    return "\n\n".join("\n".join(block) for block in parts)
