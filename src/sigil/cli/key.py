"""`sigil key new|show|commit|stamp|seal|reference`: make a secret key, describe, publish and date it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from sigil import files
from sigil.cli import outputs
from sigil.cli.options import (
    AsJson,
    AskPassphrase,
    KeyFile,
    PassphraseFile,
    option,
    read_activation_shape,
    read_input_shape,
    read_normalisation,
)
from sigil.cli.terminal import printable
from sigil.errors import ConfigError, OutputError, SealError, no_key_file

if TYPE_CHECKING:
    from sigil.keys.key import Key
    from sigil.keys.seal import Seal

PASSPHRASE_VARIABLE: Final = "SIGIL_PASSPHRASE"
_MAX_PASSPHRASE_BYTES: Final = 4096
_KEY: Final = files.Magic(b'{"format":"sigil-key/')

app = typer.Typer(
    name="key",
    help="Make a secret key, describe it, publish its commitment, have it stamped.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

TsaRoot = Annotated[
    Path | None, option("FILE", "Root certificate (PEM) that the authority must have.", "--tsa-root")
]


@app.command()
def new(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The key file to write.")],
    owner: Annotated[str, option("NAME", "Your name, as the evidence will state it.")],
    shape: Annotated[str, option("C,H,W", "Shape of one activation at the cut, without batch.")],
    bits: Annotated[
        int | None, option("K", "Length of the mark; by default one bit per 16 dimensions.")
    ] = None,
    to_be_stamped: Annotated[
        bool,
        typer.Option("--to-be-stamped", help="A key that a time stamp completes: see `sigil key stamp`."),
    ] = False,
    scheme: Annotated[
        Literal["paper", "shares"],
        option("NAME", "paper: every client carries all bits; shares: each its part."),
    ] = "paper",
    model: Annotated[str | None, option("NAME", "State the model that the key is for.")] = None,
    width: Annotated[int | None, option("N", "State the model's width.")] = None,
    classes: Annotated[int | None, option("N", "State the number of classes.")] = None,
    cut: Annotated[str | None, option("NAME", "State the cut in the model.")] = None,
    input_shape: Annotated[str | None, option("C,H,W", "State the shape of one input.")] = None,
    inputs: Annotated[
        str | None,
        option("DIR|FILE|NAME", "State the real inputs to read the mark on, as for `sigil verify`."),
    ] = None,
    inputs_digest: Annotated[
        str | None, option("HEX", "The same by their digest, if they are elsewhere.")
    ] = None,
    normalisation: Annotated[
        str | None, option("MEANS/DEVIATIONS", "State how 8-bit images are normalised, per channel.")
    ] = None,
    data_dir: Annotated[
        Path | None, option("DIR", "Where the data sets are; SIGIL_DATA if left out.")
    ] = None,
    passphrase: AskPassphrase = False,
    passphrase_file: PassphraseFile = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an existing key, which is kept as FILE.old.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Draw a new secret key and write it to FILE.

    The file has mode 0600: nobody but you can read it.

    The shape is that of one activation at the cut: 256,8,8 for ResNet-18
    cut after layer3 and 32x32 images. More bits prove more: after an attack
    that weakens the mark, a long key can still be proof where a short one
    is not. By default there is one bit for every 16 dimensions of the
    activation, 512 at most, and at least 128 (64 if the key is to be
    stamped) where the cut holds them.

    A dishonest owner could draw keys until one fits, so a verdict multiplies
    p, the probability that an unrelated key fits as well, by 2^80. With
    --to-be-stamped a time stamp becomes part of the key, every try costs a
    dated request, and the factor is 2^24. Such a key is of no use until
    `sigil key stamp` and `sigil key seal` have completed it.

    What you state about the model and its inputs cannot be chosen
    afterwards, and nobody can say that it was. Inputs that are stated count
    as proof, no matter who shows them later; keep them as they are.

    With a passphrase the file is encrypted. Type it at the terminal, or give
    it in a file or the variable SIGIL_PASSPHRASE; it is never an argument,
    which other users of the machine could see.

    \b
    Examples:
      sigil key new owner.key --owner ACME --shape 256,8,8
      sigil key new owner.key --owner ACME --shape 256,8,8 --to-be-stamped
      sigil key new owner.key --owner ACME --shape 256,8,8 --inputs digits
      sigil key new owner.key --owner "ACME Labs" --shape 256,8,8 --passphrase
    """
    outputs.check_inputs(inputs, data_dir)
    from sigil.keys.key import Key

    outputs.check_apart([outputs.File("FILE", file)], {"--passphrase-file": passphrase_file})
    taken, moments = read_input_shape(input_shape), read_normalisation(normalisation)
    if inputs is not None:
        if inputs_digest is not None:
            raise ConfigError("--inputs and --inputs-digest say the same thing: give one of them.")
        from sigil.data.inputs import open_inputs

        stated = open_inputs(inputs, shape=taken, data_dir=data_dir)
        inputs_digest, taken, moments = stated.digest, stated.shape, moments or stated.normalisation
        if stated.is_image and moments is None:
            raise ConfigError(
                "The inputs are 8-bit images, and they count later only if the key states how they are "
                "normalised: give the means and deviations of the training (--normalisation)."
            )
    secret = read_passphrase(ask=passphrase, file=passphrase_file, confirm=True)
    key = Key.generate(
        owner,
        shape=read_activation_shape(shape),
        bits=bits,
        model=model,
        width=width,
        classes=classes,
        cut=cut,
        input_shape=taken,
        normalisation=moments,
        scheme=scheme,
        inputs_digest=inputs_digest,
        seal="rfc3161" if to_be_stamped else "none",
    )
    kept = _keep(file) if force and os.path.lexists(file) else None
    key.save(file, passphrase=secret, overwrite=kept is not None)
    if as_json:
        print_json(_describe(key, file) | {"encrypted": secret is not None})
        return
    _say_written(file, secret)
    if kept is not None:
        typer.echo(f"The key that was there is kept as {printable(str(kept))}.")
    typer.echo("Keep it secret, and keep a copy: without it nothing can be proven.")
    typer.echo(what_proves(key))
    if to_be_stamped:
        typer.echo(f"Have it stamped before you train: sigil key stamp {printable(str(file))} --tsa URL")
        typer.echo("This line is what the time stamp will date:")
    else:
        typer.echo("Publish or timestamp this line before you train:")
    typer.echo(key.statement())


