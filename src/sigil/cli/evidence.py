"""`sigil evidence check`: check a signed evidence file, offline and without any key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sigil.cli.terminal import printable
from sigil.errors import EvidenceError

if TYPE_CHECKING:
    from sigil.evidence.signed import Checked

app = typer.Typer(name="evidence", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Check signed evidence that `sigil verify --evidence` wrote."""


@app.command("check")
def check(
    file: Annotated[Path, typer.Argument(metavar="F.json", help="The evidence file, byte for byte.")],
    statement: Annotated[
        str | None,
        typer.Option(metavar="LINE", help="The line that the owner published before training."),
    ] = None,
    signer: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Who must have signed: 64 hex digits or a PEM file (public key)."),
    ] = None,
    suspect: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The model file that must be the one examined."),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(metavar="LINE", help="The line of references that the owner published."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object only.")] = False,
) -> None:
    """Check an evidence file: its signature, its numbers, who signed it and for which key.

    Everything that a third party can check, given the owner's published line:
      sigil evidence check case.json --suspect model.pt \\
        --statement "$(cat published.txt)"

    Evidence that an auditor signed with a key of their own:
      sigil evidence check case.json --signer auditor.pub.pem \\
        --statement "$(cat published.txt)"

    Evidence about a copy whose channels were put back in order first:
      sigil evidence check case.json --statement "$(cat published.txt)" \\
        --reference 'sigil-reference v1 commitment=...'

    Without --statement or --signer the file vouches only for itself: anybody
    can make a key and sign with it.

    Exit status: 0 sound (whatever its verdict), 1 refused, 2 bad input.
    """
    from sigil.evidence import signed
    from sigil.evidence.statement import parse, parse_references

    # What the caller gave is judged first: a typing mistake is not a failed check.
    content = signed.read_file(file)
    expected = None if signer is None else signed.read_public_key(signer)
    if statement is not None:
        parse(statement)
    if reference is not None:
        parse_references(reference)
    sha256 = None if suspect is None else signed.sha256_of(suspect)
    try:
        checked = signed.check(
            content, signer=expected, statement=statement, suspect_sha256=sha256, references=reference
        )
    except EvidenceError as refusal:
        if as_json:
            typer.echo(json.dumps({"sound": False, "reason": str(refusal)}))
        else:
            typer.echo(f"REFUSED: {printable(str(refusal))}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(_describe(checked, suspect=suspect, reference=reference), allow_nan=False))
    else:
        _print(checked, suspect=suspect, statement=statement, reference=reference)


def _describe(checked: Checked, *, suspect: Path | None, reference: str | None) -> dict[str, object]:
    return {
        "sound": True,
        "signer": checked.public_key,
        "signed_by": checked.signed_by,
        "signer_pinned": checked.pinned,
        "suspect_compared": suspect is not None,
        "reference_compared": reference is not None,
        "facts": checked.facts.model_dump(mode="json"),
    }


def _print(checked: Checked, *, suspect: Path | None, statement: str | None, reference: str | None) -> None:
    from sigil import wording

    facts, verdict = checked.facts, checked.facts.verdict
    wsr, _ = wording.success_rate(verdict)
    who = "the owner's key" if checked.signed_by == "owner" else "another key than the owner's"
    same = "the given file" if suspect is not None else "not compared, --suspect was not given"
    typer.echo("SOUND: the signature is right and the numbers follow from each other.\n")
    for name, value in (
        ("verdict", wording.word(verdict.owned)),
        ("owner", facts.key.owner),
        ("success rate", wsr),
        (
            "by chance",
            f"{wording.chance(verdict)} ({wording.p_value(verdict)}, level {verdict.alpha:g})",
        ),
        ("made on", facts.created),
        ("suspect", f"{facts.suspect.file}, SHA-256 {facts.suspect.sha256} ({same})"),
        ("commitment", facts.key.commitment),
        *wording.channel_order(facts.alignment),
        ("signed by", f"{checked.public_key} ({who})"),
    ):
        typer.echo(f"  {name:<12}  {printable(value)}")
    if not checked.pinned:
        typer.echo(
            "\nCaution: nothing from outside the file says who signed it. Give --statement with "
            "the line\nthat the owner published, or --signer with the key of an auditor you trust."
        )
    elif statement is None:
        typer.echo(
            "\nCaution: the signer is the expected one, but the key was not compared with a "
            "published\nline: give --statement."
        )
    if facts.alignment is not None and facts.alignment.used and reference is None:
        typer.echo(
            "\nCaution: channels were put in order by a reference that was not compared with a published "
            "one;\nchosen afterwards, it could suit any key. Give --reference with the owner's line."
        )
