"""`sigil verify`: test whether a suspect model carries the mark of a key."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sigil import files
from sigil.cli import key as key_commands
from sigil.cli import outputs
from sigil.cli.command_line import recorded
from sigil.cli.terminal import printable
from sigil.errors import ConfigError, EvidenceError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from torch import Tensor

    from sigil.evidence.facts import Facts

_MOST_PROBES = 10**9
_MOST_TRIES = 10**15

_MODEL = "The suspect (only what its file does not say)"
_TEST = "The test"
_ALIGNMENT = "A copy whose channels were reordered or rescaled"
_RESULT = "The result"


def register(app: typer.Typer) -> None:
    """Add the command to the `sigil` application."""
    app.command("verify")(verify)


def verify(
    context: typer.Context,
    suspect: Annotated[
        Path,
        typer.Argument(
            metavar="SUSPECT",
            help="The model: safetensors, a state dict (.pt), an exported program (.pt2) or ONNX.",
        ),
    ],
    key: Annotated[Path, typer.Option("--key", "-k", metavar="FILE", help="The owner's secret key file.")],
    passphrase: key_commands.AskPassphrase = False,
    passphrase_file: key_commands.PassphraseFile = None,
    architecture: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="resnet18, vgg11, mobilenetv2 or densenet121.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    cut: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Where the model is cut, e.g. layer3.", rich_help_panel=_MODEL),
    ] = None,
    width: Annotated[
        int | None,
        typer.Option(metavar="W", help="Channels of the first convolution.", rich_help_panel=_MODEL),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(metavar="N", help="Number of classes.", rich_help_panel=_MODEL),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="NODE",
            help="For ONNX: the node or tensor at the cut.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    input_shape: Annotated[
        str | None,
        typer.Option(metavar="C,H,W", help="Shape of one input, e.g. 3,32,32.", rich_help_panel=_MODEL),
    ] = None,
    time_limit: Annotated[
        float,
        typer.Option(
            metavar="S",
            help="Seconds that the file's own process may take: reading it, and running ONNX.",
            rich_help_panel=_MODEL,
        ),
    ] = 120.0,
    probes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N|IMAGES",
            help="Number of random inputs (512). With --reference also images to tell channels apart by: a "
            "folder of pictures or a data set.",
            rich_help_panel=_TEST,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Seed of the random inputs.", rich_help_panel=_TEST)
    ] = 0,
    alpha: Annotated[
        float,
        typer.Option(metavar="P", help="Largest p-value that is proof.", rich_help_panel=_TEST),
    ] = 3e-7,
    tries: Annotated[
        int,
        typer.Option(
            metavar="M",
            help="Keys and suspects tried in all: p is multiplied by it.",
            rich_help_panel=_TEST,
        ),
    ] = 1,
    reference: Annotated[
        Path | None,
        typer.Option(
            metavar="F",
            help="The run's directory, its reference.safetensors, or its initial weights.",
            rich_help_panel=_ALIGNMENT,
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            envvar="SIGIL_DATA",
            help="Where the data sets for --probes are.",
            rich_help_panel=_ALIGNMENT,
        ),
    ] = None,
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
            help="Sign with this Ed25519 key instead of the owner's.",
            rich_help_panel=_RESULT,
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Replace the --report if Sigil wrote the one there.", rich_help_panel=_RESULT
        ),
    ] = False,
) -> None:
    """Test whether SUSPECT carries the mark of a key, and how sure that is.

    A file that Sigil wrote says itself which model it holds:
      sigil verify client.safetensors --key owner.key

    Any other file: say what it is, as far as it is not the standard:
      sigil verify model.pt --key owner.key --architecture resnet18 \\
        --cut layer3 --width 64 --classes 10 --input-shape 3,32,32
      sigil verify model.onnx --key owner.key --at /layer3/Relu_output_0

    Keep the result, for people and for a court; check it later:
      sigil verify model.pt2 --key owner.key \\
        --report page.html --evidence case.json
      sigil evidence check case.json

    A copy whose channels were reordered and rescaled (docs/alignment.md):
      sigil verify copy.safetensors --key owner.key --reference runs/a
      sigil verify copy.onnx --at NODE --key owner.key \\
        --reference runs/a --probes photos/

    For a program:
      sigil verify client.safetensors --key owner.key --json

    Nothing in the file is executed: it may come from an adversary. A process
    of its own takes it apart, with limits on memory and time. Evidence is
    always a new file; --force replaces an earlier page, and nothing else.

    Exit status: 0 owned, 1 not owned, 2 bad input.
    """
    if sign_with is not None and evidence is None:
        raise ConfigError("--sign-with signs an evidence file: give --evidence F.json as well.")
    count, pictures = _parse_probes(probes or [])
    if tries > _MOST_TRIES:
        raise ConfigError(f"--tries may be at most {_MOST_TRIES:,}.")
    if pictures is not None and reference is None:
        raise ConfigError(
            f"--probes {pictures} names images to tell channels apart by: give --reference too."
        )
    shape = None if input_shape is None else _parse_shape(input_shape)
    page = None if report is None else outputs.page("--report", report, force=force)
    outputs.check(
        page,
        None if evidence is None else outputs.File("--evidence", evidence, kind="record of evidence"),
        inputs={
            "SUSPECT": suspect,
            "--key": key,
            "--passphrase-file": passphrase_file,
            "--reference": reference,
            "--sign-with": sign_with,
            "--probes": None if pictures is None else Path(pictures).expanduser(),
        },
    )

    from sigil.evidence.facts import gather
    from sigil.suspect import open_suspect
    from sigil.verification import verify as run

    owner_key = key_commands.load_key(key, ask=passphrase, passphrase_file=passphrase_file)
    signer = _signer(sign_with) if sign_with is not None else None
    opened = open_suspect(
        suspect,
        architecture=architecture,
        cut=cut,
        width=width,
        classes=classes,
        input_shape=shape,
        at=at,
        activation_shape=owner_key.shape,
        time_limit=time_limit,
    )
    outcome = run(
        opened,
        owner_key,
        input_shape=shape,
        probes=count,
        seed=seed,
        alpha=alpha,
        tries=tries,
        reference=reference,
        probe_data=None if pictures is None else _images(pictures, shape or opened.input_shape, data_dir),
    )
    facts = gather(
        outcome,
        owner_key,
        suspect=opened,
        input_shape=shape or opened.input_shape or (),
        command=recorded(context.obj or ()),
    )
    written = _write(facts, signer or owner_key.signing_key(), page=page, evidence=evidence)
    if as_json:
        typer.echo(json.dumps(outcome.to_dict() | _json_facts(facts) | written, allow_nan=False))
    else:
        _print(facts, written)
    raise typer.Exit(0 if outcome.owned else 1)


def _write(
    facts: Facts, signer: Ed25519PrivateKey, *, page: outputs.File | None, evidence: Path | None
) -> dict[str, str]:
    """Write the evidence first, since the page refers to it; return what was written."""
    record = None
    written = {}
    if evidence is not None:
        from sigil.evidence.page import SignedRecord
        from sigil.evidence.signed import sign

        content = sign(facts, signer)
        files.write(evidence, content, raises=EvidenceError)
        written["evidence"] = str(evidence)
        record = SignedRecord(
            file=evidence.name.encode("utf-8", "replace").decode(),
            sha256=hashlib.sha256(content).hexdigest(),
            public_key=signer.public_key().public_bytes_raw().hex(),
        )
    if page is not None:
        from sigil.evidence.page import render

        text = render(facts, record=record)
        files.write(page.path, text, replace=page.replace, raises=EvidenceError)
        written["report"] = str(page.path)
    return written


def _signer(pem: Path) -> Ed25519PrivateKey:
    from sigil.evidence.signed import load_private_key

    def ask() -> str | None:
        if not sys.stdin.isatty():
            return None
        answer: str = typer.prompt("Passphrase of the signing key", hide_input=True, err=True)
        return answer

    return load_private_key(pem, ask=ask)


def _parse_shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(size) for size in text.split(","))
    except ValueError:
        shape = ()
    if not 1 <= len(shape) <= 4 or not all(1 <= size <= 2**16 for size in shape):
        raise ConfigError(
            "--input-shape must be whole numbers of at least 1 with commas between them, such as 3,32,32."
        )
    return shape


def _parse_probes(given: list[str]) -> tuple[int, str | None]:
    """The number of random inputs, and the name of images if one is among the values."""
    count, pictures = 512, None
    for text in given:
        if not text.lstrip("+-").isdecimal():
            pictures = text
        elif len(text) > 12 or not 1 <= int(text) <= _MOST_PROBES:
            raise ConfigError(
                f"--probes may be 1 to {_MOST_PROBES:,} random inputs, not {text[:20]}; 512 are plenty."
            )
        else:
            count = int(text)
    return count, pictures


def _images(name: str, shape: tuple[int, ...] | None, data_dir: Path | None) -> Tensor:
    """Images to tell channels apart by, from a folder of pictures or a data set."""
    from sigil.data import load_images

    if Path(name).expanduser().is_dir() and (shape is None or len(shape) != 3):
        raise ConfigError("The suspect does not say what images it takes: give --input-shape C,H,W.")
    return load_images(name, shape=shape, data_dir=data_dir)


def _json_facts(facts: Facts) -> dict[str, Any]:
    from sigil.wording import chance

    return {
        "suspect": facts.suspect.model_dump(mode="json"),
        "statement": facts.key.statement,
        "p_in_words": chance(facts.verdict),
        "created": facts.created,
        "command": facts.command,
        "software": facts.software.model_dump(mode="json"),
    }


def _print(facts: Facts, written: dict[str, str]) -> None:
    """Set the verdict: in colour on a terminal, otherwise as plain, aligned lines."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from sigil import wording

    owned = facts.verdict.owned
    headline, colour = wording.headline(owned, printable(facts.key.owner)), "green" if owned else "yellow"
    rows = _rows(facts) + [(name, printable(path)) for name, path in written.items()]
    console = Console(highlight=False)
    if console.is_terminal:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in rows:
            table.add_row(Text("  " + name), Text(value))
        console.print(Text(headline, style=f"bold {colour}"), "", table, sep="\n")
    else:
        label = max(len(name) for name, _ in rows)
        lines = [f"  {name:<{label}}  {value}" for name, value in rows]
        typer.echo("\n".join([headline, "", *lines]))
    if not owned:
        typer.echo("\n" + wording.NOT_DISPROVEN)


def _rows(facts: Facts) -> list[tuple[str, str]]:
    from sigil import wording

    verdict, suspect = facts.verdict, facts.suspect
    return [
        ("success rate", wording.rate_and_proof(verdict)),
        ("by chance", wording.by_chance(verdict)),
        ("paper's rule", wording.paper_rule(verdict)),
        ("suspect", printable(suspect.file)),
        ("opened as", printable(f"{suspect.kind}, {suspect.description}")),
        ("SHA-256", suspect.sha256),
        ("commitment", facts.key.commitment),
        *wording.channel_order(facts.alignment),
    ]
