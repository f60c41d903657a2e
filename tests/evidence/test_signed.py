"""Signed evidence: what was signed is what is read, byte for byte, or it is refused."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from sigil.errors import EvidenceError
from sigil.evidence import examine
from sigil.evidence.published import References
from sigil.keys.key import Key
from sigil.suspect import Suspect
from sigil.verdict.envelope import (
    MAX_FILE,
    PAYLOAD_TYPE,
    load_private_key,
    read_file,
    read_public_key,
    sign,
)


def enveloped(payload: bytes, *signers: Ed25519PrivateKey, kind: str = PAYLOAD_TYPE) -> bytes:
    """An envelope around any payload, written once more from the description of DSSE."""
    encoded = b"DSSEv1 %d %b %d %b" % (len(kind), kind.encode(), len(payload), payload)
    signatures = [
        {
            "keyid": one.public_key().public_bytes_raw().hex(),
            "sig": base64.b64encode(one.sign(encoded)).decode(),
        }
        for one in signers
    ]
    document = {"payload": base64.b64encode(payload).decode(), "payloadType": kind, "signatures": signatures}
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def payload_of(content: bytes) -> bytes:
    return base64.b64decode(json.loads(content)["payload"])


def resigned(content: bytes, old: bytes, new: bytes, *, by: Ed25519PrivateKey) -> bytes:
    """Change the payload and sign it again, as somebody with a signing key could."""
    payload = payload_of(content)
    assert payload.count(old) == 1
    return enveloped(payload.replace(old, new), by)


def opened(sha256: str) -> Suspect:
    return Suspect(Path("model.safetensors"), "safetensors", "", sha256, None, None, lambda batch: batch)


def test_round_trip(make: Callable[..., Any]) -> None:
    facts, key = make()
    content = sign(facts, key.signing_key())
    checked = examine(content, statement=key.statement(), suspect=opened(facts.suspect.sha256))
    assert checked.report == facts
    assert checked.signers == (key.signing_key().public_key().public_bytes_raw().hex(),)
    assert checked.vouched
    assert content == sign(facts, key.signing_key())


def test_it_is_an_attestation_about_the_suspect(make: Callable[..., Any]) -> None:
    """A checker written from the description alone, without Sigil."""
    facts, key = make()
    content = sign(facts, key.signing_key())
    assert content == enveloped(payload_of(content), key.signing_key())
    (signature,) = json.loads(content)["signatures"]
    assert f'"evidence_key":"{signature["keyid"]}"' in key.statement()
    found = json.loads(payload_of(content))
    assert found.keys() == {"_type", "subject", "predicateType", "predicate"}
    assert found["_type"] == "https://in-toto.io/Statement/v1"
    assert found["subject"] == [{"name": "model.safetensors", "digest": {"sha256": "0f" * 32}}]
    assert found["predicateType"] == "urn:sigil-watermark:verdict:v1"
    assert found["predicate"]["readings"][0]["wsr"] == facts.wsr


def test_every_changed_byte_is_refused(make: Callable[..., Any]) -> None:
    facts, key = make(bits=4)
    content = sign(facts, key.signing_key())
    for place in range(len(content)):
        for flip in (0x01, 0x20, 0x80):
            changed = bytearray(content)
            changed[place] ^= flip
            with pytest.raises(EvidenceError):
                examine(bytes(changed))


def test_added_and_missing_bytes_are_refused(make: Callable[..., Any]) -> None:
    facts, key = make(bits=4)
    content = sign(facts, key.signing_key())
    for changed in (b"", content[:-1], content[1:], content + b"\n", b" " + content, content * 2):
        with pytest.raises(EvidenceError):
            examine(changed)
    for place in range(len(content)):
        with pytest.raises(EvidenceError):
            examine(content[:place] + content[place + 1 :])


def test_another_layout_of_the_same_json_is_refused(make: Callable[..., Any]) -> None:
    facts, key = make()
    content = sign(facts, key.signing_key())
    with pytest.raises(EvidenceError, match="re-formatted"):
        examine(json.dumps(json.loads(content), indent=2).encode())


def test_a_file_that_is_too_long_is_refused() -> None:
    with pytest.raises(EvidenceError, match="longer than"):
        examine(b"{" * (MAX_FILE + 1))


def test_signing_again_with_another_key_does_not_pass_for_the_owner(
    make: Callable[..., Any],
) -> None:
    facts, key = make(0.5)
    mallory = Ed25519PrivateKey.generate()
    owner = key.signing_key().public_key().public_bytes_raw().hex()
    forged = sign(facts, mallory)
    for asked in ({"signer": owner}, {"statement": key.statement()}, {}):
        with pytest.raises(EvidenceError, match=f"signed by .* and not by {owner}"):
            examine(forged, **asked)


def test_somebody_else_signs_as_well(make: Callable[..., Any]) -> None:
    facts, key = make()
    auditor, owner = Ed25519PrivateKey.generate(), key.signing_key()
    names = [one.public_key().public_bytes_raw().hex() for one in (owner, auditor)]
    content = sign(facts, owner, auditor)
    assert examine(content).signers == tuple(names)
    assert not examine(content).vouched
    for name in names:
        assert examine(content, signer=name).vouched
    with pytest.raises(EvidenceError, match="not by 0000"):
        examine(content, signer="00" * 32)
    # Every signature must be good, also one that nobody asked for.
    lone = json.loads(sign(make(0.5)[0], auditor))["signatures"]
    mixed = json.loads(content)
    mixed["signatures"][1] = lone[0]
    with pytest.raises(EvidenceError, match="signature does not fit"):
        examine(json.dumps(mixed, separators=(",", ":")).encode() + b"\n")
    with pytest.raises(EvidenceError, match="two signatures by one key"):
        examine(enveloped(payload_of(content), owner, owner))


def test_evidence_for_another_key_is_refused(make: Callable[..., Any]) -> None:
    facts, key = make()
    other = Key.generate("ACME", shape=key.shape, bits=key.bits, seed=bytes(32))
    with pytest.raises(EvidenceError, match="another key"):
        examine(sign(facts, key.signing_key()), statement=other.statement())


def test_another_suspect_is_refused(make: Callable[..., Any]) -> None:
    facts, key = make()
    with pytest.raises(EvidenceError, match="not the one that was examined"):
        examine(sign(facts, key.signing_key()), suspect=opened("00" * 32))


def test_a_reference_must_be_one_that_was_published(make: Callable[..., Any]) -> None:
    facts, key = make(reference="1a" * 32, aligned=True)
    content = sign(facts, key.signing_key())
    assert examine(content).report.alignment == facts.alignment
    for published in (
        References(key.commitment, initial_weights="1a" * 32, correlations=None),
        References(key.commitment, initial_weights="2b" * 32, correlations="1a" * 32),
    ):
        examine(content, references=published.line())
    later = References(key.commitment, initial_weights="2b" * 32, correlations="3c" * 32)
    with pytest.raises(EvidenceError, match="was not published"):
        examine(content, references=later.line())
    others = References("00" * 32, initial_weights="1a" * 32, correlations=None)
    with pytest.raises(EvidenceError, match="another key"):
        examine(content, references=others.line())


def test_an_order_by_what_was_brought_is_an_experiment(make: Callable[..., Any]) -> None:
    """Correlations can be those of a public base model, reordered to suit a key, as initial weights can."""
    facts, key = make(reference="1a" * 32, aligned=True)
    assert (facts.tries, facts.owned) == (2, False)
    owned, _ = make(reference="1a" * 32, compared="initial weights", aligned=True)
    assert owned.owned
    forged = owned.model_copy(update={"alignment": facts.alignment})
    with pytest.raises(EvidenceError, match="put in order by something that its key did not draw"):
        examine(sign(forged, key.signing_key()))


@pytest.mark.parametrize("alpha", [1e-300, 5e-324])
def test_a_level_too_small_for_a_float_is_a_contradiction_and_no_crash(
    make: Callable[..., Any], alpha: float
) -> None:
    facts, key = make()
    verdict = facts.model_copy(update={"alpha": alpha})
    with pytest.raises(EvidenceError, match="contradicts itself"):
        examine(sign(verdict, key.signing_key()))


def test_a_level_above_the_stated_one_is_refused(make: Callable[..., Any]) -> None:
    """A key states its level; who writes the record cannot take a milder one afterwards."""
    facts, key = make()
    strict = Key(dataclasses.replace(key.fields, alpha="1e-9"), bytes(32))
    stated = facts.key.model_copy(
        update={"statement": strict.statement(), "commitment": strict.commitment, "owner": strict.owner}
    )
    with pytest.raises(EvidenceError, match="level is above the stated one"):
        examine(sign(facts.model_copy(update={"key": stated}), strict.signing_key()))


def test_a_stamp_that_no_root_vouched_for_is_counted_as_plain(make: Callable[..., Any]) -> None:
    """A stamped key is priced at 2^24, or at 2^80 where no root was named, and at nothing between."""
    facts, key = make(0.999, stamped=True)
    for allowance, accepted in ((24.0, True), (80.0, True), (40.0, False), (0.0, False)):
        priced = facts.model_copy(update={"allowance_log2": allowance})
        best = priced.best
        verdict = priced.model_copy(
            update={
                "log10_p": priced.price.corrected(best.log10_p_before),
                "threshold": best.threshold(priced.price.level(priced.alpha)),
            }
        )
        content = sign(verdict, key.signing_key())
        if accepted:
            assert examine(content).report.allowance_log2 == allowance
        else:
            with pytest.raises(EvidenceError, match="allowance is not that"):
                examine(content)


def test_a_reference_that_was_not_used_need_not_be_published(make: Callable[..., Any]) -> None:
    facts, key = make(reference="1a" * 32, aligned=False)
    published = References(key.commitment, initial_weights="2b" * 32, correlations=None)
    checked = examine(sign(facts, key.signing_key()), references=published.line())
    assert checked.report.alignment.used is False


def test_initial_weights_that_the_key_drew_need_not_be_published(make: Callable[..., Any]) -> None:
    facts, key = make(reference="1a" * 32, compared="initial weights", aligned=True)
    published = References(key.commitment, initial_weights="2b" * 32, correlations=None)
    examine(sign(facts, key.signing_key()), references=published.line())


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
        (0.98, b'"bits":128,"command"', b'"bits":129,"command"', "key statement does not describe"),
        (0.98, b'"count":512', b'"count":511', "agreements do not fit"),
        (0.98, b'"agreements":[512,', b'"agreements":[511,', "not sorted"),
        (0.98, b'"source":"key"', b'"source":"judge"', "who chose the inputs"),
        (0.98, b'"seed":null', b'"seed":3', "the seed of its noise was chosen"),
        (0.98, b'"reasons":[]', b'"reasons":[],"experiment":true', "not well-formed"),
        (0.98, b'"owner":"ACME","shape"', b'"owner":"Eve","shape"', "key statement does not describe"),
        (0.98, b'"shape":[8,4,4],"stamped_at"', b'"shape":[8,4,2],"stamped_at"', "does not describe"),
        (0.98, b"Statement/v1", b"Statement/v0.1", "not well-formed"),
        (0.98, b"verdict:v1", b"verdict:v2", "not well-formed"),
        (0.98, b'{"sha256":"0f', b'{"sha256":"0e', "its subject is not its suspect"),
        (0.98, b'{"sha256":"0f', b'{"sha512":"0f', "its subject is not its suspect"),
        (0.98, b'"name":"model', b'"name":"another', "its subject is not its suspect"),
        (0.98, b'"incomplete":0', b'"incomplete":513', "agreements do not fit"),
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
        examine(resigned(content, old, new, by=key.signing_key()))


def test_models_in_one_file_are_tries(make: Callable[..., Any]) -> None:
    facts, key = make(0.98, tries=2)
    for names, held in ((("ema", "model"), True), (("a", "b", "c", "ema"), False)):
        suspect = facts.suspect.model_copy(update={"entry": "ema", "entries": names, "unread": 3})
        content = sign(facts.model_copy(update={"suspect": suspect}), key.signing_key())
        if held:
            assert examine(content).report.suspect == suspect
        else:
            with pytest.raises(EvidenceError, match="did not count each model in the file as a try"):
                examine(content)


@pytest.mark.parametrize(
    ("field", "what"),
    [("log10_p", "p-value"), ("threshold", "threshold"), ("log10_p_origin", "p-value of the origin")],
)
def test_a_number_that_is_slightly_off_is_noticed(make: Callable[..., Any], field: str, what: str) -> None:
    facts, key = make(0.97, origin=0.71)
    better = {field: getattr(facts, field) * (1 + 1e-4)}
    wrong = facts.model_copy(update=better)
    with pytest.raises(EvidenceError, match=f"{what} does not follow"):
        examine(sign(wrong, key.signing_key()))


@pytest.mark.parametrize("kind", ["noise", "inputs", "origin"])
@pytest.mark.parametrize(("field", "what"), [("wsr", "success rate"), ("log10_p_before", "p-value")])
def test_a_reading_that_is_slightly_off_is_noticed(
    make: Callable[..., Any], kind: str, field: str, what: str
) -> None:
    facts, key = make(0.9, on_inputs=0.8, origin=0.71)
    readings = tuple(
        one.model_copy(update={field: getattr(one, field) * (1 + 1e-4)}) if one.kind == kind else one
        for one in facts.readings
    )
    verdict = facts.model_copy(update={"readings": readings})
    with pytest.raises(EvidenceError, match=f"a {what} does not follow"):
        examine(sign(verdict, key.signing_key()))


def test_what_the_claimant_chose_cannot_be_called_proof(make: Callable[..., Any]) -> None:
    """Neither inputs of the claimant's nor those of a digest that the statement does not name."""
    facts, key = make(0.5, on_inputs=1.0, source="claimant")
    assert not facts.owned
    content = sign(facts, key.signing_key())
    assert examine(content).report.best.kind == "noise"
    with pytest.raises(EvidenceError, match="contradicts itself"):
        examine(resigned(content, b'"source":"claimant"', b'"source":"judge"', by=key.signing_key()))
    facts, key = make(0.5, on_inputs=1.0, source="statement")
    assert facts.owned
    content = sign(facts, key.signing_key())
    examine(content)
    other = resigned(content, b'"digest":"' + b"ab" * 32, b'"digest":"' + b"ac" * 32, by=key.signing_key())
    with pytest.raises(EvidenceError, match="does not fit its statement"):
        examine(other)


