"""`sigil demo`: the whole story on embedded data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sigil import extras
from sigil.cli import outputs
from sigil.cli.run_options import Quiet


def register(app: typer.Typer) -> None:
    """Add the command to the `sigil` command."""
    app.command("demo")(demo)


def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Where everything is written.")
    ] = Path("runs/demo"),
    quiet: Quiet = False,
) -> None:
    """Make a key, train with and without the mark, verify both, write a page.

    Ten clients, handwritten digits, two minutes on two cores. Nothing is
    downloaded. Stopped half way, it goes on with the same command.

    Examples:
      sigil demo
      sigil demo --out /tmp/story
    """
    extras.need("train")
    outputs.check(outputs.Folder("--out", out))
    from sigil.demo import tell
    from sigil.federation.progress import choose

    def say(text: str) -> None:
        if not quiet:
            typer.echo(text)

    marked, clean, page = tell(out, say=say, progress=lambda: choose(quiet))
    say(f"5. Open {page} in a browser; it links to both verdicts.")
    raise typer.Exit(0 if marked.report.owned and not clean.report.owned else 1)
