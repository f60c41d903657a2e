"""Signed evidence: the facts of one verification in a file that nobody can change unnoticed.

The file is one line of JSON in one canonical form (sorted names, no spaces, ASCII only):

    {"body":{...},"public_key":"64 hex digits","signature":"128 hex digits"}

The signature is Ed25519 over `sigil evidence v2`, a line feed, the 32 bytes of the public key and
the body's bytes exactly as they stand in the file. It is checked before anything of the body is parsed. The
numbers are then checked against each other (:mod:`sigil.evidence.arithmetic`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from pydantic import ValidationError

from sigil import files
from sigil.errors import EvidenceError
from sigil.evidence import arithmetic
from sigil.evidence import statement as statements
from sigil.evidence.facts import Facts
from sigil.keys.seal import Seal

MAX_FILE = 1 << 22
MAX_PEM = 1 << 16

_CONTEXT = b"sigil evidence v2\n"
_FILE = re.compile(
    rb'\{"body":(?P<body>\{.*\}),"public_key":"(?P<public_key>[0-9a-f]{64})",'
    rb'"signature":"(?P<signature>[0-9a-f]{128})"\}\n'
)


@dataclass(frozen=True)
class Checked:
    """Evidence that has passed every check that was asked for.

    `signed_by` is "owner" when the signer is the one that the key's statement names, else "other": the
    statement inside may be anybody's. `pinned` says whether the signer was compared with something that came
    from outside the file; without that the file only vouches for itself. `stamp` is the time stamp of a
    stamped key, whose root nobody has looked at here.
    """

    facts: Facts
    public_key: str
    signed_by: Literal["owner", "other"]
    pinned: bool
    stamp: Seal | None = None


def sign(facts: Facts, private_key: Ed25519PrivateKey) -> bytes:
    """Return the content of an evidence file: the facts, the signer's public key, the signature."""
    statements.parse(facts.key.statement)  # of a key whose evidence nobody could check
    body = _canonical(facts)
    public = private_key.public_key().public_bytes_raw()
    signature = private_key.sign(_CONTEXT + public + body)
    return b'{"body":%b,"public_key":"%b","signature":"%b"}\n' % (
        body,
        public.hex().encode(),
        signature.hex().encode(),
    )


def check(
    content: bytes,
    *,
    signer: str | None = None,
    statement: str | None = None,
    suspect_sha256: str | None = None,
    references: str | None = None,
) -> Checked:
    """Check an evidence file and return what it says; raise `EvidenceError` if anything is wrong.

    `signer` is the public key (64 hex digits) that must have signed. `statement` is the line that
    the owner published: the key must be that one, and so must the signer unless `signer` names
    another. `suspect_sha256` is the hash of a file that must be the one that was examined.
    `references` is the line of references that the owner published: if channels were put in order, then
    by one of those.
    """
    facts, public_key = _open(content)
    stamp = arithmetic.recompute(facts)
    own = statements.parse(facts.key.statement)
    if statement is not None and statements.parse(statement) != own:
        raise EvidenceError(
            "The evidence is about another key: its statement is not the published one; ask for "
            "evidence that was made with the published key."
        )
    expected = signer or (own.evidence_key if statement is not None else None)
    if expected is not None and public_key != expected:
        raise EvidenceError(
            f"The evidence is signed by {public_key} and not by {expected}; ask the expected "
            "signer for it, or name this one with --signer if you trust it."
        )
    if suspect_sha256 is not None and suspect_sha256 != facts.suspect.sha256:
        raise EvidenceError(
            f"The given suspect is not the file that was examined: its SHA-256 is {suspect_sha256} "
            f"and not {facts.suspect.sha256}; compare with the copy that was secured."
        )
    if references is not None:
        _compare_references(facts, statements.parse_references(references))
    return Checked(
        facts=facts,
        public_key=public_key,
        signed_by="owner" if public_key == own.evidence_key else "other",
        pinned=expected is not None,
        stamp=stamp,
    )


def read_file(path: str | os.PathLike[str], *, limit: int = MAX_FILE) -> bytes:
    """Read at most `limit` bytes and one more, so that a file that is too long is noticed."""
    try:
        with open(path, "rb") as file:
            return file.read(limit + 1)
    except OSError as error:
        raise EvidenceError(
            f"Cannot read {os.fspath(path)} ({error.strerror}); give an existing, readable file."
        ) from None