def test_an_experiment_cannot_hide(make: Callable[..., Any]) -> None:
    facts, key = make(0.98, seed=4)
    assert (facts.owned, facts.experiment) == (False, True)
    examine(sign(facts, key.signing_key()))
    honest = facts.model_copy(update={"reasons": (), "owned": True})
    with pytest.raises(EvidenceError, match="does not say so"):
        examine(sign(honest, key.signing_key()))
    unseeded = honest.model_copy(update={"seed": None, "alpha": 0.01})
    with pytest.raises(EvidenceError, match="contradicts itself"):
        examine(sign(unseeded, key.signing_key()))


def test_a_stamp_must_be_one_over_the_statement(make: Callable[..., Any]) -> None:
    facts, key = make(stamped=True)
    content = sign(facts, key.signing_key())
    assert examine(content).stamp.sigma == key.stamp.sigma
    other = make(stamped=True, owner="Eve")[0].key.token
    for token, what in ((other, "another statement"), ("AAAA", "not sound"), (None, "does not say")):
        wrong = facts.key.model_copy(update={"token": token})
        with pytest.raises(EvidenceError, match=what):
            examine(sign(facts.model_copy(update={"key": wrong}), key.signing_key()))
    later = facts.key.model_copy(update={"stamped_at": "2020-01-02T03:04:05Z"})
    with pytest.raises(EvidenceError, match="does not say"):
        examine(sign(facts.model_copy(update={"key": later}), key.signing_key()))


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
            assert examine(content).report.cuts == cuts
        else:
            with pytest.raises(EvidenceError, match=f"leaves at least {least} cuts and input shapes open"):
                examine(content)


