"""The little Markdown of our prose as HTML: headings, paragraphs, lists, and tables written by hand.

Everything that is not markup is escaped. Links are kept as words, except to an experiment on the same page:
the page must be complete in itself. `markdown-it-py` does not do all of it: no powers of ten, no breaks in a
table's place, no spaces that keep a number together, no tables that scroll, no parts of a text as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from markupsafe import Markup, escape

_INLINE = re.compile(
    r"`(?P<code>[^`]+)`|\*\*(?P<bold>.+?)\*\*|(?<!\w)\*(?P<soft>[^*]+)\*|\[(?P<text>[^\]]+)\]\((?P<link>[^)]+)\)"
    r"|10\^(?P<power>-?[\d.]+)|(?P<line><br>)"
)


def blocks(text: str) -> Iterator[list[str]]:
    """The parts of a text, each of one kind: a paragraph, a list, a table, or one heading."""
    for kind, lines in groupby(text.splitlines(), key=_kind):
        if kind == "heading":
            yield from ([line] for line in lines)
        elif kind != "blank":
            yield list(lines)


def _kind(line: str) -> str:
    if not line.strip():
        return "blank"
    if line.startswith("#"):
        return "heading"
    if line.startswith("|"):
        return "table"
    if line.startswith(("- ", "  ")):
        return "list"
    return "paragraph"


def is_table(block: Sequence[str]) -> bool:
    """Whether a block is a table."""
    return block[0].startswith("|")


def cells(line: str) -> list[str]:
    """The parts of a table's line.

    >>> cells("| one | two |")
    ['one', 'two']
    """
    return [part.strip() for part in line.strip().removeprefix("| ").removesuffix("|").split(" | ")]


def html(text: str, anchors: Sequence[str] = ()) -> Markup:
    """Prose as HTML; `anchors` are the names that links may lead to."""
    return Markup("\n").join(_block(block, anchors) for block in blocks(text))


def _block(block: list[str], anchors: Sequence[str]) -> Markup:
    first = block[0]
    if first.startswith("#"):
        level = min(6, len(first) - len(first.lstrip("#")) + 1)
        return Markup("<h{}>{}</h{}>").format(level, inline(first.lstrip("# "), anchors), level)
    if is_table(block):
        rows = [
            [Markup("<td>{}</td>").format(inline(part, anchors)) for part in cells(line)]
            for line in block[2:]
        ]
        return table([inline(name, anchors) for name in cells(first)], rows)
    if first.startswith("- "):
        items = re.split(r"^- ", "\n".join(block), flags=re.MULTILINE)[1:]
        parts = Markup("").join(Markup("<li>{}</li>").format(inline(item, anchors)) for item in items)
        return Markup("<ul>{}</ul>").format(parts)
    return Markup("<p>{}</p>").format(inline("\n".join(block), anchors))


def inline(text: str, anchors: Sequence[str] = ()) -> Markup:
    """One run of text: code, emphasis, links, powers of ten and line breaks."""
    result, position = Markup(""), 0
    for match in _INLINE.finditer(text):
        result += _plain(text[position : match.start()])
        position = match.end()
        if match["code"] is not None:
            result += Markup("<code>{}</code>").format(match["code"])
        elif match["bold"] is not None:
            result += Markup("<b>{}</b>").format(inline(match["bold"], anchors))
        elif match["soft"] is not None:
            result += Markup("<i>{}</i>").format(inline(match["soft"], anchors))
        elif match["power"] is not None:
            result += Markup("10<sup>{}</sup>").format(match["power"])
        elif match["line"] is not None:
            result += Markup("<br>")
        else:
            name, words = match["link"].strip("./"), inline(match["text"], anchors)
            known = name in anchors
            result += Markup('<a href="#{}">{}</a>').format(name, words) if known else words
    return result + _plain(text[position:])


def _plain(text: str) -> Markup:
    """Text as it is, with what belongs to a number on the number's line."""
    return escape(text.replace(" %", "\u00a0%").replace(" = ", "\u00a0=\u00a0"))


def table(columns: Sequence[Markup], rows: Sequence[Sequence[Markup]]) -> Markup:
    """A table of elements that scrolls by itself where the page is too narrow for it."""
    head = Markup("").join(Markup("<th>{}</th>").format(name) for name in columns)
    body = Markup("\n").join(Markup("<tr>{}</tr>").format(Markup("").join(row)) for row in rows)
    return Markup(
        '<div class="scroll" tabindex="0"><table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>'
    ).format(head, body)
