"""`sigil report`: what was measured, as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sigil.cli.terminal import printable


def register(app: typer.Typer) -> None:
    """Add the command to the `sigil` command."""
    app.command("report")(report)


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="Results such as results/cpu, or finished runs.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="The page; FOLDER/report.html if left out."),
    ] = None,
) -> None:
    """Turn results, or finished runs, into one self-contained HTML page.

    \b
    Results: each table with the paper's numbers beside ours, each figure,
    and whether the paper's claims hold; the same tables as Markdown and CSV
    beside the page. What was not run is shown as missing.
    Runs: curves, settings and commitments of one or several trainings.

    \b
    Examples:
      sigil report results/cpu
      sigil report results/cpu --out page.html
      sigil report runs/a runs/b --out both.html
    """
    if any((folder / "run.json").exists() for folder in folders):
        from sigil.experiments.pages.run_report import write_runs

        written = [write_runs(folders, out)]
    else:
        from sigil.errors import ExperimentError
        from sigil.experiments.pages.report import write

        if len(folders) > 1:
            raise ExperimentError(
                "A report is on one folder of results or on any number of runs; give them one at a time."
            )
        made = write(folders[0], out)
        written = [made.page, made.markdown, made.csv]
    for path in written:
        typer.echo(printable(str(path)))
