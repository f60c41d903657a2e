"""`sigil issue` and `sigil trace`: a copy for each recipient, and whose copy a suspect contains."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sigil import files
from sigil.cli import options, outputs
from sigil.cli.key import load_key
from sigil.cli.terminal import recorded
from sigil.errors import ConfigError

if TYPE_CHECKING:
    from sigil.imprint import Imprint
    from sigil.keys.key import Key

_SHOWN = 5

Register = Annotated[
    Path | None,
    typer.Option("--register", metavar="DIR", help="The folder of the owner's copy and its recipients."),
]


class For(StrEnum):
    """Whom a trace is to convince."""

    owner = "owner"
    court = "court"


def register(app: typer.Typer) -> None:
    """Add the commands to the `sigil` application."""
    app.command("issue")(issue)
    app.command("trace")(trace)


def issue(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="The owner's model, safetensors, or the directory of a run."),
    ],
    to: Annotated[str, typer.Option("--to", metavar="NAME", help="The recipient.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The recipient's copy (a new file).")
    ],
    key: options.OwnersKey,
    register: Register = None,
    passphrase: options.AskPassphrase = False,
    passphrase_file: options.PassphraseFile = None,
    public: Annotated[
        bool, typer.Option("--public", help="Record that everybody may hold this copy.")
    ] = False,
) -> None:
    """Make a recipient's own copy of a model, which `sigil trace` recognises later.

    The register, RUN.copies if MODEL is a run and none is named, is begun
    with the first copy: it keeps the owner's model and, for each recipient,
    the name, the date and the digest of the copy.
    It holds no secret of the key, but keep it private: with it, who holds a
    copy could take the pattern out. A second copy for the same recipient is
    the same.

    \b
    Examples:
      sigil issue runs/a --to "Hospital B" -o b.safetensors --key runs/a.key
      sigil trace suspect.safetensors --key runs/a.key --run runs/a

    Exit status: 0 done, 2 bad input.
    """
    if register is None:
        from sigil.tracing import beside

        if not model.is_dir():
            raise ConfigError(
                "Only beside a run is a register kept unasked; give its folder with --register."
            )
        register = beside(model)
    outputs.check(
        outputs.File("--out", out),
        outputs.Folder("--register", register),
        inputs={"MODEL": model, "--key": key, "--passphrase-file": passphrase_file},
    )

    from sigil.imprint import write_copy
    from sigil.keys.owner_name import check_name

    recipient = check_name(to, "recipient")
    owner_key = load_key(key, ask=passphrase, passphrase_file=passphrase_file)
    copies = _register_for(model, register, owner_key)
    known = copies.copies.get(recipient)
    issued = copies.issue(recipient, public=public)
    copies.save(register)  # first, so that no copy is out that the register does not know
    write_copy(out, issued)
    again = "" if known is None else f", the same as on {known.date[:10]}"
    digest = copies.copies[recipient].digest
    typer.echo(f"{out}: the copy for {recipient}{again}, digest {digest[:16]}…")
    typer.echo(
        f"Unchanged it is recognised at about {copies.weights**0.5:.0f} standard deviations, after noise of "
        f"one standard deviation of each filter at about {copies.after_noise:.1f} (strength "
        f"{copies.strength:g})."
    )


def _register_for(model: Path, register: Path, key: Key) -> Imprint:
    """The register that is there, if it is of this model, or a new one."""
    from sigil.imprint import REGISTER_FILE, Imprint, read_model

    given = read_model(model)
    if not (register / REGISTER_FILE).exists():
        return Imprint(key, given)
    copies = Imprint.load(register, key)
    if not copies.is_of(given):
        raise ConfigError(
            f"{model} is not the model of the register {register}, whose digest is {copies.digest[:16]}…; "
            "give the model that the register was begun with, or choose another folder."
        )
    return copies


def registers(register: Path | None, run: Path | None) -> list[Path]:
    """The registers that are meant: the one that is named, and those of a run's clients and recipients."""
    from sigil.tracing import IMPRINTS, beside

    places = [place for place in (register, run) if place is not None]
    if run is not None and not (run / IMPRINTS).is_dir() and not beside(run).is_dir():
        raise ConfigError(
            f"{run} has no copies: neither its clients' (federation.imprint) nor a register "
            f"{beside(run)} (sigil issue); give --register DIR."
        )
    if not places:
        raise ConfigError("A trace needs a register of copies; give --register DIR or --run RUN.")
    return places


