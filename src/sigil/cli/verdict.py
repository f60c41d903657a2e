"""A verdict in a terminal: a headline, the readings, and what stands behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from sigil.cli.terminal import printable

if TYPE_CHECKING:
    from sigil.verdict.report import Report

_COLOURS = {"owned": "green", "descends": "yellow", "experiment": "cyan", "not proven": "yellow"}


def show(report: Report, written: dict[str, str]) -> None:
    """Print the verdict: in colour on a terminal, otherwise as plain, aligned lines."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from sigil.verdict import wording

    headline = wording.titles(report).headline.replace("{owner}", printable(report.owner))
    rows = _rows(report) + [(name, printable(path)) for name, path in written.items()]
    console = Console(highlight=False)
    if console.is_terminal:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in rows:
            table.add_row(Text("  " + name), Text(value))
        style = f"bold {_COLOURS[wording.outcome(report)]}"
        console.print(Text(headline, style=style), "", table, sep="\n")
    else:
        label = max(len(name) for name, _ in rows)
        lines = [f"  {name:<{label}}  {value}" for name, value in rows]
        typer.echo("\n".join([headline, "", *lines]))
    ending = wording.ending(report)
    if ending:
        typer.echo("\n" + ending)


def _rows(report: Report) -> list[tuple[str, str]]:
    from sigil.verdict import wording

    suspect = report.suspect
    return [
        *(("experiment", printable(reason)) for reason in report.reasons),
        ("success rate", wording.rate_and_proof(report)),
        *(("proof from", line) for line in [wording.rate_if_all_agree(report)] if line),
        ("by chance", wording.by_chance(report)),
        ("corrected", wording.corrections(report)),
        *_trusted(report),
        *((f"on {reading.kind}", wording.reading(reading)) for reading in report.readings),
        ("paper's rule", wording.paper_rule(report)),
        ("suspect", printable(suspect.file)),
        ("opened as", printable(f"{suspect.kind}, {suspect.description}")),
        *((name, printable(value)) for name, value in wording.entry(suspect)),
        ("SHA-256", suspect.sha256 or "none: a function"),
        ("commitment", f"{report.commitment} ({report.kind} key)"),
        *wording.channel_order(report.alignment),
    ]


def _trusted(report: Report) -> list[tuple[str, str]]:
    """Whose word the correction rests on: a judge's count, or an authority's stamp."""
    from sigil.rules import PLAIN_ALLOWANCE_LOG2, STAMPED_ALLOWANCE_LOG2
    from sigil.verdict import wording

    rows = []
    if report.register_count is not None:
        counted = f"{report.register_count:,} statements in a closed register, if a judge counted them"
        others = f"2^{PLAIN_ALLOWANCE_LOG2} keys, or 2^{STAMPED_ALLOWANCE_LOG2} stamped ones"
        rows.append(("register", f"{counted}; otherwise {others}, are allowed for"))
    elif report.kind == "stamped" and report.trusted_root is None:
        rows.append(
            ("time stamp", "not checked, so the key counts as plain: name a root you trust (--tsa-root)")
        )
    elif report.trusted_root is not None:
        root = f"{printable(report.trusted_root.name)}, fingerprint {report.trusted_root.fingerprint}"
        rows.append(("time stamp", f"under the root {root}, which the examiner trusts"))
    if wording.is_demonstration(report.key):
        rows.append(("seal", wording.DEMONSTRATION))
    return rows
