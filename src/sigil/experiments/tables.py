"""Tables as Markdown, each of our numbers beside the paper's."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from sigil.experiments.store import Cell, Result

MISSING = "not run"


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
