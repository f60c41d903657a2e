"""The glossary, the links to it, and the tables that are made from the code."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sigil.cli import main
from sigil.federation.settings import Settings, section_fields

from .test_site import site_module

DOCS = Path(__file__).parents[2] / "docs"
GLOSSARY = (DOCS / "glossary.md").read_text("utf-8")
PAGES = [page for page in sorted(DOCS.glob("*.md")) if page.name != "glossary.md"]
LINK = r"\[([^\]]+)\]\(glossary\.md#([\w-]+)\)"


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    return site_module("hooks")


def named(path: str) -> Any:
    """What a dotted name stands for; a field of a model is found too."""
    words = path.split(".")
    for length in range(len(words), 0, -1):
        try:
            found: Any = import_module(".".join(words[:length]))
        except ModuleNotFoundError:
            continue
        for word in words[length:]:
            fields = getattr(found, "model_fields", {})
            found = fields[word] if word in fields else getattr(found, word)
        return found
    raise AssertionError(path)


def test_every_term_says_what_it_is_in_the_code() -> None:
    entries = re.split(r"^### ", GLOSSARY, flags=re.MULTILINE)[1:]
    assert len(entries) >= 25
    for entry in entries:
        assert "*in the code:* " in " ".join(entry.lower().split()), entry
    paths = set(re.findall(r"`(sigil(?:\.\w+)+)`", GLOSSARY))
    assert len(paths) >= 20
    assert all(named(path) is not None for path in paths)


def test_every_term_is_linked_once_on_a_page_and_somewhere(hooks: ModuleType) -> None:
    known = hooks.terms(GLOSSARY)
    linked = {page.name: re.findall(LINK, hooks.link_terms(page.read_text("utf-8"), known)) for page in PAGES}
    for name, links in linked.items():
        places = [place for _, place in links]
        assert len(places) == len(set(places)), name
    everywhere = {place for links in linked.values() for _, place in links}
    assert everywhere == set(known.values())


def test_linking_changes_nothing_else(hooks: ModuleType) -> None:
    known = hooks.terms(GLOSSARY)
    for page in PAGES:
        text = page.read_text("utf-8")
        assert re.sub(LINK, r"\1", hooks.link_terms(text, known)) == re.sub(LINK, r"\1", text)


@pytest.mark.parametrize(
    "text",
    [
        "# The key",
        "```\nkey\n```",
        "`key`",
        "[a key](x.md)",
        "![key](x.png)",
        "    key",
        "keyboard",
        "p-value",
    ],
)
def test_where_no_term_is_linked(hooks: ModuleType, text: str) -> None:
    assert hooks.link_terms(text, {"key": "key", "p": "p"}) == text


def test_every_setting_is_listed(hooks: ModuleType) -> None:
    page = "\n".join(hooks.settings_tables())
    for section in Settings.model_fields:
        for name, field in section_fields(section).items():
            assert re.search(rf"^\| `{section}\.{name}` \| [^|]+ \| [^|]+ \| [^|]+ \|$", page, re.MULTILINE)
            assert field.description in page
    assert "| `federation.mode` | `usfl`, `sfl`, `sl` | `usfl` |" in page
    assert "| `federation.rounds` | whole number ≥ 1 ≤ 1,000,000 | `80` (`digits`: `8`) |" in page


def test_every_exit_status_is_listed(hooks: ModuleType) -> None:
    listed = {int(status) for status in re.findall(r"^\| (\d+) \|", hooks.EXIT_STATUS, re.MULTILINE)}
    promised = {int(status) for status in re.findall(r"\b\d+\b", main.main.__doc__ or "")}
    assert listed == promised
