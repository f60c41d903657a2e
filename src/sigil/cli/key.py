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
from sigil.cli import data_names, outputs
from sigil.cli.suspect_options import read_activation_shape, read_input_shape, read_normalisation
from sigil.cli.terminal import printable
from sigil.errors import ConfigError, OutputError, no_key_file

if TYPE_CHECKING:
    from sigil.keys.key import Key

PASSPHRASE_VARIABLE: Final = "SIGIL_PASSPHRASE"
_MAX_PASSPHRASE_BYTES: Final = 4096
_KEY: Final = files.Mark(b'{"format":"sigil-key/')

app = typer.Typer(
    name="key",
    help="Make a secret key, describe it, publish its commitment, have it stamped.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

KeyFile = Annotated[Path, typer.Argument(metavar="FILE", help="The key file.")]
AskPassphrase = Annotated[
    bool,
    typer.Option("--passphrase", help="Ask for the passphrase at the terminal."),
]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Read the passphrase from the first line of this file."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def new(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The key file to write.")],
    owner: Annotated[
        str,
        typer.Option(metavar="NAME", help="Your name, as the evidence will state it."),
    ],
    shape: Annotated[
        str,
        typer.Option(metavar="C,H,W", help="Shape of one activation at the cut, without batch."),
    ],
    bits: Annotated[
        int | None,
        typer.Option(metavar="K", help="Length of the mark; by default one bit per 16 dimensions."),
    ] = None,
    to_be_stamped: Annotated[
        bool,
        typer.Option("--to-be-stamped", help="A key that a time stamp completes: see `sigil key stamp`."),
    ] = False,
    scheme: Annotated[
        Literal["paper", "shares"],
        typer.Option(metavar="NAME", help="paper: every client carries all bits; shares: each its part."),
    ] = "paper",
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="State the model that the key is for.")
    ] = None,
    width: Annotated[int | None, typer.Option(metavar="N", help="State the model's width.")] = None,
    classes: Annotated[int | None, typer.Option(metavar="N", help="State the number of classes.")] = None,
    cut: Annotated[str | None, typer.Option(metavar="NAME", help="State the cut in the model.")] = None,
    input_shape: Annotated[
        str | None, typer.Option(metavar="C,H,W", help="State the shape of one input.")
    ] = None,
    inputs: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|FILE|NAME", help="State the real inputs to read the mark on, as for `sigil verify`."
        ),
    ] = None,
    inputs_digest: Annotated[
        str | None, typer.Option(metavar="HEX", help="The same by their digest, if they are elsewhere.")
    ] = None,
    normalisation: Annotated[
        str | None,
        typer.Option(metavar="MEANS/DEVIATIONS", help="State how 8-bit images are normalised, per channel."),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the data sets are; SIGIL_DATA if left out.")
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
    data_names.check_inputs(inputs, data_dir)
    from sigil.keys.key import Key

    outputs.check_apart([outputs.File("FILE", file)], {"--passphrase-file": passphrase_file})
    taken = None if input_shape is None else read_input_shape(input_shape)
    moments = None if normalisation is None else read_normalisation(normalisation)
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
    protection = "encrypted with your passphrase" if secret else "not encrypted"
    typer.echo(f"Wrote {printable(str(file))}, readable by you alone, {protection}.")
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


def _keep(file: Path) -> Path:
    """Copy a key that is about to be replaced to a name that is free: without it nothing can be proven."""
    if not _KEY.on(file):
        raise OutputError(f"{file} exists and is not a key that Sigil wrote; choose another name.")
    names = itertools.chain([f"{file.name}.old"], (f"{file.name}.old{n}" for n in itertools.count(2)))
    kept = next(place for name in names if not os.path.lexists(place := file.with_name(name)))
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
    moment = f"{key.stamp.time:%Y-%m-%d %H:%M:%S} UTC"
    return f"stamped on {moment} by {printable(key.stamp.authority)}, number {key.stamp.serial}"


def warn_if_useless(key: Key, remedy: str) -> None:
    """Say before a training, and not when it is too late, that a key is too short to prove anything."""
    from sigil.verdict.choices import price_of_key

    if key.bits < price_of_key(key).shortest_bits(float(key.fields.alpha)):
        typer.echo(f"sigil: {what_proves(key, remedy)}", err=True)


def what_proves(key: Key, remedy: str = "--bits ") -> str:
    """One sentence about the success rate that a proof with this key needs.

    `remedy` is what the user can give for a longer key, up to the number of its bits.
    """
    from sigil.keys.length import LEAST_PLAIN_BITS, LEAST_STAMPED_BITS
    from sigil.verdict import wording
    from sigil.verdict.choices import price_of_key

    price, alpha = price_of_key(key), float(key.fields.alpha)
    kind = "stamped" if key.stamp is not None or key.awaits_seal else "plain"
    rate = price.needed_rate(key.bits, alpha)
    if rate <= 1:
        return (
            f"A {kind} key of {key.bits} bits{wording.left_open(price)} proves from a success rate (WSR) of "
            f"{wording.needed_percent(rate)} on {wording.IF_ALL_AGREE}."
        )
    other, bits = ("", LEAST_STAMPED_BITS)
    if kind == "plain":
        other, bits = ", or a stamped key (sigil key new --to-be-stamped)", LEAST_PLAIN_BITS
    short = wording.too_short(key.bits, kind, price, alpha)
    return f"{short[0].upper()}{short[1:]}: take a cut with more activations{other}, or give {remedy}{bits}."


def print_json(facts: dict[str, Any]) -> None:
    typer.echo(json.dumps(facts, indent=2))
