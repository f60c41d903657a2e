"""`sigil report`: what was measured, as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sigil.cli import additions, outputs
from sigil.cli.terminal import printable
from sigil.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Add the command to the `sigil` command."""
    app.command("report")(report)


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="Results such as results/cpu, or finished runs.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="The page; FOLDER/report.html if left out, of one folder."
        ),
    ] = None,
    summary: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also fill the results in this page, between its two marks."),
    ] = None,
    force: outputs.Force = False,
) -> None:
    """Turn results, or finished runs, into one self-contained HTML page.

    \b
    Results: each table with the paper's numbers beside ours, each figure,
    and whether the paper's claims hold; the same tables as Markdown and CSV
    beside the page. What was not run is shown as missing.
    Runs: curves, settings and commitments of one or several trainings.
    An earlier page in the FOLDER is drawn again; one named by --out is
    replaced with --force only, and only if Sigil wrote it.
    With --summary README.md the five lines on the results there, between
    <!-- results --> and <!-- end of results -->, are filled in too.

    \b
    Examples:
      sigil report results/cpu
      sigil report results/cpu --out page.html
      sigil report runs/a runs/b --out both.html
    """
    outputs.check_there({f"FOLDER {number}": path for number, path in enumerate(folders, 1)})
    # The page of a folder is drawn again whenever it is asked for; a page elsewhere only by force.
    redraw = force or out is None
    inputs = {"FOLDER": folders[0]} | {f"FOLDER {number}": path for number, path in enumerate(folders[1:], 2)}
    if any((folder / "run.json").exists() for folder in folders):
        from sigil.pages.runs import write_runs

        if out is None and len(folders) > 1:
            raise ConfigError(
                f"A page about {len(folders)} runs belongs to none of them: say where to write it, such as "
                "--out both.html."
            )
        place = out or folders[0] / "report.html"
        outputs.check(outputs.page("--out", place, force=redraw), inputs=inputs)
        written = [write_runs(folders, place)]
    else:
        write = additions.load("report", f"{folders[0]} is no finished run. ")
        written = write(folders, out, summary=summary, redraw=redraw, inputs=inputs)
    for path in written:
        typer.echo(printable(str(path)))
