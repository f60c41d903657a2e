"""How many bits (the paper's table 7): ResNet-18, strength 0.1, the paper's cut.

The activation at the cut has d numbers, and as many bits are the most that can be embedded independently.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sigil.pages.tables import Page, Row, Table
from sigil_reproduction.paper import ablations
from sigil_reproduction.paper import figure6_splitout as splitout
from sigil_reproduction.paper.ablations import REMOVAL, SPLITOUT, WINDOWS
from sigil_reproduction.runner import published as paper
from sigil_reproduction.runner.experiment import Experiment, Finding, Measured, check_claim
from sigil_reproduction.runner.scales import LENGTHS, Scale
from sigil_reproduction.runner.stealth import OUTLIERS
from sigil_reproduction.runner.store import Cell

COLUMNS = ("none", SPLITOUT, *REMOVAL, *WINDOWS)


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Every column at every length; what another table measures too is that table's own cell."""
    found = (*splitout.cells(scale, seeds), *ablations.attacked_lengths(scale, seeds, LENGTHS.at(scale)))
    known = {(cell.name, cell.seed): cell for cell in found}
    return [
        known.get((name_of(bits, column), seed))
        or Cell(
            experiment="length",
            name=name_of(bits, column),
            seed=seed,
            trainings=known[name_of(bits, "none"), seed].trainings,
            options={"bits": bits, "column": column},
        )
        for seed in seeds
        for bits in LENGTHS.at(scale)
        for column in COLUMNS
    ]


def name_of(bits: int, column: str) -> str:
    """Name of a cell: the length and the attack, or what the other table calls it."""
    if column == SPLITOUT:
        return splitout.name_of_length(bits)
    return f"{bits} bits {column}"


def show(measured: Measured, folder: Path) -> Page:
    """The table, ours with the paper's in brackets."""
    published = paper.numbers()["ablation_length"]
    rows: list[Row] = [
        [
            f"k = {bits}",
            *(
                ablations.place(measured, name_of(bits, column), column, published.get(str(bits)))
                for column in COLUMNS
            ),
        ]
        for bits in sorted(measured.options("bits"))
    ]
    return [Table(["", *COLUMNS], rows, notes=ablations.NOTE)]


def verdict(measured: Measured) -> list[Finding]:
    """The paper's claims on capacity and its price."""
    rows = sorted(measured.options("bits"))

    def numbers(column: str, number: str) -> dict[str, float | None]:
        return {f"k = {bits}": measured.mean(name_of(bits, column), number) for bits in rows}

    def change(column: str, number: str) -> dict[str, float | None]:
        """The longest key's number less the shortest's, of those that were measured."""
        known = [(name, value) for name, value in numbers(column, number).items() if value is not None]
        if len(known) < 2:
            return {"": None}
        (first, before), (last, after) = known[0], known[-1]
        return {f"{last} less {first}": after - before}

    return [
        check_claim(
            "The mark embeds at every length (WSR of at least 95 %)",
            numbers("none", "wsr"),
            lambda x: x >= 95,
        ),
        check_claim(
            "Length costs at most 2 points of accuracy", change("none", "accuracy"), lambda x: x >= -2, "+.1f"
        ),
        check_claim(
            "A longer mark has more outliers for SplitOut",
            change(SPLITOUT, OUTLIERS),
            lambda x: x > 0,
            "+.2f",
        ),
        check_claim(
            "A longer mark loses more to pruning 80 %", change("prune 80 %", "wsr"), lambda x: x < 0, "+.1f"
        ),
    ]


CAPTION = "Fidelity, stealth and robustness of marks of several lengths; the paper's numbers in brackets."
EXPERIMENT = Experiment("length", CAPTION, cells, show, ablations.measure, verdict)
