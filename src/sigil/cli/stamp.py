"""`sigil key stamp|seal`: have a key's statement dated by an authority, and make the date part of the key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sigil import files
from sigil.cli import outputs
from sigil.cli.key import AskPassphrase, KeyFile, PassphraseFile, load_key, read_passphrase
from sigil.cli.terminal import printable
from sigil.errors import ConfigError, SealError

if TYPE_CHECKING:
    from sigil.keys.seal import Seal

TsaRoot = Annotated[
    Path | None,
    typer.Option("--tsa-root", metavar="FILE", help="Root certificate (PEM) that the authority must have."),
]


def register(app: typer.Typer) -> None:
    """Add `stamp` and `seal` to the commands of `sigil key`."""
    app.command()(stamp)
    app.command()(seal)


def stamp(
    file: KeyFile,
    tsa: Annotated[
        str | None, typer.Option("--tsa", metavar="URL", help="Ask this authority (RFC 3161 over HTTP).")
    ] = None,
    query: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the query, to be sent from another machine.")
    ] = None,
    token: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Take the authority's answer from this file.")
    ] = None,
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
    kept = _beside(file)
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
        _write(query, stamping.make_query(waiting.statement()))
        typer.echo(f"Wrote {printable(str(query))}: send it to an authority, and come back with --token.")
        return
    if token is not None:
        answer = _read(token)
    else:
        assert tsa is not None
        answer = stamping.ask(tsa, stamping.make_query(waiting.statement()))
    found = waiting.seal(answer).stamp
    assert found is not None
    trust = _trust(found, tsa_root)
    _write(kept, answer)
    typer.echo(_dated(found))
    typer.echo(trust)
    typer.echo(f"Wrote {printable(str(kept))}. Now: sigil key seal {printable(str(file))} sealed.key")


def seal(
    file: KeyFile,
    out: Annotated[Path, typer.Argument(metavar="SEALED", help="The key file to write.")],
    token: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The authority's answer; else FILE.tsr beside the key."),
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
    sealed = key.seal(_read(token or _beside(file)))
    assert sealed.stamp is not None
    trust = _trust(sealed.stamp, tsa_root)
    sealed.save(out, passphrase=secret)
    protection = "encrypted with your passphrase" if secret else "not encrypted"
    typer.echo(f"Wrote {printable(str(out))}, readable by you alone, {protection}.")
    typer.echo(_dated(sealed.stamp))
    typer.echo(trust)
    typer.echo("Keep a copy of this file: the time stamp in it is part of the key. Train with this key only.")
    typer.echo(sealed.statement())


def _beside(file: Path) -> Path:
    return file.with_name(file.name + ".tsr")


def _dated(found: Seal) -> str:
    moment = f"{found.time:%Y-%m-%d %H:%M:%S} UTC"
    return f"Stamped on {moment} by {printable(found.authority)}, number {found.serial}."


def _trust(found: Seal, root_file: Path | None) -> str:
    from sigil.keys.seal import read_roots

    if root_file is None:
        return "Its chain of certificates was not checked: give --tsa-root with the root you trust."
    root = found.check(read_roots(root_file))
    return f"Vouched for by {printable(root.name)}, SHA-256 {root.fingerprint}."


def _read(path: Path) -> bytes:
    from sigil.keys.seal import MAX_TOKEN

    try:
        with path.open("rb") as stream:
            return stream.read(MAX_TOKEN + 1)
    except OSError as error:
        raise SealError(
            f"The time stamp {path} cannot be read ({error.strerror}); get one with `sigil key stamp`."
        ) from None


def _write(path: Path, content: bytes) -> None:
    files.write(path, content, raises=SealError)
