"""Tables of one varied setting against three strengths: the shape of the paper's appendix E."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sigil.pages.tables import Entry, Page, Table
from sigil_reproduction.runner import published as paper
from sigil_reproduction.runner.experiment import (
    Experiment,
    Finding,
    Measured,
    check_claim,
    difference,
    final_numbers,
)
from sigil_reproduction.runner.scales import STRENGTHS, Scale
from sigil_reproduction.runner.store import Cell

Rows = Callable[[Scale], Mapping[str, Mapping[str, Any]]]


def table(name: str, *, caption: str, axis: str, rows: Rows, published: str, costs: bool) -> Experiment:
    """An experiment whose rows are variations of the federation settings, for ResNet-18.

    `rows` maps a row's name, as in the paper's data under `published`, to its federation settings. In all of
    them the paper's mark holds; `costs` says whether the last row's accuracy is well below the first's.
    """

    def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
        return [
            Cell(
                experiment=name,
                name=name_of(row, strength),
                seed=seed,
                trainings=(
                    scale.settings(
                        seed=seed,
                        variation=True,
                        federation=federation,
                        watermark={"strength": strength},
                    ),
                ),
                options={"row": row, "strength": strength},
            )
            for seed in seeds
            for strength in (0.1, 0.01, 1.0)
            for row, federation in rows(scale).items()
        ]

    def show(measured: Measured, folder: Path) -> Page:
        def place(row: str, strength: float) -> list[Entry]:
            theirs = paper.pair(published, row, strength) or {}
            return [
                measured.number(name_of(row, strength), number, quantity, paper=theirs.get(number))
                for number, quantity in (("accuracy", "acc"), ("wsr", "WSR"))
            ]

        strengths = tuple(reversed(STRENGTHS))
        return [
            Table(
                [axis, *(f"λ = {strength:g}" for strength in strengths)],
                [[f"{axis} {row}", *(place(row, each) for each in strengths)] for row in rows_of(measured)],
            )
        ]

    def verdict(measured: Measured) -> list[Finding]:
        names = rows_of(measured)

        def change(row: str, strength: float, number: str) -> float | None:
            first, other = (measured.mean(name_of(each, strength), number) for each in (names[0], row))
            return difference(other, first)

        accuracies = {f"λ = {strength:g}": change(names[-1], strength, "accuracy") for strength in STRENGTHS}
        claim = f"{axis} {names[-1]} instead of {names[0]}"
        return [
            check_claim(f"{claim} costs at least 5 points of accuracy", accuracies, lambda x: x <= -5, "+.1f")
            if costs
            else check_claim(
                f"{claim} costs at most 3 points of accuracy", accuracies, lambda x: x >= -3, "+.1f"
            ),
            *(
                check_claim(
                    f"The mark of λ = {strength:g} is weakened by at most 5 points",
                    {f"{axis} {row}": change(row, strength, "wsr") for row in names[1:]},
                    lambda x: x >= -5,
                    "+.1f",
                )
                for strength in (1.0, 0.1)
            ),
        ]

    return Experiment(
        name=name, caption=caption, cells=cells, measure=final_numbers, show=show, verdict=verdict
    )


def name_of(row: str, strength: float) -> str:
    """Name of a cell: the row and the strength."""
    return f"{row} strength {strength:g}"


def rows_of(measured: Measured) -> list[str]:
    """The rows of a variation's table, in order."""
    return list(dict.fromkeys(str(cell.options["row"]) for cell in measured.cells))
