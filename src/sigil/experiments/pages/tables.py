"""Tables as Markdown, each of our numbers beside the paper's; and back from Markdown into numbers."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sigil.experiments.lab.store import Cell, Result

MISSING = "not run"
_NUMBER = r"[+−-]?\d[\d.,]*(?:e[+-]?\d+)?"
_ANSWER = r"yes|no|partly"
_ENTRY = re.compile(
    r"(?:(?P<quantity>[A-Za-z][A-Za-z ]{0,15}) (?:= )?)?(?P<power>10\^)?"
    rf"(?P<ours>{MISSING}|{_NUMBER}|{_ANSWER})"
    rf"(?: ± (?P<deviation>{_NUMBER}))?(?P<unit> %)?(?: \((?P<paper>{_NUMBER}|{_ANSWER})\))?"
)


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def values(
    cells: Sequence[Cell], results: dict[tuple[str, int], Result], name: str, number: str
) -> list[float]:
    """One number of a cell for all seeds that were measured."""
    found = []
    for cell in cells:
        result = results.get((cell.name, cell.seed))
        if cell.name == name and result is not None and result.numbers.get(number) is not None:
            found.append(float(result.numbers[number]))
    return found


def mean(
    cells: Sequence[Cell], results: dict[tuple[str, int], Result], name: str, number: str
) -> float | None:
    """The mean of one number over the seeds that were measured, if there are any."""
    numbers = values(cells, results, name, number)
    return statistics.fmean(numbers) if numbers else None


def difference(after: float | None, before: float | None) -> float | None:
    """How much more it became, if both were measured."""
    return None if after is None or before is None else after - before


def spread(numbers: Sequence[float], form: str = ".1f") -> str:
    """Mean ± standard deviation over seeds, or the one value, or that it was not run."""
    if not numbers:
        return MISSING
    mean = format(statistics.fmean(numbers), form)
    if len(numbers) == 1:
        return mean
    return f"{mean} ± {format(statistics.stdev(numbers), form)}"


def beside(ours: str, paper: float | None, form: str = ".1f") -> str:
    """Our number with the paper's in brackets."""
    return ours if paper is None else f"{ours} ({format(paper, form)})"


@dataclass(frozen=True)
class Entry:
    """One line of a table's cell, taken apart; only `text` where it is not a number.

    >>> Entry.read("WSR 99.5 ± 0.3 (100.0)")
    Entry(text='WSR 99.5 ± 0.3 (100.0)', quantity='WSR', ours='99.5', deviation='0.3', paper='100.0')
    """

    text: str
    quantity: str = ""
    ours: str | None = None
    deviation: str | None = None
    paper: str | None = None

    @classmethod
    def read(cls, text: str) -> Entry:
        """Take one line apart."""
        match = _ENTRY.fullmatch(text.strip())
        if match is None:
            return cls(text.strip())
        quantity = match["quantity"] or ""
        if match["power"] is not None:
            quantity = f"log10 {quantity}"
        return cls(text.strip(), quantity, match["ours"], match["deviation"], match["paper"])


@dataclass(frozen=True)
class Table:
    """A table read back from Markdown: the header, and rows of cells of lines."""

    header: list[str]
    rows: list[list[list[Entry]]]

    @classmethod
    def read(cls, lines: Sequence[str]) -> Table:
        """The table in these lines of Markdown, as :func:`markdown` writes it."""
        cut = [
            [part.strip() for part in line.strip().removeprefix("| ").removesuffix("|").split(" | ")]
            for line in lines
        ]
        rows = [[[Entry.read(part) for part in cell.split("<br>")] for cell in row] for row in cut[2:]]
        return cls(cut[0], rows)

    def records(self) -> list[dict[str, str]]:
        """One record a number (or text): row, column, quantity, ours, deviation, paper."""
        found = []
        for row in self.rows:
            name = " ".join(entry.text for entry in row[0])
            for column, cell in zip(self.header[1:], row[1:], strict=True):
                for entry in cell:
                    found.append(
                        {
                            "row": name,
                            "column": column,
                            "quantity": entry.quantity,
                            "ours": entry.text if entry.ours is None else entry.ours,
                            "deviation": entry.deviation or "",
                            "paper": entry.paper or "",
                        }
                    )
        return found
