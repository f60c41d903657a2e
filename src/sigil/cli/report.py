"""`sigil report` and `sigil card`: what was measured as one page, and a finished run as a model card.

And `sigil reproduce`, which another distribution brings.

The reproduction of the paper is a distribution of its own. Its functions are entry points of the group
``sigil.commands``; without it one sentence says what to install.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from sigil import files
from sigil.cli import options, outputs
from sigil.cli.options import option
from sigil.cli.terminal import printable
from sigil.errors import ConfigError, MissingExtraError

GROUP: Final = "sigil.commands"
DISTRIBUTION: Final = "sigil-reproduction"


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="Results such as results/cpu, or finished runs.")
    ],
    out: Annotated[
        Path | None, option("FILE", "The page; FOLDER/report.html if left out, of one folder.", "--out", "-o")
    ] = None,
    summary: Annotated[
        Path | None, option("FILE", "Also fill the results in this page, between its two marks.")
    ] = None,
    force: options.Force = False,
) -> None:
    """Turn results, or finished runs, into one self-contained HTML page.

    \b
    Results: each table with the paper's numbers beside ours, each figure,
    and whether the paper's claims hold; the same tables as Markdown and CSV
    beside the page. What was not run is shown as missing.
    Runs: curves, settings and commitments of one or several trainings.
    An earlier page in the FOLDER is drawn again; one named by --out is
    replaced with --force only, and only if Sigil wrote it.
    With --summary README.md the table of results there, between
    <!-- results --> and <!-- end of results -->, are filled in too.

    \b
    Examples:
      sigil report results/cpu
      sigil report results/cpu --out page.html
      sigil report runs/a runs/b --out both.html
    """
    inputs = {"FOLDER": folders[0]} | {f"FOLDER {number}": path for number, path in enumerate(folders[1:], 2)}
    outputs.check_there(inputs)
    for file in filter(Path.is_file, folders):
        raise ConfigError(f"{file} is a file: give the folder of a run or of results, such as {file.parent}.")
    # The page of a folder is drawn again whenever it is asked for; a page elsewhere only by force.
    redraw = force or out is None
    if any((folder / "run.json").exists() for folder in folders):
        from sigil.pages.runs import write_runs

        if out is None and len(folders) > 1:
            raise ConfigError(
                f"A page about {len(folders)} runs belongs to none of them: say where to write it, such as "
                "--out both.html."
            )
        page = out or folders[0] / "report.html"
        outputs.check(outputs.page("--out", page, force=redraw), inputs=inputs)
        written = [write_runs(folders, page)]
    else:
        write = load("report", f"{folders[0]} is not a finished run. ")
        written = write(folders, out, summary=summary, redraw=redraw, inputs=inputs)
    for path in written:
        typer.echo(printable(str(path)))


def card(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a finished run.")],
    out: Annotated[Path | None, option("FILE", "The card; RUN/README.md if left out.", "--out", "-o")] = None,
    licence: Annotated[
        str, option("NAME", "The model's licence, as the Hub names it.", "--license")
    ] = "other",
    force: options.Force = False,
) -> None:
    """Write a model card for a run: what it is, how it was trained, who owns it.

    The card begins with the metadata that Hugging Face's Hub reads, and
    holds the owner's public statement, with which anybody can later check
    evidence. Nothing secret is in it.

    Examples:
      sigil card runs/first
      sigil card runs/first --license apache-2.0 --out README.md
    """
    target = out or run / "README.md"
    outputs.check_there({"RUN": run})

    from sigil.federation.card import MAGIC, render

    text = render(run, licence=licence)
    written = outputs.File("--out", target, MAGIC, force or out is None, "card")
    outputs.check(written)
    files.write(target, text, replace=written.replace)
    typer.echo(printable(str(target)))


def register_reproduce(app: typer.Typer) -> None:
    """Add `sigil reproduce`, where it is installed, or a command that says how to install it."""
    if entry_points(group=GROUP, name="reproduce"):
        app.command("reproduce")(load("reproduce"))
    else:
        anything = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
        app.command("reproduce", hidden=True, context_settings=anything)(_missing)


def load(name: str, before: str = "") -> Callable[..., Any]:
    """The function with this name, if its distribution is installed; `before` opens the sentence if not."""
    for entry in entry_points(group=GROUP, name=name):
        return entry.load()
    raise MissingExtraError(
        f"{before}The paper's tables and figures come with a package of their own; install it with: "
        f"pip install {DISTRIBUTION}"
    )


def _missing(context: typer.Context) -> None:
    load("reproduce")
