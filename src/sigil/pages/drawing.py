"""Pages drawn from their data: as Markdown, as HTML and as rows of a CSV file."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from sigil.pages import markup
from sigil.pages.tables import MISSING, Entry, Page, Picture, Power, Table, Words

Show = Callable[[Picture], Markup]
"""How a picture becomes an element of the page."""


def markdown(page: Page, *, pictures: str = "") -> str:
    """A page as Markdown; `pictures` is what comes before the name of a picture's file."""
    return "\n\n".join(_markdown(block, pictures) for block in page) + "\n"


def _markdown(block: str | Table | Picture, pictures: str) -> str:
    if isinstance(block, Picture):
        return f"![{block.words}]({pictures}{block.file})"
    if isinstance(block, str):
        return block
    rows = [
        [name, *("<br>".join(entry.text for entry in place) for place in places)]
        for name, places in block.entries()
    ]
    lines = [_line(block.columns), "|" + " --- |" * len(block.columns), *map(_line, rows)]
    return "\n\n".join(part for part in (block.caption, "\n".join(lines), block.notes) if part)


def _line(parts: Sequence[str]) -> str:
    return "| " + " | ".join(parts) + " |"


def html(page: Page, show: Show) -> Markup:
    """A page as HTML."""
    return Markup("\n").join(_html(block, show) for block in page)


def _html(block: str | Table | Picture, show: Show) -> Markup:
    if isinstance(block, Picture):
        return show(block)
    if isinstance(block, str):
        return markup.html(block)
    words = [markup.html(text) if text else None for text in (block.caption, block.notes)]
    parts = (words[0], _table(block), words[1])
    return Markup("\n").join(part for part in parts if part is not None)


def _table(table: Table) -> Markup:
    rows = [
        [
            _cell("th", markup.inline(name)),
            *(_cell("td", Markup("").join(map(_entry, place))) for place in places),
        ]
        for name, places in table.entries()
    ]
    return markup.table([markup.inline(name) for name in table.columns], rows)


def _cell(kind: str, content: Markup) -> Markup:
    return Markup("<{}>{}</{}>").format(kind, content, kind)


def _entry(entry: Entry) -> Markup:
    """One entry: the quantity, our number, and the paper's in brackets."""
    if isinstance(entry, Words):
        return Markup('<span class="line">{}</span>').format(markup.inline(entry.text))
    if isinstance(entry, Power):
        return Markup('<span class="line number">{}</span>').format(markup.inline(entry.text))
    text = markup.inline(f" {entry.measured}" if entry.quantity else entry.measured)
    if entry.published:
        text += Markup(' <span class="paper">({})</span>').format(entry.published)
    return Markup('<span class="line number{}"><span class="quantity">{}</span>{}</span>').format(
        " missing" if entry.ours == MISSING else "", entry.quantity, text
    )


def records(page: Page) -> list[dict[str, str]]:
    """One record for each entry of each table: table, row, column, quantity, ours, deviation, paper."""
    tables = [block for block in page if isinstance(block, Table)]
    return [
        {
            "table": str(number),
            "row": name,
            "column": column,
            "quantity": entry.quantity,
            "ours": entry.ours,
            "deviation": entry.spread,
            "paper": entry.published,
        }
        for number, table in enumerate(tables, 1)
        for name, places in table.entries()
        for column, place in zip(table.columns[1:], places, strict=True)
        for entry in place
    ]
