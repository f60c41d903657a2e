"""Tables of one varied setting against three strengths: the shape of the paper's appendix E."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sigil.experiments import paper
from sigil.experiments.experiment import Experiment, Results, final_numbers
from sigil.experiments.scales import STRENGTHS, Scale
from sigil.experiments.store import Cell
from sigil.experiments.tables import beside, markdown, spread, values

Rows = Callable[[Scale], Mapping[str, Mapping[str, Any]]]


def table(name: str, *, caption: str, axis: str, rows: Rows, published: str) -> Experiment:
    """An experiment whose rows are variations of the federation settings, for ResNet-18.

    `rows` maps a row's name, as in the paper's data under `published`, to its federation settings.
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

    return Experiment(name=name, caption=caption, cells=cells, measure=final_numbers, show=show)


def ordered_names_of_rows(cells: list[Cell]) -> list[str]:
    """The rows of a variation's table, in order."""
    return list(dict.fromkeys(str(cell.options["row"]) for cell in cells))
