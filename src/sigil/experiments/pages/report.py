"""One self-contained page of all that was measured: tables, figures, and whether the paper's claims hold.

The page is made from the cells alone. What was not measured is shown as missing.
"""

from __future__ import annotations

import base64
import csv
import io
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sigil.errors import ExperimentError
from sigil.experiments.lab import registry, scales
from sigil.experiments.lab.experiment import Experiment, Finding, listed
from sigil.experiments.lab.scales import SCALES
from sigil.experiments.lab.store import Cell, Store
from sigil.experiments.pages import figures, markup
from sigil.experiments.pages.tables import Table

NOTHING = Markup("")
COLUMNS = ("experiment", "table", "row", "column", "quantity", "ours", "deviation", "paper")


@dataclass(frozen=True)
class Section:
    """One experiment (or run) on the page."""

    name: str
    caption: str
    body: Markup
    findings: list[Finding] = field(default_factory=list)
    reason: Markup = NOTHING
    foot: Markup = NOTHING

    @property
    def verdict(self) -> str:
        """All findings in one word."""
        known = [finding.agrees for finding in self.findings if finding.agrees is not None]
        if not known:
            return "unknown" if self.findings else "none"
        return "agrees" if all(known) else "differs" if not any(known) else "partly"


@dataclass(frozen=True)
class Written:
    """The three files of a report."""

    page: Path
    markdown: Path
    csv: Path


def write(results: Path, out: Path | None = None) -> Written:
    """Write the report on `results` (such as results/cpu) as HTML, Markdown and CSV."""
    results = results.resolve()
    if results.name not in SCALES or not results.is_dir():
        raise ExperimentError(
            f"{results} holds no results; give a folder such as results/cpu, named by one of the scales "
            f"{', '.join(SCALES)}, or the folders of finished runs."
        )
    store = Store(results.name, results=results.parent, runs=Path("runs"))
    page = out or results / "report.html"
    intro, reasons, rest = _notes(results / "README.md")
    sections, texts, records = [], [], []
    for name, experiment in registry.EXPERIMENTS.items():
        section, text = _section(experiment, store, reasons.get(name, ""))
        sections.append(section)
        texts.append(text)
        records += _records(name, text)
    scale = scales.get(store.scale)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(
        render(
            title=f"The paper's tables and figures at the scale “{scale.name}”",
            lead=markup.html(f"{scale.note}\n\n{intro}", _no_picture, anchors=list(registry.EXPERIMENTS)),
            sections=sections,
            rest=markup.html(rest, _no_picture, anchors=list(registry.EXPERIMENTS)),
            command=f"sigil report {results.parent.name}/{results.name}",
        ),
        "utf-8",
    )
    written = Written(page, page.with_suffix(".md"), page.with_suffix(".csv"))
    written.markdown.write_text(
        f"# The paper's tables and figures at the scale `{scale.name}`\n\n{scale.note}\n\n"
        + "\n".join(texts),
        "utf-8",
    )
    table = io.StringIO()
    writer = csv.DictWriter(table, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    written.csv.write_text(table.getvalue(), "utf-8")
    return written


def render(*, title: str, lead: Markup, sections: Sequence[Section], rest: Markup, command: str) -> str:
    """The page as HTML text."""
    findings = [finding for section in sections for finding in section.findings]
    environment = Environment(
        loader=PackageLoader("sigil.experiments.pages", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["inline"] = markup.inline
    return environment.get_template("report.html").render(
        title=title,
        lead=lead,
        sections=sections,
        rest=rest,
        command=command,
        agree=sum(finding.agrees is True for finding in findings),
        differ=sum(finding.agrees is False for finding in findings),
        unknown=sum(finding.agrees is None for finding in findings),
        made=datetime.now(UTC).date().isoformat(),
        version=version("sigil"),
    )


def _section(experiment: Experiment, store: Store, reason: str) -> tuple[Section, str]:
    """An experiment's section of the page, and the same as Markdown."""
    seeds = _seeds(experiment, store)
    cells = experiment.cells(scales.get(store.scale), seeds)
    found = store.results_of(cells)
    findings = experiment.verdict(cells, found)
    with tempfile.TemporaryDirectory() as folder, figures.collected() as pictures:
        text = experiment.show(cells, found, Path(folder))
        body = markup.html(text, lambda words, file: shown(words, Path(folder) / file, pictures))
    foot = f"{_coverage(cells, store)} `sigil reproduce {experiment.name} --scale {store.scale}`"
    section = Section(
        experiment.name,
        experiment.caption,
        body,
        findings,
        markup.inline(reason, list(registry.EXPERIMENTS)),
        markup.inline(foot),
    )
    # Pictures lie beside the experiment's own page.
    placed = re.sub(r"!\[([^\]]*)\]\(([^)]+)\)", rf"![\1]({experiment.name}/\2)", text)
    parts = [f"## {experiment.name}", experiment.caption, listed(findings), reason, placed.rstrip(), foot]
    return section, "\n\n".join(part for part in parts if part) + "\n"


def _seeds(experiment: Experiment, store: Store) -> list[int]:
    """The seeds of which anything was measured; 0 if nothing was, so that the gaps are shown."""
    first = experiment.cells(scales.get(store.scale), [0])
    folders = {store.results / cell.experiment for cell in first}
    files = [path.name for folder in folders if folder.is_dir() for path in folder.glob("*.json")]
    seeds = {int(match[1]) for name in files if (match := re.search(r"\.seed(\d+)\.json$", name))}
    return [
        seed
        for seed in sorted(seeds | {0})
        if seed == 0 or any(store.has(cell) for cell in experiment.cells(scales.get(store.scale), [seed]))
    ]


def _coverage(cells: Sequence[Cell], store: Store) -> str:
    """How much was measured, for each seed."""
    parts = []
    for seed in sorted({cell.seed for cell in cells}):
        own = [cell for cell in cells if cell.seed == seed]
        parts.append(f"{sum(map(store.has, own))} of {len(own)} of seed {seed}")
    return f"Cells measured: {', '.join(parts)}."


def _records(name: str, text: str) -> list[dict[str, str]]:
    """The tables of an experiment as rows of a CSV file."""
    tables = [Table.read(block) for block in markup.blocks(text) if markup.is_table(block)]
    return [
        {"experiment": name, "table": str(number), **record}
        for number, table in enumerate(tables, 1)
        for record in table.records()
    ]


def shown(words: str, file: Path, pictures: dict[str, str]) -> Markup:
    """A figure as SVG that takes the page's colours, or as it is where it was not drawn by us."""
    if file.name in pictures:
        drawn = pictures[file.name]
        size = re.search(r'width="([\d.]+)pt"', drawn)
        width = float(size[1]) if size is not None else 576.0
        limits = f"min-width: {0.8 * width:.0f}px; max-width: {1.4 * width:.0f}px"
        element = Markup('<div class="drawing" role="img" aria-label="{}" style="{}">{}</div>').format(
            words, limits, Markup(drawn)
        )
    else:
        encoded = base64.b64encode(file.read_bytes()).decode()
        element = Markup('<img alt="{}" src="data:image/png;base64,{}">').format(words, encoded)
    return Markup(
        '<figure><div class="scroll" tabindex="0">{}</div><figcaption>{}</figcaption></figure>'
    ).format(element, words)


def _no_picture(words: str, file: str) -> Markup:
    return NOTHING


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
