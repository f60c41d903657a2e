"""Tables of one varied setting against three strengths: the shape of the paper's appendix E."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sigil.pages.tables import Entry, Page, Table
from sigil_reproduction.runner import published as paper
from sigil_reproduction.runner.experiment import Claim, Experiment, Measured, final_numbers
from sigil_reproduction.runner.scales import PAPER, STRENGTHS, Scale
from sigil_reproduction.runner.store import Cell

Rows = Callable[[Scale], Mapping[str, Mapping[str, Any]]]


def table(
    name: str,
    *,
    caption: str,
    axis: str,
    rows: Rows,
    published: str,
    costs: bool,
    opening: tuple[str, str],
) -> Experiment:
    """An experiment whose rows are variations of the federation settings, for ResNet-18.

    `rows` maps a row's name, as in the paper's data under `published`, to its federation settings. In all of
    them the paper's mark holds; `costs` says whether the last row's accuracy is well below the first's. The
    report opens with one row, by its name, and what the mark's rate there says.
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

        strengths, varied = tuple(reversed(STRENGTHS)), measured.options("row")
        header = [axis, *(f"λ = {strength:g}" for strength in strengths)]
        return [
            Table(header, [[f"{axis} {row}", *(place(row, each) for each in strengths)] for row in varied])
        ]

    first, *others = rows(PAPER)
    row, text = opening

    def change(text: str, row: str, strength: float, holds: Callable[[float], bool], number: str) -> Claim:
        cell, before = name_of(row, strength), name_of(first, strength)
        text = f"{axis} {row} instead of {first} {text}, λ = {strength:g}"
        return Claim(text, cell, holds, number, instead_of=before, form="+.1f", unit="points")

    claims = [
        Claim(
            f"{text} (WSR ≥ 95 %)",
            name_of(row, 0.1),
            lambda wsr: wsr >= 95,
            paper=f"{(paper.pair(published, row, 0.1) or {})['wsr']:.1f} %",
            opens=True,
        ),
        *(
            change("costs at least 5 points of accuracy", others[-1], each, lambda x: x <= -5, "accuracy")
            if costs
            else change("costs at most 3 points of accuracy", others[-1], each, lambda x: x >= -3, "accuracy")
            for each in STRENGTHS
        ),
        *(
            change("weakens the mark by at most 5 points", row, strength, lambda x: x >= -5, "wsr")
            for strength in (1.0, 0.1)
            for row in others
        ),
    ]
    return Experiment(name, caption, cells, show, final_numbers, claims=claims)


def name_of(row: str, strength: float) -> str:
    """Name of a cell: the row and the strength."""
    return f"{row} strength {strength:g}"