@app.command()
def show(
    file: KeyFile,
    passphrase: AskPassphrase = False,
    passphrase_file: PassphraseFile = None,
    as_json: AsJson = False,
) -> None:
    """Show what a key is for, and nothing secret.

    \b
    Examples:
      sigil key show owner.key
      sigil key show owner.key --passphrase
      sigil key show owner.key --json
    """
    key = load_key(file, ask=passphrase, passphrase_file=passphrase_file)
    facts = _describe(key, file)
    if as_json:
        print_json(facts)
        return
    shape = " x ".join(map(str, key.shape))
    typer.echo(f"owner         {key.owner}")
    typer.echo(f"shape         {shape} (d = {key.dimension:,})")
    typer.echo(f"bits          {key.bits:,}")
    typer.echo(f"version       {key.version}")
    typer.echo(f"kind          {_kind(key)}")
    for name, value in facts["states"].items():
        typer.echo(f"{name.replace('_', ' '):<13} {value}")
    typer.echo(f"commitment    {key.commitment}")
    typer.echo(f"evidence key  {facts['evidence_key']}")
    typer.echo(what_proves(key))
    typer.echo("It also draws a copy for each recipient (sigil issue), which sigil trace recognises.")


@app.command()
def commit(
    file: KeyFile,
    passphrase: AskPassphrase = False,
    passphrase_file: PassphraseFile = None,
    as_json: AsJson = False,
) -> None:
    """Print one line that commits you to a key, to publish.

    Publish or timestamp it before you train. It reveals nothing of the seed.
    Anybody who has it, with its date, can later check that the key of a proof
    existed before the model that it accuses.

    \b
    Examples:
      sigil key commit owner.key
      sigil key commit owner.key > commitment.txt
      sigil key commit owner.key --json
    """
    key = load_key(file, ask=passphrase, passphrase_file=passphrase_file)
    if as_json:
        print_json(_describe(key, file))
    else:
        typer.echo(key.statement())


