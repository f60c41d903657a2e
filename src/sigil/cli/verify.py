"""`sigil verify`: test whether a suspect model carries the mark of a key."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sigil.cli import key as key_commands
from sigil.cli.command_line import recorded
from sigil.cli.terminal import printable
from sigil.errors import ConfigError, DataError, EvidenceError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from torch import Tensor

    from sigil.alignment import Reference
    from sigil.evidence.facts import Facts
    from sigil.models import Model
    from sigil.suspect import Suspect

_MOST_PROBES = 10**9
_MOST_IMAGES = 2_000
_MOST_FILES = 1_000_000
_PICTURES = (".png", ".jpg", ".jpeg")
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
    of its own takes it apart, with limits on memory and time.

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
    _check_target(report, "--report")
    _check_target(evidence, "--evidence")
    if evidence is not None and os.path.lexists(evidence):
        raise EvidenceError(f"{evidence} exists, and evidence is never overwritten; choose another name.")

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
        reference=None if reference is None else _reference(reference, opened, images=pictures is not None),
        probe_data=None if pictures is None else _images(pictures, shape or opened.input_shape, data_dir),
    )
    facts = gather(
        outcome,
        owner_key,
        suspect=opened,
        input_shape=shape or opened.input_shape or (),
        command=recorded(context.obj or ()),
    )
    written = _write(facts, signer or owner_key.signing_key(), report=report, evidence=evidence)
    if as_json:
        typer.echo(json.dumps(outcome.to_dict() | _json_facts(facts) | written, allow_nan=False))
    else:
        _print(facts, written)
    raise typer.Exit(0 if outcome.owned else 1)


def _write(
    facts: Facts, signer: Ed25519PrivateKey, *, report: Path | None, evidence: Path | None
) -> dict[str, str]:
    """Write the evidence first, since the page refers to it; return what was written."""
    record = None
    written = {}
    if evidence is not None:
        from sigil.evidence.page import SignedRecord
        from sigil.evidence.signed import sign

        content = sign(facts, signer)
        _save(evidence, content, mode="xb")
        written["evidence"] = str(evidence)
        record = SignedRecord(
            file=evidence.name.encode("utf-8", "replace").decode(),
            sha256=hashlib.sha256(content).hexdigest(),
            public_key=signer.public_key().public_bytes_raw().hex(),
        )
    if report is not None:
        from sigil.evidence.page import render

        _save(report, render(facts, record=record).encode(), mode="wb")
        written["report"] = str(report)
    return written


def _save(path: Path, content: bytes, *, mode: str) -> None:
    try:
        with open(path, mode) as file:
            file.write(content)
    except OSError as error:
        raise EvidenceError(
            f"Cannot write {path} ({error.strerror}); choose a place that can be written to."
        ) from None


def _check_target(path: Path | None, option: str) -> None:
    """Fail before the work, not after it."""
    if path is not None and not path.parent.is_dir():
        raise EvidenceError(f"{option} asks for {path}, but {path.parent} is not a directory; make it first.")
    if path is not None and path.is_dir():
        raise EvidenceError(f"{option} asks for {path}, which is a directory; give a file name.")


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


def _reference(path: Path, suspect: Suspect, *, images: bool) -> Path | Reference | Model:
    """What a run's directory knows: its initial weights, unless only activations can be compared."""
    if not path.is_dir():
        return path
    if images or suspect.module is None:
        from sigil.alignment import Reference

        return Reference.load(path / "reference.safetensors")
    from sigil.federation.initial import initial_half

    return initial_half(path)


def _images(
    name: str, shape: tuple[int, ...] | None, data_dir: Path | None
) -> Tensor | npt.NDArray[np.uint8]:
    """Images from a folder of pictures, or the test images of a data set: at most 2,000, evenly chosen."""
    import numpy as np

    from sigil import data
    from sigil.data import images as pictures

    folder = Path(name).expanduser()
    if not folder.is_dir():
        test = data.load(name, data_dir=data_dir)
        chosen = np.linspace(0, len(test.test) - 1, min(_MOST_IMAGES, len(test.test))).astype(int)
        ((found, _),) = data.evaluate_batches(
            np.asarray(test.test.images)[chosen],
            test.test.labels[chosen],
            batch_size=_MOST_IMAGES,
            mean=test.mean,
            std=test.std,
        )
        return found
    if shape is None or len(shape) != 3:
        raise ConfigError("The suspect does not say what images it takes: give --input-shape C,H,W.")
    files = sorted(itertools.islice(_picture_files(folder), _MOST_FILES))
    if not files:
        raise DataError(f"There are no PNG or JPEG pictures in {folder}: name a folder that holds some.")
    chosen = np.linspace(0, len(files) - 1, min(_MOST_IMAGES, len(files))).astype(int)
    table = np.empty((len(chosen), *shape), np.uint8)
    pictures.fill(table, [files[i] for i in chosen], lambda file: pictures.decode(file, shape))
    return table


def _picture_files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (Path(place) / name for name in names if name.lower().endswith(_PICTURES))


def _json_facts(facts: Facts) -> dict[str, Any]:
    from sigil.evidence.wording import chance

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

    owner = printable(facts.key.owner)
    if facts.verdict.owned:
        headline, colour = f"OWNED: this model carries the mark of {owner}.", "green"
        ending = ""
    else:
        headline, colour = f"NOT PROVEN: the mark of {owner} is not proven in this model.", "yellow"
        ending = (
            "Not proven is not disproven: the mark may be absent, or weakened, or it may belong\n"
            "to another key or to another cut."
        )
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
    if ending:
        typer.echo("\n" + ending)


def _rows(facts: Facts) -> list[tuple[str, str]]:
    from sigil.evidence.wording import alignment, chance, decimal, percent, success_rate
    from sigil.verification import PAPER_THRESHOLD

    verdict, suspect = facts.verdict, facts.suspect
    wsr, needed = success_rate(verdict)
    proof = f"proof begins at {needed}" if needed else "no rate is proof here, the key is too short"
    p = f"p {'=' if verdict.exact else '<='} {decimal(verdict.log10_p)}"
    tries = f", {verdict.tries:,} tries counted in" if verdict.tries > 1 else ""
    rule = "met" if verdict.paper_rule else "not met"
    return [
        ("success rate", f"{wsr} ({proof})"),
        ("by chance", f"{chance(verdict)} ({p}{tries}; proof asks for {verdict.alpha:g})"),
        ("paper's rule", f"{rule} (success rate above {percent(PAPER_THRESHOLD, 0)})"),
        ("suspect", printable(suspect.file)),
        ("opened as", printable(f"{suspect.kind}, {suspect.description}")),
        ("SHA-256", suspect.sha256),
        ("commitment", facts.key.commitment),
        *alignment(facts),
    ]
