"""Owner names: what prints alike must be alike."""

from __future__ import annotations

import pytest

from sigil.errors import ConfigError
from sigil.keys.owner_name import check_name


@pytest.mark.parametrize(
    "owner",
    [
        *("ACME", "ACME Labs, Inc. (2026)", 'O"Neil \\ Sons', "Ångström & Co", "Škoda", "Nguyễn", "R&D 100%"),
        *("Яндекс", "ООО Ромашка", "Ελληνική Εταιρεία", "株式会社シギル", "ACME株式会社", "삼성 SDI", "शर्मा"),
        *("شركة ٢٠٢٦", "חברה", "บริษัท", "O’Brien – Söhne", "𠀀𠀀"),
    ],
)
def test_names_that_companies_have(owner: str) -> None:
    assert check_name(owner, "owner") == owner


@pytest.mark.parametrize(
    ("owner", "words"),
    [
        ("\u0410CME", "Cyrillic and Latin"),  # a Cyrillic A
        ("AC\u039cE", "Greek and Latin"),  # a Greek M
        ("ACME \u041e\u041e\u041e", "Cyrillic and Latin"),
        ("\uff21\uff23\uff2d\uff25", "styled form"),
        ("\U0001d400CME", "styled form"),
        ("AC\u2133E", "styled form"),
        ("\ufb01rm", "styled form"),
        ("ACME\u3164", "invisible"),
        ("ACME\u115f", "invisible"),
        ("AC\u034fME", "invisible"),
        ("ACME\ufe0f", "invisible"),
        ("ACME\U000e0100", "invisible"),
        ("ACME\u2800", "invisible"),
        ("AC  ME", "two spaces"),
        ("\u0335ACME", "mark without a letter"),
        ("A\u0335\u0336\u0337CME", "mark without a letter"),
        ("\u0251CME", "phonetic"),
        ("AC\u1d0dE", "phonetic"),
        ("AC\ua730E", "phonetic"),
        ("ACME\u102d", "Latin and Myanmar"),
        ("ACME\u2010", "symbol"),
        ("\U0001f170CME", "symbol"),
        ("ACME \u0661\u06f2", "digits"),
        ("ACME \u07c0", "digits"),
        ("AC\u01c0ME", "phonetic"),
    ],
    ids=ascii,
)
def test_names_that_could_be_taken_for_others(owner: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_name(owner, "owner")


@pytest.mark.parametrize(
    "owner", ["AC\u200bME", "AC\u202eME", "AC\u00adME", "AC\u2066ME", "AC\U000e0041ME", ""]
)
def test_what_was_refused_before_still_is(owner: str) -> None:
    with pytest.raises(ConfigError, match="printable"):
        check_name(owner, "owner")
