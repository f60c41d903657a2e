"""Signed evidence: what was signed is what is read, byte for byte, or it is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from sigil.errors import EvidenceError
from sigil.evidence.signed import (
    MAX_FILE,
    check,
    load_private_key,
    read_file,
    read_public_key,
    sha256_of,
    sign,
)
from sigil.evidence.statement import References
from sigil.key import Key


def resigned(content: bytes, old: bytes, new: bytes, *, by: Ed25519PrivateKey) -> bytes:
    """Change the body and sign it again, as somebody with a signing key could."""
    body = content[len(b'{"body":') : content.index(b',"public_key":"')]
    assert body.count(old) == 1
    body = body.replace(old, new)
    public = by.public_key().public_bytes_raw()
    signature = by.sign(b"sigil evidence v1\n" + public + body)
    return b'{"body":%b,"public_key":"%b","signature":"%b"}\n' % (
        body,
        public.hex().encode(),
        signature.hex().encode(),
    )


def test_round_trip(make: Callable[..., Any]) -> None:
    facts, key = make()
    content = sign(facts, key.signing_key())
    checked = check(content, statement=key.statement(), suspect_sha256=facts.suspect.sha256)
    assert checked.facts == facts
    assert checked.signed_by == "owner"
    assert checked.pinned
    assert content == sign(facts, key.signing_key())


def test_it_is_plain_json_and_the_signature_covers_its_bytes(make: Callable[..., Any]) -> None:
    """A checker written from the description alone, without Sigil."""
    facts, key = make()
    content = sign(facts, key.signing_key())
    file = json.loads(content)
    body = content[len(b'{"body":') : content.rindex(b',"public_key":"')]
    public = bytes.fromhex(file["public_key"])
    Ed25519PublicKey.from_public_bytes(public).verify(
        bytes.fromhex(file["signature"]), b"sigil evidence v1\n" + public + body
    )
    assert json.loads(body)["verdict"]["wsr"] == facts.verdict.wsr
    assert f'"evidence_key":"{file["public_key"]}"' in key.statement()


def test_every_changed_byte_is_refused(make: Callable[..., Any]) -> None:
    facts, key = make(bits=4)
    content = sign(facts, key.signing_key())
    for place in range(len(content)):
        for flip in (0x01, 0x20, 0x80):
            changed = bytearray(content)
            changed[place] ^= flip
            with pytest.raises(EvidenceError):
                check(bytes(changed))


def test_added_and_missing_bytes_are_refused(make: Callable[..., Any]) -> None:
    facts, key = make(bits=4)
    content = sign(facts, key.signing_key())
    for changed in (b"", content[:-1], content[1:], content + b"\n", b" " + content, content * 2):
        with pytest.raises(EvidenceError):
            check(changed)
    for place in range(len(content)):
        with pytest.raises(EvidenceError):
            check(content[:place] + content[place + 1 :])


def test_another_layout_of_the_same_json_is_refused(make: Callable[..., Any]) -> None:
    facts, key = make()
    content = sign(facts, key.signing_key())
    with pytest.raises(EvidenceError, match="re-formatted"):
        check(json.dumps(json.loads(content), indent=2).encode())


def test_a_file_that_is_too_long_is_refused() -> None:
    with pytest.raises(EvidenceError, match="longer than"):
        check(b"{" * (MAX_FILE + 1))


def test_signing_again_with_another_key_does_not_pass_for_the_owner(
    make: Callable[..., Any],
) -> None:
    facts, key = make(0.5)
    mallory = Ed25519PrivateKey.generate()
    owner = key.signing_key().public_key().public_bytes_raw().hex()
    forged = sign(facts, mallory)
    with pytest.raises(EvidenceError, match="signed by"):
        check(forged, signer=owner)
    with pytest.raises(EvidenceError, match="signed by"):
        check(forged, statement=key.statement())
    unpinned = check(forged)
    assert unpinned.signed_by == "other"
    assert not unpinned.pinned


def test_evidence_for_another_key_is_refused(make: Callable[..., Any]) -> None:
    facts, key = make()
    other = Key.generate("ACME", shape=key.shape, bits=key.bits, seed=bytes(32))
    with pytest.raises(EvidenceError, match="another key"):
        check(sign(facts, key.signing_key()), statement=other.statement())


def test_another_suspect_is_refused(make: Callable[..., Any]) -> None:
    facts, key = make()
    with pytest.raises(EvidenceError, match="not the file that was examined"):
        check(sign(facts, key.signing_key()), suspect_sha256="00" * 32)


def test_a_reference_must_be_one_that_was_published(make: Callable[..., Any]) -> None:
    facts, key = make(reference="1a" * 32, aligned=True)
    content = sign(facts, key.signing_key())
    assert check(content).facts.alignment == facts.alignment
    for published in (
        References(key.commitment, initial_weights="1a" * 32, correlations=None),
        References(key.commitment, initial_weights="2b" * 32, correlations="1a" * 32),
    ):
        check(content, references=published.line())
    later = References(key.commitment, initial_weights="2b" * 32, correlations="3c" * 32)
    with pytest.raises(EvidenceError, match="was not published"):
        check(content, references=later.line())
    others = References("00" * 32, initial_weights="1a" * 32, correlations=None)
    with pytest.raises(EvidenceError, match="another key"):
        check(content, references=others.line())


def test_a_reference_that_was_not_used_need_not_be_published(make: Callable[..., Any]) -> None:
    facts, key = make(reference="1a" * 32, aligned=False)
    published = References(key.commitment, initial_weights="2b" * 32, correlations=None)
    checked = check(sign(facts, key.signing_key()), references=published.line())
    assert checked.facts.alignment.used is False


@pytest.mark.parametrize(
    ("agreement", "old", "new", "what"),
    [
        (0.5, b'"owned":false', b'"owned":true', "verdict does not follow"),
        (0.98, b'"paper_rule":true', b'"paper_rule":false', "paper's rule"),
        (0.98, b'"tries":1', b'"tries":2', "p-value does not follow"),
        (0.98, b'"bits":50,"exact"', b'"bits":51,"exact"', "agreements do not fit"),
        (0.98, b'"probes":512', b'"probes":511', "agreements do not fit"),
        (0.98, b'"agreements":[512,', b'"agreements":[511,', "not sorted"),
        (0.98, b'"owner":"ACME"', b'"owner":"Eve"', "key statement does not describe"),
        (0.98, b'"shape":[8,4,4]', b'"shape":[8,4,2]', "key statement does not describe"),
        (0.98, b'"version":1', b'"version":2', "not well-formed"),
        (0.98, b'"exact":true', b'"exact":1', "not well-formed"),
        (0.98, b'"exact":true', b'"exact":true,"more":1', "not well-formed"),
        (0.98, b'"exact":true', b'"exact": true', "canonical"),
        (0.98, b'"exact":true', b'"exact":false,"exact":true', "canonical"),
        (0.98, b'"alpha":3e-07', b'"alpha":3.0e-07', "canonical"),
    ],
)
def test_even_the_owner_cannot_sign_numbers_that_contradict_each_other(
    make: Callable[..., Any], agreement: float, old: bytes, new: bytes, what: str
) -> None:
    facts, key = make(agreement)
    content = sign(facts, key.signing_key())
    with pytest.raises(EvidenceError, match=what):
        check(resigned(content, old, new, by=key.signing_key()))


@pytest.mark.parametrize(
    ("field", "what"),
    [("wsr", "success rate"), ("log10_p", "p-value"), ("threshold", "threshold")],
)
def test_a_number_that_is_slightly_off_is_noticed(make: Callable[..., Any], field: str, what: str) -> None:
    facts, key = make(0.8)
    better = {field: getattr(facts.verdict, field) * (1 + 1e-4)}
    wrong = facts.model_copy(update={"verdict": facts.verdict.model_copy(update=better)})
    with pytest.raises(EvidenceError, match=f"{what} does not follow"):
        check(sign(wrong, key.signing_key()))


def test_long_keys_and_bounds_pass_too(make: Callable[..., Any]) -> None:
    for bits, probes in ((1, 1), (8, 3), (1000, 64)):
        facts, key = make(0.9, bits=bits, probes=probes, tries=3)
        assert check(sign(facts, key.signing_key())).facts == facts


def test_a_bound_stays_valid_when_the_exact_value_is_known(make: Callable[..., Any]) -> None:
    facts, key = make(0.9)
    looser = {"exact": False, "log10_p": facts.verdict.log10_p + 1.0}
    bound = facts.model_copy(update={"verdict": facts.verdict.model_copy(update=looser)})
    assert check(sign(bound, key.signing_key())).facts.verdict.exact is False


def test_neither_seed_nor_bits_nor_matrix_are_in_the_file(make: Callable[..., Any]) -> None:
    facts, key = make()
    content = sign(facts, key.signing_key())
    seed = bytes(range(100, 132))
    assert seed not in content
    assert seed.hex().encode() not in content
    assert key.signing_key().private_bytes_raw().hex().encode() not in content
    bits = "".join(str(int(bit)) for bit in key.target.tolist())
    assert bits.encode() not in content
    assert ",".join(bits).encode() not in content


def test_signing_keys_from_pem(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    plain, locked = tmp_path / "plain.pem", tmp_path / "locked.pem"
    plain.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    lock = BestAvailableEncryption(b"open sesame")
    locked.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock))
    assert load_private_key(plain).private_bytes_raw() == key.private_bytes_raw()
    opened = load_private_key(locked, ask=lambda: "open sesame")
    assert opened.private_bytes_raw() == key.private_bytes_raw()
    with pytest.raises(EvidenceError, match="encrypted"):
        load_private_key(locked)
    with pytest.raises(EvidenceError, match="passphrase is wrong"):
        load_private_key(locked, ask=lambda: "open, please")
    plain.write_text("not a key")
    with pytest.raises(EvidenceError, match="not an Ed25519 private key"):
        load_private_key(plain)


def test_public_keys(tmp_path: Path) -> None:
    assert read_public_key("AB" * 32 + "\n") == "ab" * 32
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nothing")
    for text in ("ab" * 31, "zz" * 32, str(tmp_path / "missing"), str(wrong)):
        with pytest.raises(EvidenceError):
            read_public_key(text)


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100)
    assert len(read_file(file, limit=10)) == 11
    assert sha256_of(file) == hashlib.sha256(b"x" * 100).hexdigest()
    for read in (read_file, sha256_of):
        with pytest.raises(EvidenceError, match="Cannot read"):
            read(tmp_path / "missing")
