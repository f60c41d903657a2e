"""`sigil card`: a model card for a finished run, in Hugging Face's format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sigil.cli import outputs
from sigil.cli.terminal import printable


def register(app: typer.Typer) -> None:
    """Add the command to the `sigil` command."""
    app.command("card")(card)


def card(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a finished run.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="The card; RUN/README.md if left out.")
    ] = None,
    licence: Annotated[
        str, typer.Option("--license", metavar="NAME", help="The model's licence, as the Hub names it.")
    ] = "other",
    force: outputs.Force = False,
) -> None:
    """Write a model card for a run: what it is, how it was trained, who owns it.

    The card begins with the metadata that Hugging Face's Hub reads, and
    holds the owner's public statement, with which anybody can later check
    evidence. Nothing secret is in it.

    Examples:
      sigil card runs/first
      sigil card runs/first --license apache-2.0 --out README.md
    """
    place = out or run / "README.md"
    outputs.check_there({"RUN": run})

    from sigil.federation.card import MARK, render

    text = render(run, licence=licence)
    outputs.check(outputs.File("--out", place, MARK, force or out is None, "card"))
    from sigil import files

    files.write(place, text, replace=MARK if force or out is None else False)
    typer.echo(printable(str(place)))
