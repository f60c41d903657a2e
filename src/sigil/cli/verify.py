"""`sigil verify`: test whether a suspect model carries the mark of a key."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sigil.cli import data_names, outputs
from sigil.cli import key as key_commands
from sigil.cli import suspect_options as options
from sigil.cli.terminal import recorded
from sigil.cli.verdict import show
from sigil.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_MOST_PROBES = 10**9

_TEST = "What p is multiplied by"
_RESEARCH = "For research: makes it an experiment, which proves nothing"
_ALIGNMENT = "A copy whose channels were reordered or rescaled"
_RESULT = "The result"


class InputsFrom(StrEnum):
    """Who may choose inputs: somebody who does not know the key."""

    judge = "judge"
    defendant = "defendant"


def register(app: typer.Typer) -> None:
    """Add the command to the `sigil` application."""
    app.command("verify")(verify)


def verify(
    context: typer.Context,
    suspect: options.Suspect,
    key: options.OwnersKey,
    passphrase: key_commands.AskPassphrase = False,
    passphrase_file: key_commands.PassphraseFile = None,
    architecture: options.Architecture = None,
    cut: options.Cut = None,
    width: options.Width = None,
    classes: options.Classes = None,
    at: options.At = None,
    entry: options.Entry = None,
    module: options.Module = None,
    input_shape: options.InputShape = None,
    time_limit: options.TimeLimit = 120.0,
    inputs: options.Inputs = None,
    inputs_from: Annotated[
        InputsFrom | None,
        typer.Option(
            help="Who chose the inputs, if somebody without the key did; the owner's choice counts only if "
            "the key's statement names it.",
            rich_help_panel=options.INPUTS,
        ),
    ] = None,
    normalisation: options.Normalise = None,
    probes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=_MOST_PROBES,
            help="Another number of noise inputs.",
            rich_help_panel=_RESEARCH,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="Noise from this seed instead of the key.", rich_help_panel=_RESEARCH),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(metavar="P", help="Compare p with this level.", rich_help_panel=_RESEARCH),
    ] = None,
    tries: Annotated[
        int,
        typer.Option(
            metavar="M",
            help="Keys and suspects tried in all; p is multiplied by it.",
            rich_help_panel=_TEST,
        ),
    ] = 1,
    statements: Annotated[
        int | None,
        typer.Option(
            "--register",
            metavar="N",
            min=1,
            help="Statements in a closed register, as the judge counted them; replaces the allowance for "
            "keys that could have been drawn.",
            rich_help_panel=_TEST,
        ),
    ] = None,
    copies: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Also say whose copy it contains: a register of copies, or a run (sigil trace).",
            rich_help_panel=_RESULT,
        ),
    ] = None,
    tsa_root: Annotated[
        Path | None,
        typer.Option(
            metavar="PEM",
            help="Root of the time-stamping authority that you trust; without it the key counts as plain.",
            rich_help_panel=_TEST,
        ),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            metavar="F",
            help="Compare channels with a recorded reference or initial weights: an experiment.",
            rich_help_panel=_ALIGNMENT,
        ),
    ] = None,
    data_dir: options.DataDir = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object only.", rich_help_panel=_RESULT),
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(metavar="F.html", help="Write a page for people to read.", rich_help_panel=_RESULT),
    ] = None,
    evidence: Annotated[
        Path | None,
        typer.Option(metavar="F.json", help="Write the facts, signed (a new file).", rich_help_panel=_RESULT),
    ] = None,
    sign_with: Annotated[
        Path | None,
        typer.Option(
            metavar="PEM",
            help="Sign with this Ed25519 key as well, beside the owner's.",
            rich_help_panel=_RESULT,
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Replace an earlier page at --report, if Sigil wrote it.", rich_help_panel=_RESULT
        ),
    ] = False,
) -> None:
    """Test whether SUSPECT carries the mark of a key, and how sure that is.

    Architecture, width and classes are read off the weights where these
    fit one of the four models, and a file of Sigil's says the rest:
      sigil verify client.safetensors --key owner.key

    Of other files, name what is missing:
      sigil verify model.pt --key owner.key --architecture resnet18 \\
        --cut layer3 --width 64 --classes 10 --input-shape 3,32,32
      sigil verify model.onnx --key owner.key --at /layer3/Relu_output_0

    A file with several models is read as each of them, up to 16, and each
    counts as a try; or you name one:
      sigil verify checkpoint.pt --key owner.key --entry ema

    Of a model of your own, name the code that makes its client half:
      sigil verify half.safetensors --key owner.key --module my.py:client_half

    Keep the result, for people and for a court; check it later, by the line
    that the owner published before training (sigil key commit prints it):
      sigil verify model.pt2 --key owner.key \\
        --report page.html --evidence case.json
      sigil evidence check case.json --statement published.txt

    Read the mark on real inputs too, which a thief cannot dodge:
      sigil verify client.safetensors --key owner.key \\
        --inputs photos/ --inputs-from judge

    Reordered channels are put back by the initial weights that the key drew.
    Where it drew none, they can be put back by what the training's
    server recorded: an experiment, never proof (docs/p-value.md):
      sigil verify copy.onnx --at NODE --key owner.key \\
        --reference runs/a/reference.safetensors --inputs photos/

    For a program:
      sigil verify client.safetensors --key owner.key --json

    Nothing in the file is executed: it may come from an adversary. A process
    of its own takes it apart, with limits on memory and time. Evidence is
    always a new file; --force replaces an earlier page, and nothing else.

    Exit status: 0 owned, 1 not owned (also if it only descends, and for any
    experiment), 2 bad input.
    """
    if sign_with is not None and evidence is None:
        raise ConfigError("--sign-with signs an evidence file: give --evidence F.json as well.")
    shape, moments = options.shape_and_normalisation(input_shape, normalisation)
    page = None if report is None else outputs.page("--report", report, force=force)
    outputs.check(
        page,
        None if evidence is None else outputs.File("--evidence", evidence, kind="record of evidence"),
        inputs={
            "SUSPECT": suspect,
            "--key": key,
            "--passphrase-file": passphrase_file,
            "--reference": reference,
            "--copies": copies,
            "--tsa-root": tsa_root,
            "--sign-with": sign_with,
            "--inputs": None if inputs is None else Path(inputs).expanduser(),
        },
    )
    data_names.check_inputs(inputs, data_dir)

    from sigil.rules import MOST_TRIES

    if tries > MOST_TRIES:
        raise ConfigError(f"--tries may be at most {MOST_TRIES:,}.")
    from sigil.data import open_inputs
    from sigil.suspect import open_into, open_suspect
    from sigil.verdict.report import harmless
    from sigil.verdict.verification import verify as run

    owner_key = key_commands.load_key(key, ask=passphrase, passphrase_file=passphrase_file)
    signer = _signer(sign_with) if sign_with is not None else None
    named = {"architecture": architecture, "cut": cut, "width": width, "classes": classes, "at": at}
    if module is None:
        opened = open_suspect(
            suspect,
            **named,  # type: ignore[arg-type]
            entry=entry,
            input_shape=shape,
            key=owner_key,  # what it states holds against what an adversary's file says of itself
            time_limit=time_limit,
        )
    elif entry is None and set(named.values()) == {None}:
        built = options.build_module(module)
        opened = open_into(suspect, built, input_shape=shape, time_limit=time_limit)
    else:
        raise ConfigError("--module makes the model itself: leave out what else describes one (--cut, --at).")
    shape = shape or owner_key.fields.input_shape or opened.input_shape
    outcome = run(
        opened,
        owner_key,
        None if inputs is None else open_inputs(inputs, shape=shape, data_dir=data_dir),
        inputs_from=None if inputs_from is None else inputs_from.value,
        normalisation=moments,
        input_shape=shape,
        probes=probes,
        seed=seed,
        alpha=alpha,
        tries=tries,
        register=statements,
        roots=tsa_root,
        reference=reference,
    )
    command = harmless(recorded(context.obj or ()), limit=20_000)
    outcome = outcome.model_copy(update={"command": command})
    written = {}
    if evidence is not None:
        outcome.save_evidence(evidence, key=owner_key, sign_with=signer)
        written["evidence"] = str(evidence)
    traced = None
    if copies is not None:
        from sigil.tracing import trace

        traced = trace(suspect, owner_key, copies, tries=tries, at=at, time_limit=time_limit)
    if page is not None:
        said = () if traced is None else str(traced).split("\n")
        outcome.save_page(page.path, evidence=evidence, copies=said, overwrite=bool(page.replace))
        written["report"] = str(page.path)
    if as_json:
        run_facts = outcome.model_dump(mode="json", include={"suspect", "created", "command", "software"})
        copies_found = {} if traced is None else {"copies": traced.to_dict()}
        typer.echo(json.dumps(outcome.to_dict() | run_facts | written | copies_found, allow_nan=False))
    else:
        show(outcome, written)
        if traced is not None:
            typer.echo(str(traced))
    raise typer.Exit(0 if outcome.owned else 1)


def _signer(pem: Path) -> Ed25519PrivateKey:
    from sigil.verdict.envelope import load_private_key

    def ask() -> str | None:
        if not sys.stdin.isatty():
            return None
        answer: str = typer.prompt("Passphrase of the signing key", hide_input=True, err=True)
        return answer

    return load_private_key(pem, ask=ask)
