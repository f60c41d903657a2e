"""`sigil evidence check`: check a signed evidence file, and say what that shows and what it does not."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sigil.cli import options, outputs, own_code
from sigil.cli.key import load_key
from sigil.cli.options import option
from sigil.cli.terminal import printable
from sigil.errors import ConfigError, EvidenceError, SealError, SuspectError

if TYPE_CHECKING:
    from sigil.evidence import Findings

app = typer.Typer(name="evidence", no_args_is_help=True)

_repeat = partial(option, rich_help_panel="Repeating the examination, in confidence")


@app.callback()
def group() -> None:
    """Check signed evidence that `sigil verify` or `sigil trace` wrote."""


@app.command("check")
def check(
    file: Annotated[Path, typer.Argument(metavar="F.json", help="The evidence file, byte for byte.")],
    statement: Annotated[
        str | None, option("LINE|FILE", "The statement that the owner published before training.")
    ] = None,
    tsa_root: Annotated[
        Path | None,
        option("PEM", "Root certificate of the time-stamping authority that you trust.", "--tsa-root"),
    ] = None,
    signer: Annotated[
        str | None, option("KEY", "Who must have signed: 64 hex digits or a PEM file (public key).")
    ] = None,
    suspect: Annotated[Path | None, option("FILE", "The model file that must be the one examined.")] = None,
    reference: Annotated[
        str | None, option("LINE", "The line of references that the owner published.")
    ] = None,
    statements: Annotated[
        int | None,
        option(
            "N",
            "Statements that you counted in a closed register, if the record says that a judge did.",
            "--register",
            "--statements",
            min=1,
        ),
    ] = None,
    key: Annotated[
        Path | None,
        _repeat(
            "FILE", "The owner's secret key: opens the commitment and, with --suspect, repeats everything."
        ),
    ] = None,
    module: Annotated[
        str | None,
        _repeat(
            metavar="FILE.py:NAME",
            help="For a model of the owner's own: the code that makes its client half, which is executed.",
        ),
    ] = None,
    inputs: Annotated[
        str | None, _repeat("DIR|FILE|NAME", "The real inputs that the mark was read on.")
    ] = None,
    inputs_from: Annotated[
        str | None, _repeat("judge|defendant", "Who gave the inputs, to your own knowledge.")
    ] = None,
    reference_file: Annotated[
        Path | None, _repeat("F", "The reference that channels were put in order by.")
    ] = None,
    copies: Annotated[
        Path | None, _repeat("DIR", "The owner's copies, to repeat a trace: a register, or a run.")
    ] = None,
    passphrase: options.AskPassphrase = False,
    passphrase_file: options.PassphraseFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object only.")] = False,
) -> None:
    """Check an evidence file, and say what was checked and what was not.

    Everything that a third party can check, given what the owner published
    and the root certificate of the authority that dated it:
      sigil evidence check case.json --suspect model.pt \\
        --statement published.txt --tsa-root root.pem

    An expert to whom the key is shown repeats the examination:
      sigil evidence check case.json --key owner.key --suspect model.pt

    Evidence that an auditor signed as well, with a key of their own:
      sigil evidence check case.json --signer auditor.pub.pem \\
        --statement published.txt

    Evidence about a copy whose channels were put back in order by recorded
    correlations:
      sigil evidence check case.json --statement published.txt \\
        --reference 'sigil-reference v1 commitment=...'

    Without --statement, --signer or --key nobody vouches for the signer:
    anybody can make a key, invent counts and sign them. Then the status is 1,
    however well the file fits together.

    Exit status: 0 all that was asked holds (whatever the record claims), 1 not,
    2 bad input, or something that only you can give is missing.
    """
    outputs.check_there(
        {
            "FILE": file,
            "--suspect": suspect,
            "--key": key,
            "--passphrase-file": passphrase_file,
            "--reference-file": reference_file,
            "--copies": copies,
            "--tsa-root": tsa_root,
        }
    )
    outputs.check_inputs(inputs)

    from sigil.evidence import examine
    from sigil.evidence.published import parse, parse_references
    from sigil.keys.seal import read_roots
    from sigil.suspect import open_into
    from sigil.verdict.envelope import read_file, read_public_key

    # What the caller gave is judged first: a typing mistake is not a failed check.
    if inputs_from not in (None, "judge", "defendant"):
        raise ConfigError("--inputs-from must be judge or defendant: somebody who does not know the key.")
    if (inputs or inputs_from or reference_file or module) and (key is None or suspect is None):
        raise ConfigError(
            "--inputs, --inputs-from, --module and --reference-file are for repeating the examination: "
            "give --key and --suspect as well."
        )
    line = None if statement is None else _line(statement)
    if line is not None:
        parse(line)
    if reference is not None:
        parse_references(reference)
    given: dict[str, Any] = {
        "signer": None if signer is None else read_public_key(signer),
        "roots": None if tsa_root is None else read_roots(tsa_root),
        "key": None if key is None else load_key(key, ask=passphrase, passphrase_file=passphrase_file),
    }
    content = read_file(file)
    built = None if module is None else own_code.build_module(module)
    try:
        findings = examine(
            content,
            **given,
            statement=line,
            register=statements,
            references=reference,
            suspect=suspect if built is None or suspect is None else open_into(suspect, built),
            inputs=inputs,
            inputs_from=inputs_from,  # type: ignore[arg-type]
            reference=reference_file,
            copies=copies,
        )
    except (EvidenceError, SealError, SuspectError) as refusal:
        if as_json:
            typer.echo(json.dumps({"held": False, "reason": str(refusal)}))
        else:
            typer.echo(f"REFUSED: {printable(str(refusal))}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(findings.to_dict(), allow_nan=False))
    else:
        _print(findings)
    raise typer.Exit(0 if findings.vouched else 1)


def _line(text: str) -> str:
    """A statement as it was given, or the one in a file."""
    from sigil.keys.statement import MAX_STATEMENT
    from sigil.verdict.envelope import read_file

    if text.lstrip().startswith(("{", "sigil-")):
        return text
    content = read_file(text, limit=4 * MAX_STATEMENT)
    try:
        return content.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise EvidenceError(f"{text} is not the text of a statement; give the published line.") from None


def _print(findings: Findings) -> None:
    typer.echo(findings.headline + "\n")
    for name, value in findings.claims:
        typer.echo(f"  {name:<13}  {printable(value)}")
    typer.echo("\nChecked:")
    for name, value in findings.checked.items():
        typer.echo(f"  {name:<13}  {printable(value)}")
    typer.echo("\nNot checked:")
    for text in findings.unchecked:
        typer.echo(f"  - {printable(text)}")
