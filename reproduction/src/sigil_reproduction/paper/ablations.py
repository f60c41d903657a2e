"""What the paper's two ablation tables share: one row per variant of the mark, one column per attack.

Every column but noise is measured on one training with a recording of client 0's gradients, the attacker's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sigil.federation.run import Run
from sigil.pages.tables import Entry
from sigil_reproduction.paper import table5_adaptive as adaptive
from sigil_reproduction.paper.table4_removal import ATTACKS
from sigil_reproduction.runner.attacked import LARGEST, attackers_share, entries, marks
from sigil_reproduction.runner.experiment import Measured, final_numbers
from sigil_reproduction.runner.scales import Scale
from sigil_reproduction.runner.stealth import OUTLIERS
from sigil_reproduction.runner.store import Cell, Store

SPLITOUT, NOISE = "SplitOut", "noise 1/100"
NOTE = f"SplitOut: mean outliers in 256 gradients, the paper's batch. {LARGEST}"
REMOVAL = ("finetune 100", "prune 80 %", "INT4")
WINDOWS = tuple(adaptive.WINDOWS)
PRUNING = "prune 80 %"
PROOF_ATTACKS = ("none", PRUNING, "R_wm 10", "R_wm 1", adaptive.AVERAGING, adaptive.HARDER)
# What the paper's data calls these columns.
PUBLISHED = {
    "none": "none",
    NOISE: "noise_1_100",
    "finetune 100": "finetune_100",
    "prune 80 %": "prune_80",
    "INT4": "int4",
}


def attacked_lengths(scale: Scale, seeds: Sequence[int], lengths: Sequence[int]) -> list[Cell]:
    """Every attack on keys of these lengths."""
    return [
        Cell(
            experiment="proof",
            name=f"{bits} bits {attack}",
            seed=seed,
            trainings=(
                scale.settings(
                    seed=seed,
                    watermark={"strength": 0.1, "bits": bits},
                    record=scale.recording,
                ),
            ),
            options={"bits": bits, "attack": attack},
        )
        for seed in seeds
        for bits in lengths
        for attack in PROOF_ATTACKS
    ]


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """One column of one row."""
    (run,) = runs
    column = cell.options["column"]
    if column == NOISE:
        return final_numbers(cell, runs, store)
    if column in REMOVAL:
        settings, dataset = run.settings, store.dataset(run.settings)
        attack, _ = ATTACKS[column]
        attacked = attack(run.halves(), attackers_share(dataset, settings), settings, store.scale)
        return marks(attacked, run, store)
    return adaptive.after_attack(run, column, store)


def place(measured: Measured, name: str, column: str, published: dict[str, Any] | None) -> list[Entry]:
    """One place of the table, with the paper's numbers in brackets if it has this row."""
    theirs = published or {}
    if column == SPLITOUT:
        outliers = theirs.get("splitout")
        return [measured.number(name, OUTLIERS, "outliers", paper=outliers, paper_form=".4g")]
    if column in adaptive.WINDOWS:
        return entries(measured, name, theirs.get("adaptive", {}).get(str(adaptive.WINDOWS[column])))
    return entries(measured, name, theirs.get(PUBLISHED[column]))
