"""Options that several commands about trainings share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunFolder = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Directory of the run.")]
Config = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Settings in TOML; see `sigil train --settings`.")
]
Change = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Change one setting; may be given many times."),
]
KeyToEmbed = Annotated[
    Path | None,
    typer.Option("--key", metavar="FILE", help="The key to embed; made as DIR.key if left out."),
]
DataDir = Annotated[
    Path | None, typer.Option(metavar="DIR", envvar="SIGIL_DATA", help="Where the data sets are.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
