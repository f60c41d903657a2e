"""`sigil verify`: test whether a suspect model carries the mark of a key, and show the verdict."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sigil.cli import options, outputs, own_code
from sigil.cli.key import load_key
from sigil.cli.options import option
from sigil.cli.terminal import printable, recorded
from sigil.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from sigil.verdict.report import Report

_COLOURS = {"owned": "green", "descends": "yellow", "experiment": "cyan", "not proven": "yellow"}
_MOST_PROBES = 10**9

_test = partial(option, rich_help_panel="What p is multiplied by")
_research = partial(option, rich_help_panel="For research: makes it an experiment, which proves nothing")
_alignment = partial(option, rich_help_panel="A copy whose channels were reordered or rescaled")
_result = partial(option, rich_help_panel="The result")


Probes = Annotated[int | None, _research("N", "Another number of noise inputs.", min=1, max=_MOST_PROBES)]
Seed = Annotated[int | None, _research("N", "Noise from this seed instead of the key.")]
Alpha = Annotated[float | None, _research("P", "Compare p with this level.")]
Tries = Annotated[int, _test("M", "Keys and suspects tried in all; p is multiplied by it.")]
Statements = Annotated[
    int | None,
    _test(
        "N",
        "Statements in a closed register, as the judge counted them; replaces the allowance for "
        "keys that could have been drawn.",
        "--register",
        min=1,
    ),
]
TsaRoot = Annotated[
    Path | None,
    _test("PEM", "Root of the time-stamping authority that you trust; without it the key counts as plain."),
]
Chooser = Annotated[
    Literal["judge", "defendant"] | None,
    typer.Option(
        help="Who chose the inputs, if somebody without the key did; the owner's choice counts only if "
        "the key's statement names it.",
        rich_help_panel=options.INPUTS,
    ),
]
ReferenceFile = Annotated[
    Path | None,
    _alignment("F", "Compare channels with a recorded reference or initial weights: an experiment."),
]
Copies = Annotated[
    Path | None,
    _result("DIR", "Also say whose copy it contains: a register of copies, or a run (sigil trace)."),
]
AsJson = Annotated[bool, _result(None, "Print one JSON object only.", "--json")]
Page = Annotated[Path | None, _result("F.html", "Write a page for people to read.")]
Evidence = Annotated[Path | None, _result("F.json", "Write the facts, signed (a new file).")]
Signer = Annotated[Path | None, _result("PEM", "Sign with this Ed25519 key as well, beside the owner's.")]
Force = Annotated[bool, _result(None, "Replace an earlier page at --report, if Sigil wrote it.", "--force")]


def verify(
    context: typer.Context,
    suspect: options.Suspect,
    key: options.OwnersKey,
    passphrase: options.AskPassphrase = False,
    passphrase_file: options.PassphraseFile = None,
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
    inputs_from: Chooser = None,
    normalisation: options.Normalise = None,
    probes: Probes = None,
    seed: Seed = None,
    alpha: Alpha = None,
    tries: Tries = 1,
    statements: Statements = None,
    copies: Copies = None,
    tsa_root: TsaRoot = None,
    reference: ReferenceFile = None,
    data_dir: options.InputsDir = None,
    as_json: AsJson = False,
    report: Page = None,
    evidence: Evidence = None,
    sign_with: Signer = None,
    force: Force = False,
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

    Read the mark on real inputs too, where dodging costs accuracy:
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
    shape, moments = options.read_input_shape(input_shape), options.read_normalisation(normalisation)
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
    outputs.check_inputs(inputs, data_dir)

    from sigil.rules import MOST_TRIES

    if tries > MOST_TRIES:
        raise ConfigError(f"--tries may be at most {MOST_TRIES:,}.")
    from sigil.data import open_inputs
    from sigil.suspect import open_into, open_suspect
    from sigil.verdict.report import harmless
    from sigil.verdict.verification import verify as run

    owner_key = load_key(key, ask=passphrase, passphrase_file=passphrase_file)
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
        built = own_code.build_module(module)
        opened = open_into(suspect, built, input_shape=shape, time_limit=time_limit)
    else:
        raise ConfigError("--module makes the model itself: leave out what else describes one (--cut, --at).")
    shape = shape or owner_key.fields.input_shape or opened.input_shape
    outcome = run(
        opened,
        owner_key,
        None if inputs is None else open_inputs(inputs, shape=shape, data_dir=data_dir),
        inputs_from=inputs_from,
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
        _show(outcome, written)
        if traced is not None:
            typer.echo(str(traced))
    raise typer.Exit(0 if outcome.owned else 1)


def _show(report: Report, written: dict[str, str]) -> None:
    """Print the verdict: in colour on a terminal, otherwise as plain, aligned lines."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from sigil.verdict import wording

    headline = wording.titles(report).headline.replace("{owner}", printable(report.owner))
    rows = _rows(report) + [(name, printable(path)) for name, path in written.items()]
    console = Console(highlight=False)
    if console.is_terminal:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in rows:
            table.add_row(Text("  " + name), Text(value))
        style = f"bold {_COLOURS[wording.outcome(report)]}"
        console.print(Text(headline, style=style), "", table, sep="\n")
    else:
        label = max(len(name) for name, _ in rows)
        lines = [f"  {name:<{label}}  {value}" for name, value in rows]
        typer.echo("\n".join([headline, "", *lines]))
    ending = wording.ending(report)
    if ending:
        typer.echo("\n" + ending)


