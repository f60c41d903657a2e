"""Signed evidence: what was signed is what is read, byte for byte, or it is refused."""

from __future__ import annotations

import dataclasses
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
from sigil.keys.key import Key


def resigned(content: bytes, old: bytes, new: bytes, *, by: Ed25519PrivateKey) -> bytes:
    """Change the body and sign it again, as somebody with a signing key could."""
    body = content[len(b'{"body":') : content.index(b',"public_key":"')]
    assert body.count(old) == 1
    body = body.replace(old, new)
    public = by.public_key().public_bytes_raw()
    signature = by.sign(b"sigil evidence v2\n" + public + body)
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
        bytes.fromhex(file["signature"]), b"sigil evidence v2\n" + public + body
    )
    assert json.loads(body)["verdict"]["readings"][0]["wsr"] == facts.verdict.wsr
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


def test_an_order_by_what_was_brought_is_an_experiment(make: Callable[..., Any]) -> None:
    """Correlations can be those of a public base model, reordered to suit a key, as initial weights can."""
    facts, key = make(reference="1a" * 32, aligned=True)
    assert (facts.verdict.tries, facts.verdict.owned) == (2, False)
    owned, _ = make(reference="1a" * 32, compared="initial weights", aligned=True)
    assert owned.verdict.owned
    forged = facts.model_copy(update={"verdict": owned.verdict})
    with pytest.raises(EvidenceError, match="put in order by something that its key did not draw"):
        check(sign(forged, key.signing_key()))


@pytest.mark.parametrize("alpha", [1e-300, 5e-324])
def test_a_level_too_small_for_a_float_is_a_contradiction_and_no_crash(
    make: Callable[..., Any], alpha: float
) -> None:
    facts, key = make()
    verdict = facts.verdict.model_copy(update={"alpha": alpha})
    with pytest.raises(EvidenceError, match="contradicts itself"):
        check(sign(facts.model_copy(update={"verdict": verdict}), key.signing_key()))


def test_a_level_above_the_stated_one_is_refused(make: Callable[..., Any]) -> None:
    """A key states its level; who writes the record cannot take a milder one afterwards."""
    facts, key = make()
    strict = Key(dataclasses.replace(key.fields, alpha="1e-9"), bytes(32))
    stated = facts.key.model_copy(
        update={"statement": strict.statement(), "commitment": strict.commitment, "owner": strict.owner}
    )
    with pytest.raises(EvidenceError, match="level is above the stated one"):
        check(sign(facts.model_copy(update={"key": stated}), strict.signing_key()))


def test_a_stamp_that_no_root_vouched_for_is_counted_as_plain(make: Callable[..., Any]) -> None:
    """A stamped key is priced at 2^24, or at 2^80 where no root was named, and at nothing between."""
    facts, key = make(0.999, stamped=True)
    for allowance, accepted in ((24.0, True), (80.0, True), (40.0, False), (0.0, False)):
        priced = facts.verdict.model_copy(update={"allowance_log2": allowance})
        best = priced.best.as_reading()
        verdict = priced.model_copy(
            update={
                "log10_p": priced.price.corrected(best.log10_p_before),
                "threshold": best.threshold(priced.price.level(priced.alpha)),
            }
        )
        content = sign(facts.model_copy(update={"verdict": verdict}), key.signing_key())
        if accepted:
            assert check(content).facts.verdict.allowance_log2 == allowance
        else:
            with pytest.raises(EvidenceError, match="allowance is not that"):
                check(content)


def test_a_reference_that_was_not_used_need_not_be_published(make: Callable[..., Any]) -> None:
    facts, key = make(reference="1a" * 32, aligned=False)
    published = References(key.commitment, initial_weights="2b" * 32, correlations=None)
    checked = check(sign(facts, key.signing_key()), references=published.line())
    assert checked.facts.alignment.used is False


def test_initial_weights_that_the_key_drew_need_not_be_published(make: Callable[..., Any]) -> None:
    facts, key = make(reference="1a" * 32, compared="initial weights", aligned=True)
    published = References(key.commitment, initial_weights="2b" * 32, correlations=None)
    check(sign(facts, key.signing_key()), references=published.line())


