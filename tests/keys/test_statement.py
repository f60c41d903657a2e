"""Statements: every field binds, one spelling each, and nothing else is one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sigil.errors import ConfigError
from sigil.keys import statement
from sigil.keys.key import Key
from sigil.keys.statement import KeyFields, parse

DIGEST = "ab" * 32
CHOICES: dict[str, Any] = {
    "owner": "Eve",
    "shape": (2, 6),
    "bits": 6,
    "model": "vgg11",
    "width": 8,
    "classes": 10,
    "cut": "layer2",
    "input_shape": (3, 8, 8),
    "normalisation": ((0.5, 0.25, 0), (1, 2, 3e-3)),
    "scheme": "shares",
    "inputs_digest": DIGEST,
    "probes": 1024,
    "alpha": 1e-9,
    "initialiser": None,
    "seal": "rfc3161",
}


def make(**changes: Any) -> Key:
    return Key.generate(**{"owner": "ACME", "shape": (3, 4), "bits": 5, "seed": bytes(32)} | changes)


@pytest.mark.parametrize("name", CHOICES)
def test_every_field_changes_commitment_evidence_key_and_secrets(name: str) -> None:
    plain, other = make(), make(**{name: CHOICES[name]})
    assert plain.fields.encoded() != other.fields.encoded()
    assert plain.commitment != other.commitment
    assert plain.signing_key().private_bytes_raw() != other.signing_key().private_bytes_raw()
    if name != "seal":
        assert (plain.rows(0, 1)[0, :5] != other.rows(0, 1)[0, :5]).all()


def test_a_statement_is_read_back() -> None:
    key = make(**CHOICES)
    found = parse(key.statement())
    assert found is not None
    assert found.fields == key.fields
    assert found.fields.normalisation == "0.5,0.25,0/1,2,0.003"
    assert found.fields.alpha == "1e-9"
    assert found.commitment == key.commitment


def test_a_statement_has_one_spelling() -> None:
    text = make(owner="Ångström & Co", normalisation=((0.5,), (0.25,))).statement()
    document = json.loads(text)
    assert parse(text) is not None
    others = [
        f" {text}",
        f"{text}\n",
        text + " ",
        text.replace(",", ", "),
        json.dumps(document, sort_keys=True, separators=(",", ":")),  # escapes instead of letters
        json.dumps(dict(reversed(document.items())), ensure_ascii=False, separators=(",", ":")),
        text.replace('"version":2', '"version":2.0'),
        text.replace('"version":2', '"version":1'),
        text.replace('"bits":5', '"bits":5.0'),
        text.replace('"bits":5', '"bits":5e0'),
        text.replace('"bits":5', '"bits":05'),
        text.replace('"bits":5', '"bits":5,"bits":5'),
        text.replace('"probes":512', '"probes":true'),
        text.replace('"shape":[3,4]', '"shape":"3x4"'),
        text.replace('"shape":[3,4]', '"shape":[3,true]'),
        text.replace('"alpha":"3e-7"', '"alpha":"3e-07"'),
        text.replace('"alpha":"3e-7"', '"alpha":"30e-8"'),
        text.replace('"alpha":"3e-7"', '"alpha":3e-7'),
        text.replace('"0.5/0.25"', '"0.50/0.25"'),
        text.replace('"0.5/0.25"', '"-0/0.25"'),
        text.replace('"cut":null', '"cut":"none"'),
        text.replace('"cut":null', '"cut":"null"').replace('"cut":"null",', ""),
        text.replace("Ångström", "A\u030angström"),
        text.replace('"width":null', '"width":null,"x":1'),
        text.replace("sigil-statement/2", "sigil-statement/1"),
        text.upper(),
        text[:-1],
        "[" * 3_000,
        "{" * 3_000,
        "9" * 5_000,
        '{"alpha":' + "9" * 3_900 + "}",
    ]
    for other in others:
        assert other != text
        assert parse(other) is None, other[:200]


@pytest.mark.parametrize(
    "change",
    [
        {"model": "none"},
        {"model": ""},
        {"model": "a b"},
        {"model": "a" * 129},
        {"cut": "ＣＵＴ"},
        {"width": 0},
        {"input_shape": (0,)},
        {"normalisation": ((1,), (1, 2))},
        {"normalisation": ((1,), (0,))},
        {"normalisation": ((float("nan"),), (1,))},
        {"normalisation": ((0.5,), (0.5,)), "input_shape": (3, 8, 8)},
        {"scheme": "other"},
        {"carriers_per_bit": 2},
        {"scheme": "shares", "carriers_per_bit": 0},
        {"inputs_digest": "AB" * 32},
        {"probes": 255},
        {"probes": 10**9},
        {"alpha": 1e-6},
        {"alpha": 0},
        {"alpha": "many"},
        {"alpha": float("nan")},
        {"initialiser": "zeros"},
        {"seal": "wax"},
        {"owner": "\u0410CME"},
    ],
    ids=str,
)
def test_impossible_fields_are_refused_in_one_sentence(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        make(**change)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def test_fields_cannot_be_shifted_into_one_another() -> None:
    encodings = [
        make(model="a", cut="b").fields.encoded(),
        make(model="b", cut="a").fields.encoded(),
        make(model="ab").fields.encoded(),
        make(cut="ab").fields.encoded(),
        make(width=12).fields.encoded(),
        make(width=1, classes=2).fields.encoded(),
        make(classes=12).fields.encoded(),
        make(shape=(34,)).fields.encoded(),
        make(input_shape=(3, 4), shape=(3, 4)).fields.encoded(),
    ]
    assert len(set(encodings)) == len(encodings)


@pytest.mark.parametrize("version", [1, 3])
def test_there_is_one_version(version: Any) -> None:
    with pytest.raises(ConfigError, match="version"):
        KeyFields("ACME", (4,), 5, version=version)


def test_a_level_has_one_spelling() -> None:
    assert statement.level_text("3E-7") == statement.level_text(3e-7) == "3e-7"
