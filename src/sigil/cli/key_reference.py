"""`sigil key reference`: commit to what a training recorded, by which channels may be put in order."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from sigil.cli import outputs
from sigil.cli.key import AsJson, AskPassphrase, KeyFile, PassphraseFile, load_key, print_json
from sigil.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Add `reference` to the commands of `sigil key`."""
    app.command()(reference)


def reference(
    file: KeyFile,
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="The finished training: its directory, or one reference file."),
    ],
    passphrase: AskPassphrase = False,
    passphrase_file: PassphraseFile = None,
    as_json: AsJson = False,
) -> None:
    """Print one line that commits you to what a training recorded, to publish.

    A copy whose channels were reordered is put back in order by the
    initial weights that the key drew, which need no publishing. By the
    correlations that the training's server recorded it can be put in order
    as well, but that is an experiment and no proof, since correlations can
    be made to suit any key. Publish or timestamp this line when the
    training is done if you want to show later that they are those of that
    time. It reveals nothing of them.

    \b
    Examples:
      sigil key reference owner.key runs/a
      sigil key reference owner.key runs/a/reference.safetensors
      sigil key reference owner.key runs/a > reference.txt
    """
    outputs.check_there({"FILE": file, "RUN": run})

    from sigil.alignment import Reference, fingerprint, open_reference
    from sigil.evidence.published import References

    key = load_key(file, ask=passphrase, passphrase_file=passphrase_file)
    shown = open_reference(run, kind="correlations")
    if not isinstance(shown, Reference):
        raise ConfigError(
            f"{run} holds weights. Only initial weights that the key drew prove anything, and those need no "
            "publishing; give a run's directory or its reference.safetensors."
        )
    references = References(key.commitment, initial_weights=None, correlations=fingerprint(shown))
    if as_json:
        print_json(dataclasses.asdict(references) | {"line": references.line()})
    else:
        typer.echo(references.line())
