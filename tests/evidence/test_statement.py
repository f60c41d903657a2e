"""Published statements are read exactly or not at all."""

from __future__ import annotations

import pytest

from sigil.errors import EvidenceError
from sigil.evidence.published import References, parse, parse_references
from sigil.keys.key import Key


@pytest.mark.parametrize(
    "owner",
    ["ACME", 'Say "hi"', "back\\slash", "Ünïcode GmbH", "x commitment=" + "0" * 64, '" bits=9'],
)
def test_the_statement_of_a_key_is_read_back(owner: str) -> None:
    key = Key.generate(owner, shape=(256, 8, 8), bits=50, seed=bytes(32))
    found = parse(f"  {key.statement()}\n")
    assert found.fields.owner == owner
    assert found.fields.shape == (256, 8, 8)
    assert found.fields.bits == 50
    assert found.commitment == key.commitment
    assert found.evidence_key == key.signing_key().public_key().public_bytes_raw().hex()


def test_anything_else_is_refused() -> None:
    line = Key.generate("ACME", (4,), bits=50, seed=bytes(32)).statement()
    assert parse(line).fields.owner == "ACME"
    for wrong in (
        "",
        "hello",
        line[:-1],
        line + "0",
        line.replace('"bits":50', '"bits":"fifty"'),
        line.replace('"commitment":', '"Commitment":'),
        line + " " + line,
        line.replace('"ACME"', '"\\x"'),
        line.replace("ACME", "A" * 5000),
        line.replace("sigil-statement/2", "sigil-statement/3"),
        line.replace('"version":2', '"version":1'),
    ):
        assert wrong != line
        with pytest.raises(EvidenceError, match="not the statement of a key"):
            parse(wrong)


ONE, TWO, THREE = "1a" * 32, "2b" * 32, "3c" * 32


@pytest.mark.parametrize(("initial", "correlations"), [(TWO, THREE), (TWO, None), (None, THREE)])
def test_references_are_read_back(initial: str | None, correlations: str | None) -> None:
    references = References(ONE, initial, correlations)
    assert parse_references(f" {references.line()}\n") == references
    assert [hash_ in references for hash_ in (ONE, TWO, THREE)] == [
        False,
        initial is not None,
        correlations is not None,
    ]


def test_other_lines_of_references_are_refused() -> None:
    line = References(ONE, TWO, THREE).line()
    for wrong in (
        "",
        line[:-1],
        line + "0",
        line.replace("v1", "v2"),
        line.upper(),
        line + " " + line,
        line + " " * 5_000,
        f"sigil-reference v1 commitment={ONE}",
        f"sigil-reference v1 commitment={ONE} correlations={THREE} initial-weights={TWO}",
        Key.generate("ACME", shape=(4,), bits=50, seed=bytes(32)).statement(),
    ):
        with pytest.raises(EvidenceError, match="not a line of references"):
            parse_references(wrong)