@app.command()
def stamp(
    file: KeyFile,
    tsa: Annotated[str | None, option("URL", "Ask this authority (RFC 3161 over HTTP).", "--tsa")] = None,
    query: Annotated[Path | None, option("FILE", "Write the query, to be sent from another machine.")] = None,
    token: Annotated[Path | None, option("FILE", "Take the authority's answer from this file.")] = None,
    tsa_root: TsaRoot = None,
    passphrase: AskPassphrase = False,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Have the statement of a key stamped by a time-stamping authority.

    With --tsa the authority is asked, and its checked answer is kept
    beside the key, as FILE.tsr, for `sigil key seal`. On a machine without
    a network, --query writes the query, which any other machine can send
    (curl -H "Content-Type: application/timestamp-query" --data-binary
    @owner.tsq URL > answer.tsr), and --token takes the answer. The query
    holds nothing but a hash of the statement.

    Choose an authority that a court would trust, and not one of your own:
    those who control an authority can ask it as often as they like. With
    --tsa-root the chain of its certificates is checked now.

    \b
    Examples:
      sigil key stamp owner.key --tsa http://timestamp.digicert.com
      sigil key stamp owner.key --query owner.tsq
      sigil key stamp owner.key --token answer.tsr --tsa-root root.pem
    """
    if sum(choice is not None for choice in (tsa, query, token)) != 1:
        raise ConfigError("Give one of --tsa, --query and --token.")
    kept = _answer_beside(file)
    outputs.check(
        outputs.File("FILE.tsr", kept, kind="time stamp")
        if query is None
        else outputs.File("--query", query),
        inputs={
            "FILE": file,
            "--token": token,
            "--tsa-root": tsa_root,
            "--passphrase-file": passphrase_file,
        },
    )
    from sigil.keys import stamping

    key = load_key(file, ask=passphrase, passphrase_file=passphrase_file)
    waiting = key.to_be_stamped()
    if query is not None:
        files.write(query, stamping.make_query(waiting.statement()), raises=SealError)
        typer.echo(f"Wrote {printable(str(query))}: send it to an authority, and come back with --token.")
        return
    if token is not None:
        answer = _read_answer(token)
    else:
        assert tsa is not None
        answer = stamping.ask(tsa, stamping.make_query(waiting.statement()))
    dated = waiting.seal(answer).stamp
    assert dated is not None
    trust = _trust(dated, tsa_root)
    files.write(kept, answer, raises=SealError)
    typer.echo(f"Stamped {_dated(dated)}.")
    typer.echo(trust)
    typer.echo(f"Wrote {printable(str(kept))}. Now: sigil key seal {printable(str(file))} sealed.key")


@app.command()
def seal(
    file: KeyFile,
    out: Annotated[Path, typer.Argument(metavar="SEALED", help="The key file to write.")],
    token: Annotated[
        Path | None, option("FILE", "The authority's answer; else FILE.tsr beside the key.")
    ] = None,
    tsa_root: TsaRoot = None,
    passphrase: AskPassphrase = False,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Make a new key that a time stamp is part of, and write it to SEALED.

    The new key has other secrets than the old one: train with it, and
    with it only. A model that was marked before stays with the old key.
    The time stamp is kept in the file; without it the key is lost, so keep
    a copy of the whole file. A passphrase of the old key is that of the
    new one.

    \b
    Examples:
      sigil key seal owner.key sealed.key
      sigil key seal owner.key sealed.key --tsa-root root.pem
      sigil key seal owner.key sealed.key --token answer.tsr
    """
    outputs.check(
        outputs.File("SEALED", out, kind="key"),
        inputs={"FILE": file, "--token": token, "--tsa-root": tsa_root, "--passphrase-file": passphrase_file},
    )
    secret = read_passphrase(ask=passphrase, file=passphrase_file)
    key = load_key(file, ask=False, passphrase_file=None, passphrase=secret)
    sealed = key.seal(_read_answer(token or _answer_beside(file)))
    assert sealed.stamp is not None
    trust = _trust(sealed.stamp, tsa_root)
    sealed.save(out, passphrase=secret)
    _say_written(out, secret)
    typer.echo(f"Stamped {_dated(sealed.stamp)}.")
    typer.echo(trust)
    typer.echo("Keep a copy of this file: the time stamp in it is part of the key. Train with this key only.")
    typer.echo(sealed.statement())


@app.command()
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


def _answer_beside(file: Path) -> Path:
    return file.with_name(file.name + ".tsr")


def _dated(dated: Seal) -> str:
    return f"on {dated.time:%Y-%m-%d %H:%M:%S} UTC by {printable(dated.authority)}, number {dated.serial}"


def _trust(dated: Seal, root_file: Path | None) -> str:
    from sigil.keys.seal import read_roots

    if root_file is None:
        return "Its chain of certificates was not checked: give --tsa-root with the root you trust."
    root = dated.check(read_roots(root_file))
    return f"Vouched for by {printable(root.name)}, SHA-256 {root.fingerprint}."


def _read_answer(path: Path) -> bytes:
    from sigil.keys.seal import MAX_TOKEN

    try:
        with path.open("rb") as stream:
            return stream.read(MAX_TOKEN + 1)
    except OSError as error:
        raise SealError(
            f"The time stamp {path} cannot be read ({error.strerror}); get one with `sigil key stamp`."
        ) from None


def _say_written(file: Path, secret: str | None) -> None:
    protection = "encrypted with your passphrase" if secret else "not encrypted"
    typer.echo(f"Wrote {printable(str(file))}, readable by you alone, {protection}.")


def _keep(file: Path) -> Path:
    """Copy a key that is about to be replaced to a name that is free: without it nothing can be proven."""
    if not _KEY.matches(file):
        raise OutputError(f"{file} exists and is not a key that Sigil wrote; choose another name.")
    names = itertools.chain([f"{file.name}.old"], (f"{file.name}.old{n}" for n in itertools.count(2)))
    kept = next(candidate for name in names if not os.path.lexists(candidate := file.with_name(name)))
    files.write(kept, file.read_bytes(), mode=0o600)
    return kept


def load_key(file: Path, *, ask: bool, passphrase_file: Path | None, passphrase: str | None = None) -> Key:
    """Open a key file with the passphrase given, or that of the command line or the environment."""
    if not outputs.there(file):  # before what takes seconds to import
        raise no_key_file(file)

    from sigil.errors import KeyFileWarning
    from sigil.keys.key import Key

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", KeyFileWarning)
        secret = passphrase or read_passphrase(ask=ask, file=passphrase_file)
        key = Key.load(file, passphrase=secret)
    for warning in caught:
        if issubclass(warning.category, KeyFileWarning):
            typer.echo(f"sigil: {printable(str(warning.message))}", err=True)
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return key


def read_passphrase(*, ask: bool, file: Path | None, confirm: bool = False) -> str | None:
    """The passphrase from the terminal, a file or SIGIL_PASSPHRASE, in this order, or None."""
    if ask and file is not None:
        raise ConfigError("Give --passphrase or --passphrase-file, not both.")
    if ask:
        try:
            answer: str = typer.prompt(
                "Passphrase",
                hide_input=True,
                confirmation_prompt=confirm,
                err=True,
            )
        except typer.Abort as abort:
            if not isinstance(abort.__context__, EOFError):
                raise  # interrupted at the keyboard
            raise ConfigError(
                "No passphrase was typed; use --passphrase-file where there is no terminal."
            ) from None
        return answer
    if file is not None:
        return _passphrase_from(file)
    return os.environ.get(PASSPHRASE_VARIABLE) or None


def _passphrase_from(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            data = stream.read(_MAX_PASSPHRASE_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"The passphrase file {file} cannot be read ({error.strerror}); check its path."
        ) from None
    line = data.split(b"\n", 1)[0].removesuffix(b"\r")
    try:
        text = line.decode() if len(data) <= _MAX_PASSPHRASE_BYTES else ""
    except UnicodeDecodeError:
        text = ""
    if not text:
        raise ConfigError(
            f"The passphrase file {file} holds no passphrase; its first line must be UTF-8 text "
            f"and the file at most {_MAX_PASSPHRASE_BYTES} bytes."
        )
    return text


def _describe(key: Key, file: Path) -> dict[str, Any]:
    from sigil.verdict.choices import price_of_key

    price = price_of_key(key)
    rate = price.needed_rate(key.bits, float(key.fields.alpha))
    stated = dataclasses.asdict(key.fields)
    always = ("owner", "shape", "bits", "version", "seal")
    return {
        "file": str(file),
        "owner": key.owner,
        "shape": list(key.shape),
        "dimension": key.dimension,
        "bits": key.bits,
        "version": key.version,
        "kind": key.kind,
        "awaits_seal": key.awaits_seal,
        "stamped_at": None if key.stamped_at is None else key.stamped_at.isoformat(),
        "stamped_by": None if key.stamp is None else key.stamp.authority,
        "allowance_log2": key.allowance_log2,
        "cuts": price.cuts,
        "needed_wsr": rate if rate <= 1 else None,
        "states": {name: value for name, value in stated.items() if name not in always and value is not None},
        "commitment": key.commitment,
        "evidence_key": key.signing_key().public_key().public_bytes_raw().hex(),
        "statement": key.statement(),
    }


def _kind(key: Key) -> str:
    if key.awaits_seal:
        return "to be stamped: of no use before `sigil key stamp` and `sigil key seal`"
    if key.stamp is None:
        return "plain"
    return f"stamped {_dated(key.stamp)}"


def warn_if_useless(key: Key, remedy: str, *, wider: str = "") -> None:
    """Say before a training, and not when it is too late, that a key is too short to prove anything."""
    from sigil.verdict.choices import price_of_key

    if key.bits < price_of_key(key).shortest_bits(float(key.fields.alpha)):
        typer.echo(f"sigil: {what_proves(key, remedy, wider=wider)}", err=True)


def what_proves(key: Key, remedy: str = "--bits ", *, wider: str = "") -> str:
    """One sentence about the success rate that a proof with this key needs.

    `remedy` is what the user can give for a longer key, up to the number of its bits, and `wider` what gives
    room for more. A longer key is advised only where it fits.
    """
    from sigil.keys.length import LEAST_PLAIN_BITS, LEAST_STAMPED_BITS, most_bits
    from sigil.verdict import wording
    from sigil.verdict.choices import price_of_key

    price, alpha = price_of_key(key), float(key.fields.alpha)
    kind = "stamped" if key.stamp is not None or key.awaits_seal else "plain"
    rate, held = price.needed_rate(key.bits, alpha), most_bits(key.shape)
    if rate <= 1:
        tight = "" if key.bits <= held else f" But activations of this shape hold {held} bits at most."
        return (
            f"A {kind} key of {key.bits} bits{wording.left_open(price)} is proof at a success rate (WSR) of "
            f"{wording.needed_percent(rate)} or more {wording.IF_ALL_AGREE}.{tight}"
        )
    ways, bits = ["take a cut with more activations"], LEAST_STAMPED_BITS
    if kind == "plain":
        ways, bits = [*ways, "have the key stamped (sigil key new --to-be-stamped)"], LEAST_PLAIN_BITS
    if bits <= held:
        ways.insert(0, f"give {remedy}{bits}")
    elif wider:
        ways.insert(0, f"give {wider}")
    short = wording.too_short(key.bits, kind, price, alpha)
    *others, last = ways
    listed = f"{', '.join(others)} or {last}" if others else last
    return f"{short[0].upper()}{short[1:]}: {listed}."


def print_json(facts: dict[str, Any]) -> None:
    typer.echo(json.dumps(facts, indent=2))
