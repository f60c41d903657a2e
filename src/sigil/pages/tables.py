"""Tables as data: rows of typed entries, which :mod:`sigil.pages.drawing` draws."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sigil.rules import PLAIN_ALLOWANCE_LOG2, STAMPED_ALLOWANCE_LOG2, Price

MISSING = "not run"


@dataclass(frozen=True)
class Number:
    """One of our numbers, None where it was not measured, with the paper's beside it.

    >>> Number(99.5, "WSR", deviation=0.3, paper=100.0).text
    'WSR 99.5 ± 0.3 (100.0)'
    """

    value: float | None
    quantity: str = ""
    form: str = ".1f"
    deviation: float | None = None
    unit: str = ""
    paper: float | None = None
    paper_form: str = ""  # as ours, unless it says otherwise

    @classmethod
    def over(cls, values: Sequence[float], quantity: str = "", form: str = ".1f", unit: str = "") -> Number:
        """The mean over seeds, with their standard deviation where there are several."""
        mean = statistics.fmean(values) if values else None
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(mean, quantity, form, deviation, unit)

    @property
    def ours(self) -> str:
        """Our number in words."""
        return MISSING if self.value is None else format(self.value, self.form)

    @property
    def spread(self) -> str:
        """Its deviation in words, if it has one."""
        return "" if self.deviation is None else format(self.deviation, self.form.lstrip("+"))

    @property
    def published(self) -> str:
        """The paper's number in words, if there is one."""
        return "" if self.paper is None else format(self.paper, self.paper_form or self.form)

    @property
    def measured(self) -> str:
        """Our number with deviation and unit."""
        text = f"{self.ours} ± {self.spread}" if self.spread else self.ours
        return f"{text} {self.unit}" if self.unit else text

    @property
    def text(self) -> str:
        """All of it as Markdown."""
        return _joined(self.quantity, self.measured, self.published)


@dataclass(frozen=True)
class Answer:
    """Yes, no or partly, with the paper's answer beside it."""

    ours: str = MISSING
    published: str = ""
    quantity: str = ""
    spread: str = ""

    @property
    def measured(self) -> str:
        """Our answer."""
        return self.ours

    @property
    def text(self) -> str:
        """Both as Markdown."""
        return _joined(self.quantity, self.ours, self.published)


class Words(Answer):
    """Words in place of a number, with the little Markdown that pages use."""


@dataclass(frozen=True)
class Power:
    """A probability before correction, as a power of ten; a table that has one says where proof begins.

    >>> Power(-12.14).text
    'p = 10^-12.1 before correction'
    >>> Power(-0.04).text
    'p = 10^0.0 before correction'
    """

    exponent: float
    quantity: str = "log10 p before correction"
    spread: str = ""
    published: str = ""

    @property
    def ours(self) -> str:
        """The exponent in words."""
        return f"{self.exponent:z.1f}"

    @property
    def text(self) -> str:
        """As Markdown."""
        return f"p = 10^{self.ours} before correction"


def _joined(quantity: str, measured: str, published: str) -> str:
    text = f"{quantity} {measured}" if quantity else measured
    return f"{text} ({published})" if published else text


Entry = Number | Answer | Power | Words
Place = str | Entry | Sequence[Entry]
"""What stands in one place of a table: words, an entry, or entries one below the other."""
Row = Sequence[Place]
"""The name of a row, and what stands in its further places."""
NOT_RUN = Number(None)
GAP = "–"
"""What stands in a place that was not measured, in a row and a column that were."""
LEVEL = (
    f"Before correction proof begins at 10^{Price(PLAIN_ALLOWANCE_LOG2).log10_level():.1f} with a plain key "
    f"and at 10^{Price(STAMPED_ALLOWANCE_LOG2).log10_level():.1f} with a stamped one, if the key states its "
    "cut and the shape of its inputs."
)


@dataclass(frozen=True)
class Table:
    """A table: the names of its columns, and rows that begin with the row's name.

    `caption` is the paragraph above the table and `notes` the one below it. The first `names` columns say
    what a row is about.
    """

    columns: Sequence[str]
    rows: Sequence[Row]
    caption: str = ""
    notes: str = ""
    names: int = 1

    def entries(self) -> list[tuple[str, list[Sequence[Entry]]]]:
        """The name of each row, and the entries of its places."""
        return [(str(name), [_entries(place) for place in places]) for name, *places in self.rows]

    def words_below(self) -> str:
        """The notes, and the level of proof if there is a probability in the table."""
        entries = (entry for _, places in self.entries() for place in places for entry in place)
        level = LEVEL if any(isinstance(entry, Power) for entry in entries) else ""
        return "\n\n".join(part for part in (self.notes, level) if part)

    def measured(self) -> Table | None:
        """Without the rows, columns and entries of which nothing was measured; None if nothing is left."""
        rows = [list(row) for row in self.rows if not _unmeasured(row[self.names :])]
        kept = [
            number
            for number in range(len(self.columns))
            if number < self.names or not _unmeasured([row[number] for row in rows])
        ]
        if not rows:
            return None
        shown = [[_without_gaps(row[number]) for number in kept] for row in rows]
        return replace(self, columns=[self.columns[number] for number in kept], rows=shown)


def _unmeasured(places: Sequence[Place]) -> bool:
    """Whether nothing stands here but that something was not measured."""
    texts = [entry.ours for place in places for entry in _entries(place)]
    return MISSING in texts and set(texts) <= {MISSING, ""}


def _without_gaps(place: Place) -> Place:
    entries = [entry for entry in _entries(place) if entry.ours != MISSING]
    return place if isinstance(place, str) and place != MISSING else entries or GAP


def _entries(place: Place) -> Sequence[Entry]:
    if isinstance(place, str):
        return [Words(place)]
    return [place] if isinstance(place, Number | Answer | Power | Words) else place or [Words("")]


@dataclass(frozen=True)
class Picture:
    """A figure, by its description and the file that it was saved to."""

    words: str
    file: str


Page = Sequence[str | Table | Picture]
"""What an experiment shows, in order; words are a paragraph, a heading or a list in Markdown."""


def measured(page: Page) -> Page:
    """What was measured of a page: a part whose tables are all empty is left out with its heading."""
    parts: list[list[str | Table | Picture]] = [[]]
    for block in page:
        if isinstance(block, str) and block.startswith("#"):
            parts.append([])
        parts[-1].append(block)
    shown: list[str | Table | Picture] = []
    for part in parts:
        blocks = [block.measured() if isinstance(block, Table) else block for block in part]
        if any(isinstance(block, Table) for block in blocks) or None not in blocks:
            shown += [block for block in blocks if block is not None]
    return shown