def test_a_plain_record_cannot_take_the_smaller_allowance_by_losing_its_stamp(
    make: Callable[..., Any],
) -> None:
    facts, key = make(stamped=True)
    bare = facts.key.model_copy(
        update={"token": None, "stamped_at": None, "authority": None, "kind": "plain"}
    )
    with pytest.raises(EvidenceError, match="allowance"):
        examine(sign(facts.model_copy(update={"key": bare}), key.signing_key()))


def test_long_keys_and_bounds_pass_too(make: Callable[..., Any]) -> None:
    for bits, probes in ((1, 1), (8, 3), (1000, 64)):
        facts, key = make(0.9, bits=bits, probes=probes, tries=3)
        assert examine(sign(facts, key.signing_key())).report == facts


def test_what_cannot_be_read_is_recorded_as_such(make: Callable[..., Any]) -> None:
    facts, key = make(readable=False)
    assert examine(sign(facts, key.signing_key())).report.owned is False
    facts, key = make(readable=False, on_inputs=0.99)
    assert examine(sign(facts, key.signing_key())).report.owned is True


def test_a_register_that_a_judge_counted_replaces_the_allowance(make: Callable[..., Any]) -> None:
    facts, key = make(0.98, bits=50, register=100)
    assert facts.owned
    assert examine(sign(facts, key.signing_key())).report.register_count == 100
    assert not make(0.98, bits=50)[0].owned


def test_a_bound_stays_valid_when_the_exact_value_is_known(make: Callable[..., Any]) -> None:
    facts, key = make(0.9)
    (noise,) = facts.readings
    looser = noise.model_copy(update={"exact": False, "log10_p_before": noise.log10_p_before + 1.0})
    bound = facts.model_copy(update={"readings": (looser,), "log10_p": facts.log10_p + 1.0})
    checked = examine(sign(bound, key.signing_key()))
    assert checked.report.exact is False


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
    with pytest.raises(EvidenceError, match="Cannot read"):
        read_file(tmp_path / "missing")
