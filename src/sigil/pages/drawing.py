"""Pages drawn from their data: as Markdown, as rows of a CSV file, and as one self-contained page of HTML."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sigil.pages import markup
from sigil.pages.tables import MISSING, Entry, Page, Picture, Power, Table, Words
from sigil.version import __version__

NOTHING = Markup("")
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
    return "\n\n".join(part for part in (block.caption, "\n".join(lines), block.words_below()) if part)


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
    parts = (markup.html(block.caption), _table(block), markup.html(block.words_below()))
    return Markup("\n").join(part for part in parts if part)


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


@dataclass(frozen=True)
class Section:
    """One part of the page; `badge` is a word beside its name in the list of all sections."""

    name: str
    caption: str
    body: Markup
    badge: str = ""
    foot: Markup = NOTHING


def render(*, title: str, lead: Markup, sections: Sequence[Section], rest: Markup, command: str) -> str:
    """The page as HTML text."""
    environment = Environment(
        loader=PackageLoader("sigil.pages", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html").render(
        title=title,
        lead=lead,
        sections=sections,
        rest=rest,
        command=command,
        made=datetime.now(UTC).date().isoformat(),
        version=__version__,
    )


def shown(picture: Picture, folder: Path, drawn: dict[str, str]) -> Markup:
    """A figure as SVG that takes the page's colours, or as it is where it was not drawn by us."""
    if picture.file in drawn:
        svg = drawn[picture.file]
        size = re.search(r'width="([\d.]+)pt"', svg)
        width = float(size[1]) if size is not None else 576.0
        limits = f"min-width: {0.8 * width:.0f}px; max-width: {1.4 * width:.0f}px"
        element = Markup('<div class="drawing" role="img" aria-label="{}" style="{}">{}</div>').format(
            picture.words, limits, Markup(svg)
        )
    else:
        encoded = base64.b64encode((folder / picture.file).read_bytes()).decode()
        element = Markup('<img alt="{}" src="data:image/png;base64,{}">').format(picture.words, encoded)
    return Markup(
        '<figure><div class="scroll" tabindex="0">{}</div><figcaption>{}</figcaption></figure>'
    ).format(element, picture.words)
