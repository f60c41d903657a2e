"""What the paper's two ablation tables share: one row a variant of the mark, one column an attack.

Every column but noise is measured on one training with a recording of client 0's gradients, the attacker's.
"""

from __future__ import annotations

from typing import Any

from sigil.experiments.beyond import proof
from sigil.experiments.lab.experiment import Measure, Results, final_numbers
from sigil.experiments.lab.store import Cell, Store
from sigil.experiments.pages.tables import beside, spread, values
from sigil.experiments.paper import figure6_splitout as splitout
from sigil.experiments.paper import table5_adaptive as adaptive
from sigil.experiments.paper.table4_removal import ATTACKS, attackers_share, entry, marks
from sigil.federation.run import Run

SPLITOUT, NOISE = "SplitOut", "noise 1/100"
OUTLIERS = "outliers_256"
NOTE = (
    "SplitOut: mean outliers in 256 gradients, the paper's batch. Where there are several seeds, p is the "
    "largest of them."
)
REMOVAL = ("finetune 100", "prune 80 %", "INT4")
WINDOWS = tuple(f"R_wm {window}" for window in adaptive.WINDOWS)
# What the paper's data calls these columns.
PUBLISHED = {
    "none": "none",
    NOISE: "noise_1_100",
    "finetune 100": "finetune_100",
    "prune 80 %": "prune_80",
    "INT4": "int4",
}


# Cells that are another table's own are measured as there.
_ELSEWHERE: dict[str, Measure] = {
    "adaptive": adaptive.measure,
    "proof": proof.measure,
    "splitout": splitout.measure,
}


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """One column of one row."""
    if cell.experiment in _ELSEWHERE:
        return _ELSEWHERE[cell.experiment](cell, runs, store)
    (run,) = runs
    column = cell.options["column"]
    if column == NOISE:
        return final_numbers(cell, runs, store)
    if column in REMOVAL:
        settings, dataset = run.settings, store.dataset(run.settings)
        attack, _ = ATTACKS[column]
        attacked = attack(run.halves(), attackers_share(dataset, settings), settings)
        return marks(attacked, dataset, settings, store)
    return adaptive.after_attack(run, column, store)


def text(
    cells: list[Cell], results: Results, name: str, column: str, published: dict[str, Any] | None
) -> str:
    """One cell of the table, with the paper's numbers in brackets if it has this row."""
    theirs = published or {}
    if column == SPLITOUT:
        found = spread(values(cells, results, name, OUTLIERS))
        return "outliers " + beside(found, theirs.get("splitout"), ".4g")
    if column in WINDOWS:
        pair = theirs.get("adaptive", {}).get(column.removeprefix("R_wm "))
    else:
        pair = theirs.get(PUBLISHED[column])
    return entry(cells, results, name, tuple(pair) if pair else (None, None))