def _rows(report: Report) -> list[tuple[str, str]]:
    from sigil.verdict import wording

    suspect = report.suspect
    return [
        *(("experiment", printable(reason)) for reason in report.reasons),
        ("success rate", wording.rate_and_proof(report)),
        *(("proof from", line) for line in [wording.rate_if_all_agree(report)] if line),
        ("by chance", wording.by_chance(report)),
        ("corrected", wording.corrections(report)),
        *_trusted(report),
        *((f"on {reading.kind}", wording.reading(reading)) for reading in report.readings),
        ("paper's rule", wording.paper_rule(report)),
        ("suspect", printable(suspect.file)),
        ("opened as", printable(f"{suspect.kind}, {suspect.description}")),
        *((name, printable(value)) for name, value in wording.entry(suspect)),
        ("SHA-256", suspect.sha256 or "none: a function"),
        ("commitment", f"{report.commitment} ({report.kind} key)"),
        *wording.channel_order(report.alignment),
    ]


def _trusted(report: Report) -> list[tuple[str, str]]:
    """Whose word the correction rests on: a judge's count, or an authority's stamp."""
    from sigil.rules import PLAIN_ALLOWANCE_LOG2, STAMPED_ALLOWANCE_LOG2
    from sigil.verdict import wording

    rows = []
    if report.register_count is not None:
        counted = f"{report.register_count:,} statements in a closed register, if a judge counted them"
        others = f"2^{PLAIN_ALLOWANCE_LOG2} keys, or 2^{STAMPED_ALLOWANCE_LOG2} stamped ones"
        rows.append(("register", f"{counted}; otherwise {others}, are allowed for"))
    elif report.kind == "stamped" and report.trusted_root is None:
        rows.append(
            ("time stamp", "not checked, so the key counts as plain: name a root you trust (--tsa-root)")
        )
    elif report.trusted_root is not None:
        root = f"{printable(report.trusted_root.name)}, fingerprint {report.trusted_root.fingerprint}"
        rows.append(("time stamp", f"under the root {root}, which the examiner trusts"))
    if wording.is_demonstration(report.key):
        rows.append(("seal", wording.DEMONSTRATION))
    return rows


def _signer(pem: Path) -> Ed25519PrivateKey:
    from sigil.verdict.envelope import load_private_key

    def ask() -> str | None:
        if not sys.stdin.isatty():
            return None
        answer: str = typer.prompt("Passphrase of the signing key", hide_input=True, err=True)
        return answer

    return load_private_key(pem, ask=ask)
