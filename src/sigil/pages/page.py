"""One self-contained page of sections: what a report on runs and a report on results are."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sigil.pages.tables import Picture
from sigil.version import __version__

NOTHING = Markup("")


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