@pytest.mark.parametrize(
    ("agreement", "old", "new", "what"),
    [
        (0.5, b'"owned":false', b'"owned":true', "verdict does not follow"),
        (0.5, b'"descends":false', b'"descends":true', "verdict on the origin does not follow"),
        (0.98, b'"tries":1', b'"tries":2', "corrected p-value does not follow"),
        (0.98, b'"cuts":1', b'"cuts":2', "corrected p-value does not follow"),
        (0.98, b'"allowance_log2":80.0', b'"allowance_log2":24.0', "allowance is not that"),
        (0.98, b'"register_count":null', b'"register_count":5', "allowance is not that"),
        (0.98, b'"kind":"plain"', b'"kind":"stamped"', "time stamp does not say"),
        (0.98, b'"bits":128,"cuts"', b'"bits":129,"cuts"', "key statement does not describe"),
        (0.98, b'"count":512', b'"count":511', "agreements do not fit"),
        (0.98, b'"agreements":[512,', b'"agreements":[511,', "not sorted"),
        (0.98, b'"source":"key"', b'"source":"judge"', "who chose the inputs"),
        (0.98, b'"seed":null', b'"seed":3', "the seed of its noise was chosen"),
        (0.98, b'"experiment":false', b'"experiment":true', "experiment without a reason"),
        (0.98, b'"owner":"ACME","shape"', b'"owner":"Eve","shape"', "key statement does not describe"),
        (0.98, b'"shape":[8,4,4],"stamped_at"', b'"shape":[8,4,2],"stamped_at"', "does not describe"),
        (0.98, b'"version":2}', b'"version":1}', "not well-formed"),
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


def test_models_in_one_file_are_tries_and_a_record_of_one_says_nothing_of_them(
    make: Callable[..., Any],
) -> None:
    facts, key = make(0.98)
    alone = sign(facts, key.signing_key())
    assert b'"entries"' not in alone
    for entries, held in ((facts.verdict.tries, True), (2 * facts.verdict.tries, False)):
        suspect = facts.suspect.model_copy(update={"entry": "ema", "entries": entries, "unread": 3})
        content = sign(facts.model_copy(update={"suspect": suspect}), key.signing_key())
        assert b'"entry":"ema"' in content
        if held:
            assert check(content).facts.suspect == suspect
        else:
            with pytest.raises(EvidenceError, match="did not count each model in the file as a try"):
                check(content)


@pytest.mark.parametrize(
    ("field", "what"),
    [("log10_p", "p-value"), ("threshold", "threshold"), ("log10_p_origin", "p-value of the origin")],
)
def test_a_number_that_is_slightly_off_is_noticed(make: Callable[..., Any], field: str, what: str) -> None:
    facts, key = make(0.97, origin=0.71)
    better = {field: getattr(facts.verdict, field) * (1 + 1e-4)}
    wrong = facts.model_copy(update={"verdict": facts.verdict.model_copy(update=better)})
    with pytest.raises(EvidenceError, match=f"{what} does not follow"):
        check(sign(wrong, key.signing_key()))


@pytest.mark.parametrize("kind", ["noise", "inputs", "origin"])
@pytest.mark.parametrize(("field", "what"), [("wsr", "success rate"), ("log10_p_before", "p-value")])
def test_a_reading_that_is_slightly_off_is_noticed(
    make: Callable[..., Any], kind: str, field: str, what: str
) -> None:
    facts, key = make(0.9, on_inputs=0.8, origin=0.71)
    readings = tuple(
        one.model_copy(update={field: getattr(one, field) * (1 + 1e-4)}) if one.kind == kind else one
        for one in facts.verdict.readings
    )
    verdict = facts.verdict.model_copy(update={"readings": readings})
    with pytest.raises(EvidenceError, match=f"a {what} does not follow"):
        check(sign(facts.model_copy(update={"verdict": verdict}), key.signing_key()))


def test_what_the_claimant_chose_cannot_be_called_proof(make: Callable[..., Any]) -> None:
    """Neither inputs of the claimant's nor those of a digest that the statement does not name."""
    facts, key = make(0.5, on_inputs=1.0, source="claimant")
    assert not facts.verdict.owned
    content = sign(facts, key.signing_key())
    assert check(content).facts.verdict.best.kind == "noise"
    with pytest.raises(EvidenceError, match="contradicts itself"):
        check(resigned(content, b'"source":"claimant"', b'"source":"judge"', by=key.signing_key()))
    facts, key = make(0.5, on_inputs=1.0, source="statement")
    assert facts.verdict.owned
    content = sign(facts, key.signing_key())
    check(content)
    other = resigned(content, b'"digest":"' + b"ab" * 32, b'"digest":"' + b"ac" * 32, by=key.signing_key())
    with pytest.raises(EvidenceError, match="does not fit its statement"):
        check(other)


def test_an_experiment_cannot_hide(make: Callable[..., Any]) -> None:
    facts, key = make(0.98, seed=4)
    assert (facts.verdict.owned, facts.verdict.experiment) == (False, True)
    check(sign(facts, key.signing_key()))
    honest = facts.verdict.model_copy(update={"experiment": False, "reasons": (), "owned": True})
    with pytest.raises(EvidenceError, match="does not say so"):
        check(sign(facts.model_copy(update={"verdict": honest}), key.signing_key()))
    unseeded = honest.model_copy(update={"seed": None, "alpha": 0.01})
    with pytest.raises(EvidenceError, match="contradicts itself"):
        check(sign(facts.model_copy(update={"verdict": unseeded}), key.signing_key()))


def test_a_stamp_must_be_one_over_the_statement(make: Callable[..., Any]) -> None:
    facts, key = make(stamped=True)
    content = sign(facts, key.signing_key())
    assert check(content).stamp.sigma == key.stamp.sigma
    other = make(stamped=True, owner="Eve")[0].key.token
    for token, what in ((other, "another statement"), ("AAAA", "not sound"), (None, "does not say")):
        wrong = facts.key.model_copy(update={"token": token})
        with pytest.raises(EvidenceError, match=what):
            check(sign(facts.model_copy(update={"key": wrong}), key.signing_key()))
    later = facts.key.model_copy(update={"stamped_at": "2020-01-02T03:04:05Z"})
    with pytest.raises(EvidenceError, match="does not say"):
        check(sign(facts.model_copy(update={"key": later}), key.signing_key()))


@pytest.mark.parametrize(
    ("stated", "least"),
    [
        ({"input_shape": None, "cut": None}, 64),
        ({"input_shape": None}, 64),
        ({"cut": None, "model": "vgg11"}, 12),
        ({"cut": None, "model": "something-else"}, 64),
        ({"cut": None}, 9),  # no model of Sigil's has fewer places
        ({}, 1),
    ],
)
def test_what_the_statement_leaves_open_must_be_counted(
    make: Callable[..., Any], stated: dict[str, Any], least: int
) -> None:
    """A record took one cut for a key that states neither cut nor shape, and held."""
    for cuts in {1, least - 1, least, 64} - {0}:
        facts, key = make(stated=stated, cuts=cuts)
        content = sign(facts, key.signing_key())
        if cuts >= least:
            assert check(content).facts.verdict.cuts == cuts
        else:
            with pytest.raises(EvidenceError, match=f"leaves at least {least} cuts and input shapes open"):
                check(content)


def test_a_plain_record_cannot_take_the_smaller_allowance_by_losing_its_stamp(
    make: Callable[..., Any],
) -> None:
    facts, key = make(stamped=True)
    bare = facts.key.model_copy(
        update={"token": None, "stamped_at": None, "authority": None, "kind": "plain"}
    )
    with pytest.raises(EvidenceError, match="allowance"):
        check(sign(facts.model_copy(update={"key": bare}), key.signing_key()))


def test_long_keys_and_bounds_pass_too(make: Callable[..., Any]) -> None:
    for bits, probes in ((1, 1), (8, 3), (1000, 64)):
        facts, key = make(0.9, bits=bits, probes=probes, tries=3)
        assert check(sign(facts, key.signing_key())).facts == facts


def test_what_cannot_be_read_is_recorded_as_such(make: Callable[..., Any]) -> None:
    facts, key = make(readable=False)
    assert check(sign(facts, key.signing_key())).facts.verdict.owned is False
    facts, key = make(readable=False, on_inputs=0.99)
    assert check(sign(facts, key.signing_key())).facts.verdict.owned is True


def test_a_register_that_a_judge_counted_replaces_the_allowance(make: Callable[..., Any]) -> None:
    facts, key = make(0.98, bits=50, register=100)
    assert facts.verdict.owned
    assert check(sign(facts, key.signing_key())).facts.verdict.register_count == 100
    assert not make(0.98, bits=50)[0].verdict.owned


def test_a_bound_stays_valid_when_the_exact_value_is_known(make: Callable[..., Any]) -> None:
    facts, key = make(0.9)
    (noise,) = facts.verdict.readings
    looser = noise.model_copy(update={"exact": False, "log10_p_before": noise.log10_p_before + 1.0})
    bound = facts.verdict.model_copy(update={"readings": (looser,), "log10_p": facts.verdict.log10_p + 1.0})
    checked = check(sign(facts.model_copy(update={"verdict": bound}), key.signing_key()))
    assert checked.facts.verdict.exact is False


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
