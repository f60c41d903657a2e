"""The little Markdown that our own pages use, as HTML: headings, paragraphs, lists, tables and pictures.

Everything that is not markup is escaped. Links are kept as words, except to an experiment on the same page:
the page stands alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from markupsafe import Markup, escape

from sigil.experiments.pages.tables import MISSING, Entry, Table

Picture = Callable[[str, str], Markup]
"""How to show a picture: its description and its file's name to an element."""

_PICTURE = re.compile(r"!\[(?P<text>[^\]]*)\]\((?P<file>[^)]+)\)")
_INLINE = re.compile(
    r"`(?P<code>[^`]+)`|\*\*(?P<bold>.+?)\*\*|(?<!\w)\*(?P<soft>[^*]+)\*|\[(?P<text>[^\]]+)\]\((?P<link>[^)]+)\)"
    r"|10\^(?P<power>-?[\d.]+)|(?P<line><br>)"
)


def blocks(text: str) -> Iterator[list[str]]:
    """The parts of a page, each of one kind: a paragraph, a list, a table, or one heading or picture."""
    for kind, lines in groupby(text.splitlines(), key=_kind):
        if kind in ("heading", "picture"):
            yield from ([line] for line in lines)
        elif kind != "blank":
            yield list(lines)


def _kind(line: str) -> str:
    if not line.strip():
        return "blank"
    if line.startswith("#"):
        return "heading"
    if _PICTURE.fullmatch(line.strip()):
        return "picture"
    if line.startswith("|"):
        return "table"
    if line.startswith(("- ", "  ")):
        return "list"
    return "paragraph"


def is_table(block: Sequence[str]) -> bool:
    """Whether a block is a table."""
    return block[0].startswith("|")


def html(text: str, picture: Picture, *, anchors: Sequence[str] = ()) -> Markup:
    """A page as HTML; `anchors` are the names that links may lead to."""
    return Markup("\n").join(_block(block, picture, anchors) for block in blocks(text))


def _block(block: list[str], picture: Picture, anchors: Sequence[str]) -> Markup:
    first = block[0]
    if first.startswith("#"):
        level = min(6, len(first) - len(first.lstrip("#")) + 1)
        return Markup("<h{}>{}</h{}>").format(level, inline(first.lstrip("# "), anchors), level)
    if is_table(block):
        return table(Table.read(block), anchors)
    if first.startswith("- "):
        items = re.split(r"^- ", "\n".join(block), flags=re.MULTILINE)[1:]
        parts = Markup("").join(Markup("<li>{}</li>").format(inline(item, anchors)) for item in items)
        return Markup("<ul>{}</ul>").format(parts)
    shown = _PICTURE.fullmatch(first.strip())
    if shown is not None:
        return picture(shown["text"], shown["file"])
    return Markup("<p>{}</p>").format(inline("\n".join(block), anchors))


def inline(text: str, anchors: Sequence[str] = ()) -> Markup:
    """One run of text: code, emphasis, links, powers of ten and line breaks."""
    result, place = Markup(""), 0
    for match in _INLINE.finditer(text):
        result += _plain(text[place : match.start()])
        place = match.end()
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
    return result + _plain(text[place:])


def _plain(text: str) -> Markup:
    """Text as it is, with what belongs to a number on the number's line."""
    return escape(text.replace(" %", "\u00a0%").replace(" = ", "\u00a0=\u00a0"))


def table(content: Table, anchors: Sequence[str] = ()) -> Markup:
    """A table that scrolls by itself where the page is too narrow for it."""
    head = Markup("").join(Markup("<th>{}</th>").format(inline(name, anchors)) for name in content.header)
    body = Markup("\n").join(
        Markup("<tr>{}</tr>").format(
            Markup("").join(
                Markup("<td>{}</td>").format(Markup("").join(entry(line) for line in cell))
                if place
                else Markup("<th>{}</th>").format(Markup("<br>").join(inline(line.text) for line in cell))
                for place, cell in enumerate(row)
            )
        )
        for row in content.rows
    )
    return Markup(
        '<div class="scroll" tabindex="0"><table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>'
    ).format(head, body)


def entry(line: Entry) -> Markup:
    """One line of a cell: the quantity, our number, and the paper's in brackets."""
    if line.ours is None:
        return Markup('<span class="line">{}</span>').format(inline(line.text))
    if line.quantity.startswith("log10"):
        return Markup('<span class="line number">{}</span>').format(inline(line.text))
    text = inline(line.text.removeprefix(line.quantity))
    if line.paper is not None:
        ours = line.text.removeprefix(line.quantity).removesuffix(f" ({line.paper})")
        text = inline(ours) + Markup(' <span class="paper">({})</span>').format(line.paper)
    return Markup('<span class="line number{}"><span class="quantity">{}</span>{}</span>').format(
        " missing" if line.ours == MISSING else "", line.quantity, text
    )