def trace(
    context: typer.Context,
    suspect: options.Suspect,
    key: options.OwnersKey,
    register: Register = None,
    run: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="The copies of a run: its clients', and those that were issued."),
    ] = None,
    passphrase: options.AskPassphrase = False,
    passphrase_file: options.PassphraseFile = None,
    level: Annotated[
        For, typer.Option("--for", help="Whom to convince; before a court p is multiplied by 2^128 more.")
    ] = For.owner,
    tries: Annotated[
        int,
        typer.Option(metavar="M", min=1, help="Suspects and registers tried in all; p is multiplied by it."),
    ] = 1,
    at: options.At = None,
    time_limit: options.TimeLimit = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object only.")] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="F.html", help="Write a page for people to read.")
    ] = None,
    evidence: Annotated[
        Path | None,
        typer.Option(metavar="F.json", help="Write a signed record, to a new file (sigil evidence check)."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an earlier page at --report, if Sigil wrote it.")
    ] = False,
) -> None:
    """Find the recipients whose copies SUSPECT contains.

    For copies that `sigil issue` made, and those of a training's clients. Each recipient has an exact p, the
    probability that a pattern which has nothing to do with the suspect
    agrees as well. It shows that the suspect contains a copy; who passed
    that on it does not show (docs/tracing.md).

    \b
    Examples:
      sigil trace leaked.safetensors --key owner.key --register copies
      sigil trace leaked.pt --key runs/a.key --run runs/a --report page.html
      sigil trace leaked.onnx --at relu_3 --key owner.key --register copies \\
          --for court --json

    Exit status: 0 contains a copy, 1 not shown to, 2 bad input.
    """
    page = None if report is None else outputs.page("--report", report, force=force)
    given = {"--key": key, "--register": register, "--run": run, "--passphrase-file": passphrase_file}
    outputs.check(
        page,
        None if evidence is None else outputs.File("--evidence", evidence, kind="record of evidence"),
        inputs={"SUSPECT": suspect, **given},
    )
    named = registers(register, run)

    from sigil.tracing import trace as run_trace
    from sigil.verdict.report import harmless

    owner_key = load_key(key, ask=passphrase, passphrase_file=passphrase_file)
    outcome = run_trace(
        suspect, owner_key, named, level=level.value, tries=tries, at=at, time_limit=time_limit
    )
    outcome = outcome.model_copy(update={"command": harmless(recorded(context.obj or ()), limit=20_000)})
    if evidence is not None:
        outcome.save_evidence(evidence, key=owner_key)
    if page is not None:
        from sigil.pages.copies import trace_page

        text = trace_page(outcome, suspect=str(suspect), command=outcome.command)
        files.write(page.path, text, replace=page.replace)
    if as_json:
        typer.echo(json.dumps(outcome.to_dict(), allow_nan=False))
    else:
        typer.echo(str(outcome))
        typer.echo("log10 p before correction, and corrected:")
        for each in outcome.recipients[:_SHOWN]:
            typer.echo(f"  {each.log10_p_before:12.1f} {each.log10_p:12.1f}   {each.name}")
        if len(outcome.recipients) > _SHOWN:
            typer.echo(f"  … and {len(outcome.recipients) - _SHOWN} more")
        typer.echo(f"The level is {outcome.log10_level:.1f}; {outcome.weights:,} weights were compared.")
    raise typer.Exit(0 if outcome.found else 1)
