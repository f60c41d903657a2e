"""Tables of one varied setting against three strengths: the shape of the paper's appendix E."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sigil.experiments.lab import published as paper
from sigil.experiments.lab.experiment import Experiment, Finding, Results, final_numbers, judge
from sigil.experiments.lab.scales import STRENGTHS, Scale
from sigil.experiments.lab.store import Cell
from sigil.experiments.pages.tables import beside, difference, markdown, mean, spread, values

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
                name=f"{row} strength {strength:g}",
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

    def show(cells: list[Cell], results: Results, folder: Path) -> str:
        lines = []
        for row in ordered_names_of_rows(cells):
            line = [f"{axis} {row}"]
            for strength in reversed(STRENGTHS):
                cell = f"{row} strength {strength:g}"
                theirs = paper.pair(published, row, strength) or {}
                line.append(
                    "acc "
                    + beside(spread(values(cells, results, cell, "accuracy")), theirs.get("accuracy"))
                    + "<br>WSR "
                    + beside(spread(values(cells, results, cell, "wsr")), theirs.get("wsr"))
                )
            lines.append(line)
        return markdown([axis, *(f"λ = {strength:g}" for strength in reversed(STRENGTHS))], lines)

    def verdict(cells: list[Cell], results: Results) -> list[Finding]:
        names = ordered_names_of_rows(cells)

        def change(row: str, strength: float, number: str) -> float | None:
            first, other = (
                mean(cells, results, f"{each} strength {strength:g}", number) for each in (names[0], row)
            )
            return difference(other, first)

        accuracies = {f"λ = {strength:g}": change(names[-1], strength, "accuracy") for strength in STRENGTHS}
        claim = f"{axis} {names[-1]} instead of {names[0]}"
        return [
            judge(f"{claim} costs at least 5 points of accuracy", accuracies, lambda x: x <= -5, "+.1f")
            if costs
            else judge(f"{claim} costs at most 3 points of accuracy", accuracies, lambda x: x >= -3, "+.1f"),
            *(
                judge(
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


def ordered_names_of_rows(cells: list[Cell]) -> list[str]:
    """The rows of a variation's table, in order."""
    return list(dict.fromkeys(str(cell.options["row"]) for cell in cells))
