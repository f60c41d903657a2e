"""Evidence that nobody can change unnoticed, in a form that other tools read.

A record is an in-toto Statement v1 (its subject is the suspect, its predicate the report or the trace) in a
DSSE envelope:

    {"payload":"base64","payloadType":"application/vnd.in-toto+json","signatures":[{"keyid":"…","sig":"base64"}]}

Each signature is Ed25519 over DSSE's encoding of the payload's type and bytes. A ``keyid`` is the signer's
public key itself, 64 hex digits. Envelope and payload have one canonical form: sorted names, no spaces, ASCII
only. Signatures are checked before anything of the payload is parsed.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from sigil.errors import EvidenceError

if TYPE_CHECKING:
    from sigil.verdict.report import Record

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
VERDICT_TYPE: Final = "urn:sigil-watermark:verdict:v1"
TRACE_TYPE: Final = "urn:sigil-watermark:trace:v1"
TRACE_FIELD: Final = b'"predicateType":"%b"' % TRACE_TYPE.encode()
"""What the payload about a trace holds: no other text can, as quotes in texts are escaped."""
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"

MAX_FILE: Final = 1 << 23
MAX_PEM: Final = 1 << 16
MAX_SIGNATURES: Final = 8

_DRAFT: Final = b'{"body":'
_SIGNATURE: Final = rb'\{"keyid":"[0-9a-f]{64}","sig":"[A-Za-z0-9+/]{86}=="\}'
_FORM: Final = re.compile(
    rb'\{"payload":"[A-Za-z0-9+/]*={0,2}","payloadType":"%b","signatures":\[%b(?:,%b){0,%d}\]\}\n'
    % (re.escape(PAYLOAD_TYPE.encode()), _SIGNATURE, _SIGNATURE, MAX_SIGNATURES - 1)
)


def statement(record: Record) -> bytes:
    """The payload: the in-toto statement of a report or a trace, in its one canonical form."""
    return _canonical(
        {
            "_type": STATEMENT_TYPE,
            "subject": [record.subject],
            "predicateType": record.predicate_type,
            "predicate": record.model_dump(),
        }
    )


def sign(record: Record, *signers: Ed25519PrivateKey) -> bytes:
    """The content of an evidence file: the record, signed by each of the keys."""
    payload = statement(record)
    signed = {one.public_key().public_bytes_raw().hex(): one.sign(_encoded(payload)) for one in signers}
    envelope = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [
            {"keyid": keyid, "sig": base64.b64encode(sig).decode()} for keyid, sig in signed.items()
        ],
    }
    return _canonical(envelope) + b"\n"


def open_envelope(content: bytes) -> tuple[bytes, tuple[str, ...]]:
    """The payload of an envelope all of whose signatures are good, and the public keys that signed it."""
    if len(content) > MAX_FILE:
        raise EvidenceError(
            f"The evidence file is longer than {MAX_FILE} bytes, more than any real one needs; "
            "ask for the original."
        )
    if content.startswith(_DRAFT):
        raise EvidenceError(
            "This is evidence in a draft form that no release wrote, and it is not read any more; verify the "
            "suspect again for a record."
        )
    if _FORM.fullmatch(content) is None:
        raise EvidenceError(
            "This is not an evidence file as Sigil writes it: it was changed, re-formatted or cut "
            "short; ask for the original, byte for byte."
        )
    envelope = json.loads(content)
    signatures = {one["keyid"]: _decoded(one["sig"]) for one in envelope["signatures"]}
    if len(signatures) < len(envelope["signatures"]):
        raise EvidenceError("The evidence holds two signatures by one key; ask for the original.")
    payload = _decoded(envelope["payload"])
    try:
        for keyid, signature in signatures.items():
            public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(keyid))
            public.verify(signature, _encoded(payload))
    except (InvalidSignature, ValueError):
        raise EvidenceError(
            "The signature does not fit the evidence: the file was changed after it was signed; "
            "ask for the original, byte for byte."
        ) from None
    return payload, tuple(signatures)


def read_file(path: str | os.PathLike[str], *, limit: int = MAX_FILE) -> bytes:
    """Read at most `limit` bytes and one more, so that a file that is too long is noticed."""
    try:
        with open(path, "rb") as file:
            return file.read(limit + 1)
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


def read_public_key(text: str | os.PathLike[str]) -> str:
    """A signer's public key as 64 hex digits, from such digits or from a PEM file's path."""
    text = os.fspath(text)
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


def _decoded(text: str) -> bytes:
    """What base64 stands for, which has one spelling."""
    try:
        content = base64.b64decode(text, validate=True)
    except ValueError:
        content = b""
    if base64.b64encode(content).decode() != text:
        raise EvidenceError(
            "The evidence holds base64 that is not in its one spelling; ask for the original, byte for byte."
        )
    return content


def _encoded(payload: bytes) -> bytes:
    """What is signed: DSSE's pre-authentication encoding of the type and the payload."""
    return b"DSSEv1 %d %b %d %b" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def _canonical(document: dict[str, Any]) -> bytes:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.encode("ascii")
