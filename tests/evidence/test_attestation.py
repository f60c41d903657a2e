"""Evidence is an in-toto attestation: another tool checks it, and refuses what was tampered with."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey

from sigil.errors import EvidenceError
from sigil.evidence import examine
from sigil.verdict.envelope import PAYLOAD_TYPE, sign

MALLORY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
DOCUMENT = Path(__file__).parents[2] / "docs/evidence.md"


def other_tool(content: bytes, *owners: str) -> dict[str, Any]:
    """What securesystemslib reads in an envelope that all these keys must have signed."""
    keys = [
        SSlibKey.from_crypto(Ed25519PublicKey.from_public_bytes(bytes.fromhex(one)), keyid=one)
        for one in owners
    ]
    envelope = Envelope.from_dict(json.loads(content))
    envelope.verify(keys, threshold=len(keys))
    if envelope.payload_type != PAYLOAD_TYPE:
        raise ValueError(envelope.payload_type)
    found: dict[str, Any] = json.loads(envelope.payload)
    return found


def public(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()


def test_another_tool_accepts_the_envelope_and_reads_the_same(make: Callable[..., Any]) -> None:
    report, key = make(0.98, on_inputs=0.99, origin=0.7)
    owner = key.signing_key()
    found = other_tool(sign(report, owner), public(owner))
    assert found["subject"] == [{"name": report.suspect.file, "digest": {"sha256": report.suspect.sha256}}]
    assert found["predicate"] == report.model_dump(mode="json")
    assert found["predicate"]["owned"] is True
    both = sign(report, owner, MALLORY)
    assert other_tool(both, public(owner), public(MALLORY)) == found
    assert examine(both).report == report


def test_the_documented_lines_check_an_envelope_without_sigil(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly the lines of docs/evidence.md, which name the suspect, the published line and the record."""
    text = DOCUMENT.read_text("utf-8")
    (lines,) = [
        block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "securesystemslib" in block
    ]
    assert "sigil" not in lines.replace("securesystemslib", "")
    monkeypatch.chdir(tmp_path)
    suspect = Path("runs/pruned/client.safetensors")
    suspect.parent.mkdir(parents=True)
    suspect.write_bytes(b"weights")
    report, key = make(sha256=hashlib.sha256(b"weights").hexdigest())
    Path("published.txt").write_text(key.statement() + "\n", "utf-8")
    Path("pruned.json").write_bytes(sign(report, key.signing_key()))
    shown: list[Any] = []
    exec(compile(lines, "evidence.md", "exec"), {"print": lambda *words: shown.extend(words)})
    assert shown == [True]
    suspect.write_bytes(b"others")
    with pytest.raises(AssertionError):
        exec(compile(lines, "evidence.md", "exec"), {"print": lambda *words: None})


def _flip(text: str, place: int) -> str:
    content = bytearray(base64.b64decode(text))
    content[place] ^= 1
    return base64.b64encode(bytes(content)).decode()


def _encoded(kind: str, payload: bytes) -> bytes:
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind.encode(), len(payload), payload)


def _mutations(report: Any, other: Any, owner: Ed25519PrivateKey) -> dict[str, Any]:
    """Envelopes that were tampered with, each in another way."""
    whole = json.loads(sign(report, owner))
    foreign = json.loads(sign(other, owner))
    payload = base64.b64decode(whole["payload"])

    def changed(**values: Any) -> dict[str, Any]:
        return copy.deepcopy(whole) | values

    def signed(**values: Any) -> dict[str, Any]:
        return changed(signatures=[whole["signatures"][0] | values])

    def sig(content: bytes, by: Ed25519PrivateKey = owner) -> dict[str, Any]:
        return signed(sig=base64.b64encode(by.sign(content)).decode())

    def without(name: str) -> dict[str, Any]:
        return {key: value for key, value in whole.items() if key != name}

    first = whole["signatures"][0]
    owned = payload.replace(b'"owned":false', b'"owned":true')
    assert owned != payload
    return {
        "owned": changed(payload=base64.b64encode(owned).decode()),
        "first byte": changed(payload=_flip(whole["payload"], 0)),
        "last byte": changed(payload=_flip(whole["payload"], -1)),
        "cut payload": changed(payload=base64.b64encode(payload[:-1]).decode()),
        "longer payload": changed(payload=base64.b64encode(payload + b" ").decode()),
        "empty payload": changed(payload=""),
        "payload of another report": changed(payload=foreign["payload"]),
        "no payload": without("payload"),
        "payload that is no text": changed(payload=7),
        "another type": changed(payloadType="application/json"),
        "longer type": changed(payloadType=PAYLOAD_TYPE + " "),
        "no type": without("payloadType"),
        "no list of signatures": without("signatures"),
        "no signature": changed(signatures=[]),
        "signature of another report": changed(signatures=foreign["signatures"]),
        "first byte of the signature": signed(sig=_flip(first["sig"], 0)),
        "last byte of the signature": signed(sig=_flip(first["sig"], -1)),
        "cut signature": signed(sig=base64.b64encode(base64.b64decode(first["sig"])[:-1]).decode()),
        "signature of zeros": signed(sig=base64.b64encode(bytes(64)).decode()),
        "no sig": changed(signatures=[{"keyid": first["keyid"]}]),
        "no keyid": changed(signatures=[{"sig": first["sig"]}]),
        "keyid of somebody else": signed(keyid=public(MALLORY)),
        "signed by somebody else under the owner's name": sig(_encoded(PAYLOAD_TYPE, payload), MALLORY),
        "somebody else's signature only": json.loads(sign(report, MALLORY)),
        "the same signature twice": changed(signatures=[first, first]),
        "signed without the type": sig(payload),
        "signed under another type": sig(_encoded("application/json", payload)),
        "signed under another length": sig(
            _encoded(PAYLOAD_TYPE, payload).replace(b"DSSEv1 28", b"DSSEv1 29")
        ),
    }


def test_both_tools_refuse_every_envelope_that_was_tampered_with(make: Callable[..., Any]) -> None:
    report, key = make(0.5)
    other, _ = make(0.98)
    owner = key.signing_key()
    mutations = _mutations(report, other, owner)
    assert len(mutations) >= 20
    whole = sign(report, owner)
    assert other_tool(whole, public(owner))["predicate"]["owned"] is examine(whole).report.owned is False
    for name, envelope in mutations.items():
        content = json.dumps(envelope, separators=(",", ":")).encode() + b"\n"
        assert content != whole, name
        with pytest.raises(Exception):  # noqa: B017, PT011  # the other tool has many
            other_tool(content, public(owner))
        with pytest.raises(EvidenceError):
            examine(content)