def sha256_of(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file of any size, in hex."""
    try:
        return files.sha256_of(path)
    except OSError as error:
        raise EvidenceError(
            f"Cannot read {os.fspath(path)} ({error.strerror}); give an existing, readable file."
        ) from None


def load_private_key(
    path: str | os.PathLike[str], *, ask: Callable[[], str | None] = lambda: None
) -> Ed25519PrivateKey:
    """Read an Ed25519 private key from a PEM file; `ask` is called if it is encrypted."""
    content = read_file(path, limit=MAX_PEM)
    try:
        try:
            key = load_pem_private_key(content, password=None)
        except TypeError:
            passphrase = ask()
            if passphrase is None:
                raise EvidenceError(
                    f"The signing key {os.fspath(path)} is encrypted, and there is no terminal to "
                    "ask for its passphrase; run this in a terminal or give an unencrypted key."
                ) from None
            key = load_pem_private_key(content, password=passphrase.encode())
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise EvidenceError(
            f"{os.fspath(path)} is not an Ed25519 private key in PEM form, or its passphrase is "
            "wrong; `openssl genpkey -algorithm ed25519 -out auditor.pem` makes one."
        ) from None
    return key


def read_public_key(text: str) -> str:
    """A signer's public key as 64 hex digits, from such digits or from a PEM file's path."""
    if re.fullmatch(r"[0-9a-fA-F]{64}", text.strip()):
        return text.strip().lower()
    try:
        key = load_pem_public_key(read_file(Path(text), limit=MAX_PEM))
    except (ValueError, UnsupportedAlgorithm):
        key = None
    except EvidenceError:
        raise EvidenceError(
            "The signer is neither 64 hex digits nor a readable PEM file with an Ed25519 public "
            "key; copy the evidence key from the published statement."
        ) from None
    if not isinstance(key, Ed25519PublicKey):
        raise EvidenceError(
            f"{text} does not hold an Ed25519 public key in PEM form; "
            "`openssl pkey -in auditor.pem -pubout` prints one."
        )
    return key.public_bytes_raw().hex()


def _canonical(facts: Facts) -> bytes:
    text = json.dumps(
        facts.model_dump(), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return text.encode("ascii")


def _open(content: bytes) -> tuple[Facts, str]:
    """Signature first, then the form: returns the facts and the signer's public key."""
    if len(content) > MAX_FILE:
        raise EvidenceError(
            f"The evidence file is longer than {MAX_FILE} bytes, more than any real one needs; "
            "ask for the original."
        )
    found = _FILE.fullmatch(content)
    if found is None:
        raise EvidenceError(
            "This is not an evidence file as Sigil writes it: it was changed, re-formatted or cut "
            "short; ask for the original, byte for byte."
        )
    body, public_key = found["body"], found["public_key"].decode()
    public, signature = bytes.fromhex(public_key), bytes.fromhex(found["signature"].decode())
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, _CONTEXT + public + body)
    except (InvalidSignature, ValueError):
        raise EvidenceError(
            "The signature does not fit the evidence: the file was changed after it was signed; "
            "ask for the original, byte for byte."
        ) from None
    try:
        facts = Facts.model_validate_json(body)
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"]) or "the whole"
        raise EvidenceError(
            f"The evidence is signed but not well-formed at {place[:100]!r}; it was not made by "
            "this version of Sigil, so check it with the version that made it."
        ) from None
    if _canonical(facts) != body:
        raise EvidenceError(
            "The evidence is signed but not in its one canonical form; it was not made by Sigil, "
            "do not rely on it."
        )
    return facts, public_key


def _compare_references(facts: Facts, published: statements.References) -> None:
    if published.commitment != facts.key.commitment:
        raise EvidenceError(
            "The published references belong to another key than the evidence; give the line that was "
            "published for this key."
        )
    used = facts.alignment
    if used is None or not used.used or _drawn_by_the_key(facts):
        return
    if used.reference not in published:
        raise EvidenceError(
            "Channels were put in order by a reference that was not published: its fingerprint is "
            f"{used.reference}; a reference chosen afterwards proves nothing."
        )


def _drawn_by_the_key(facts: Facts) -> bool:
    """Whether channels were put in order by initial weights of the key's own, which nobody chose."""
    own = statements.parse(facts.key.statement).fields
    if facts.verdict.experiment or own.initialiser is None:
        return False
    return facts.alignment is not None and facts.alignment.compared == "initial weights"
