"""`sigil trace`: which client's local model a suspect is most likely to come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sigil.cli import data_names, outputs
from sigil.cli import key as key_commands
from sigil.cli import suspect_options as options
from sigil.errors import ConfigError

if TYPE_CHECKING:
    from sigil.tracing.leak import Trace

_SHOWN = 5


def register(app: typer.Typer) -> None:
    """Add the command to the `sigil` application."""
    app.command("trace")(trace)


def trace(
    suspect: options.Suspect,
    key: options.OwnersKey,
    passphrase: key_commands.AskPassphrase = False,
    passphrase_file: key_commands.PassphraseFile = None,
    run: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The directory of the run that made the model; if left out, DIR of a key DIR.key.",
        ),
    ] = None,
    inputs: options.Inputs = None,
    normalisation: options.Normalise = None,
    data_dir: options.DataDir = None,
    at: options.At = None,
    entry: options.Entry = None,
    input_shape: options.InputShape = None,
    time_limit: options.TimeLimit = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object only.")] = False,
) -> None:
    """Rank the clients of a training: whose local model is SUSPECT?

    For a training in which each client carried its own share of the mark
    (key new --scheme shares); the run's directory holds a record of every
    global model. It gives a lead and proves nothing (docs/tracing.md):
    anybody who holds a client's model or gradients can make a model that
    names it. A global model names nobody.

    The inputs are all test images of the training, in their order; without
    them the mark is read on noise, which tells less.

    \b
    Examples:
      sigil trace leaked.safetensors --key runs/a.key
      sigil trace leaked.safetensors --key owner.key --run runs/a \\
          --inputs cifar10:test --data-dir ~/data

    Exit status: 0 a client stands out, 1 none does, 2 bad input.
    """
    place = run or _beside(key)
    outputs.check_there(
        {"SUSPECT": suspect, "--key": key, "--run": run, "--passphrase-file": passphrase_file}
    )
    data_names.check_inputs(inputs, data_dir)

    from sigil.data import open_inputs
    from sigil.suspect import open_suspect
    from sigil.tracing.leak import trace as run_trace
    from sigil.tracing.record import read_record

    owner_key = key_commands.load_key(key, ask=passphrase, passphrase_file=passphrase_file)
    record = read_record(place)
    shape, moments = options.shape_and_normalisation(input_shape, normalisation)
    opened = open_suspect(
        suspect, input_shape=shape, at=at, entry=entry, key=owner_key, time_limit=time_limit
    )
    shape = shape or owner_key.fields.input_shape or opened.input_shape
    outcome = run_trace(
        opened,
        owner_key,
        record,
        None if inputs is None else open_inputs(inputs, shape=shape, data_dir=data_dir),
        normalisation=moments,
        input_shape=shape,
    )
    if as_json:
        typer.echo(json.dumps(outcome.to_dict(), allow_nan=False))
    else:
        typer.echo(in_words(outcome))
    raise typer.Exit(0 if outcome.named is not None else 1)


def _beside(key: Path) -> Path:
    """The run whose key lies beside it, as `sigil train` puts it."""
    place = key.with_suffix("")
    if key.suffix != ".key" or not place.is_dir():
        raise ConfigError(
            "There is no run beside the key; give the directory of the run that made the model with --run."
        )
    return place


def in_words(outcome: Trace) -> str:
    """The outcome as lines for people."""
    clients = len(outcome.ranking)
    rows = [
        f"  client {each.client:<5} {100 * each.gain:+6.1f} points   p = {each.p:.1g}"
        + (f"   certificate {each.fingerprint[:16]}…" if each.fingerprint else "")
        for each in outcome.ranking[:_SHOWN]
    ]
    more = [f"  … and {clients - _SHOWN} more"] if clients > _SHOWN else []
    return "\n".join(
        [
            _headline(outcome),
            f"Nearest recorded global model: round {outcome.round}, "
            f"{100 * outcome.difference:.1f} points of agreement away (read on {outcome.kind}).",
            f"How much better each client's bits agree than the others, compared with that model; p after "
            f"{clients} clients:",
            *rows,
            *more,
            "A lead, not a proof: a model can be made to name a client by who holds its model or gradients.",
            "How often a model that nobody leaked names a client was measured: docs/tracing.md.",
        ]
    )


def _headline(outcome: Trace) -> str:
    if outcome.named is not None:
        return (
            f"CLIENT {outcome.named} stands out: its bits agree better than any other's by more than chance."
        )
    if not outcome.marked:
        return "NOBODY: the suspect does not carry the mark, or carries too little of it to be read."
    if outcome.is_global:
        return f"GLOBAL: this is the global model of round {outcome.round}, which every client was sent."
    return "NOBODY stands out: as far as can be read this is a global model, perhaps a changed one."
