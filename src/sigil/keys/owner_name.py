"""Which names an owner may have: two names that print alike must be the same name.

A statement is read by people, so a name must not hide anything: no invisible character, no letter
of one script among those of another (a Cyrillic А in ACME), no letter in a styled form (ＡＣＭＥ,
𝐀𝐂𝐌𝐄), no symbol that passes for a letter. Python knows no scripts, but the official name of every
letter begins with its own. What remains are whole words of another script that happen to look alike
(АСМЕ in Cyrillic) and the look-alikes within one (l and I, O and 0): statements should be compared
as files, and not by eye.
"""

from __future__ import annotations

import unicodedata
from typing import Final

from sigil.errors import ConfigError

MAX_OWNER: Final = 128

# Beyond ASCII: punctuation that names are written with, in Latin and in Chinese, Japanese and Korean.
_PUNCTUATION: Final = frozenset("§°·¡¿«»£¥€©®±×÷–—‘’‚“”„†‡•・、。「」『』《》〈〉ー〆々〇")
# Letters and marks that are printed as nothing.
_BLANK: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
_VARIANTS: Final = (range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))
# Scripts that one name may mix, because one language is written with them (Unicode's report 39,
# "highly restrictive"); any other name has one script.
_TOGETHER: Final = (
    {"CJK", "HIRAGANA", "KATAKANA", "LATIN"},
    {"CJK", "BOPOMOFO", "LATIN"},
    {"CJK", "HANGUL", "LATIN"},
)
# Latin letters that languages are written with; the rest are phonetic signs, small capitals and the like.
_LATIN: Final = (range(0x41, 0x1C0), range(0x1C4, 0x250), range(0x1E00, 0x1F00))
_MARKS_IN_A_ROW: Final = 2


def check_name(given: str, whose: str) -> str:
    """A name that looks like no other, an owner's or a recipient's, in Unicode's composed form (NFC).

    So the same name gives the same key however it was typed.
    """
    try:
        name = unicodedata.normalize("NFC", given)
    except TypeError:
        name = ""
    # Nothing invisible: two owners that look alike in a printed statement must be alike.
    if not (0 < len(name) <= MAX_OWNER and name.isprintable() and name == name.strip()):
        raise ConfigError(
            f"The {whose}'s name must be 1 to {MAX_OWNER} printable characters, without line breaks, "
            "control characters or spaces at either end; give a name such as ACME."
        )
    if reason := _trouble(name):
        raise ConfigError(
            f"The {whose}'s name must look like no other name, but it {reason}; "
            "write it in plain letters of one script, such as ACME."
        )
    return name


def _trouble(name: str) -> str | None:
    """What could make somebody take the name for another one, or None."""
    scripts = set()
    marks = _MARKS_IN_A_ROW  # a name cannot begin with a mark
    digits = set()
    for character in name:
        shown = f"U+{ord(character):04X}"
        category = unicodedata.category(character)
        if character in _BLANK or any(ord(character) in block for block in _VARIANTS):
            return f"holds an invisible character ({shown})"
        if unicodedata.normalize("NFKC", character) != character:
            return f"holds a styled form of another character ({shown})"
        marks = marks + 1 if category in ("Mn", "Mc") else 0
        if marks > _MARKS_IN_A_ROW:
            return f"holds a mark without a letter to stand on ({shown})"
        if category in ("Lu", "Ll", "Lt", "Lo") and character not in _PUNCTUATION:
            script = _script(character)
            if script == "LATIN" and not any(ord(character) in block for block in _LATIN):
                return f"holds a phonetic letter ({shown})"
            scripts.add(script)
        elif marks and _script(character) != "COMBINING":
            scripts.add(_script(character))
        elif category == "Nd":
            digits.add(ord(character) - unicodedata.decimal(character))
        elif marks == 0 and not character.isascii() and character not in _PUNCTUATION:
            return f"holds a symbol that names are not written with ({shown})"
    if "  " in name:
        return "has two spaces in a row"
    if len(scripts) > 1 and not any(scripts <= allowed for allowed in _TOGETHER):
        return f"mixes letters of {' and '.join(sorted(script.title() for script in scripts))}"
    if len(digits) > 1 or ("LATIN" in scripts and digits - {ord("0")}):
        return "mixes digits of several scripts"
    return None


def _script(letter: str) -> str:
    return unicodedata.name(letter, "UNKNOWN").split()[0].split("-")[0]
