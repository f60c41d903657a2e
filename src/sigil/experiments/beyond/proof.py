"""Proof, not only WSR: how long must a key be to survive the worst attacks? Strength 0.1, ResNet-18.

The exact test turns a success rate into a probability, and the length of the key decides what a rate is
worth. This table looks for the smallest number of bits whose p-value is still at most 3e-7 after pruning 80 %
and after the adaptive attack.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sigil import attacks
from sigil.experiments.lab.experiment import Experiment, Finding, Results, judge
from sigil.experiments.lab.scales import Scale
from sigil.experiments.lab.store import Cell, Store
from sigil.experiments.pages.tables import MISSING, markdown, spread, values
from sigil.experiments.paper import figure6_splitout as splitout
from sigil.experiments.paper import table5_adaptive as adaptive
from sigil.experiments.paper.table4_removal import entry, marks
from sigil.federation.run import Run
from sigil.verification import ALPHA

PRUNING = "prune 80 %"
LEVEL = math.log10(ALPHA)
ATTACKS = ("none", PRUNING, "R_wm 10", "R_wm 1", adaptive.AVERAGING, adaptive.HARDER)


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Every attack on every length, and what SplitOut sees of each."""
    watched = {splitout.name_of_length(bits) for bits in scale.proof_bits}
    return [cell for cell in splitout.cells(scale, seeds) if cell.name in watched] + [
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
        for bits in scale.proof_bits
        for attack in ATTACKS
    ]


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Attack the run and measure accuracy and the mark."""
    if cell.experiment == "splitout":
        return splitout.measure(cell, runs, store)
    (run,) = runs
    attack = cell.options["attack"]
    if attack != PRUNING:
        return adaptive.after_attack(run, attack, store)
    pruned = attacks.prune(run.halves(), 0.8)
    return marks(pruned, store.dataset(run.settings), run.settings, store)


def show(cells: list[Cell], results: Results, folder: Path) -> str:
    """A row a length, a column an attack, and which lengths are proof after each."""
    lengths = sorted({int(cell.options["bits"]) for cell in cells if "bits" in cell.options})
    table = markdown(
        ["bits", *ATTACKS, "SplitOut's outliers in 256"],
        [
            [
                str(bits),
                *(entry(cells, results, f"{bits} bits {attack}") for attack in ATTACKS),
                spread(values(cells, results, splitout.name_of_length(bits), "outliers_256")),
            ]
            for bits in lengths
        ],
    )
    proven = [[attack, _proving(cells, results, attack, lengths)] for attack in ATTACKS]
    return table + "\n" + markdown(["after", "lengths that are proof (p ≤ 3e-7)"], proven)


def _proving(cells: list[Cell], results: Results, attack: str, lengths: list[int]) -> str:
    found, measured = [], 0
    for bits in lengths:
        owned = [
            results[cell.name, cell.seed].numbers["owned"]
            for cell in cells
            if cell.name == f"{bits} bits {attack}" and (cell.name, cell.seed) in results
        ]
        measured += bool(owned)
        if owned and all(owned):
            found.append(str(bits))
    return (", ".join(found) or "none of them") if measured else MISSING


def verdict(cells: list[Cell], results: Results) -> list[Finding]:
    """Which lengths are proof to begin with, and after every attack; and that they all embed."""

    def worst(bits: int, *attacks: str) -> float | None:
        found = [values(cells, results, f"{bits} bits {attack}", "log10_p") for attack in attacks]
        return max(map(max, found)) if all(found) else None

    lengths = sorted({int(cell.options["bits"]) for cell in cells if "bits" in cell.options})
    return [
        judge(
            "Every length is proof before an attack (log10 p of at most −6.5)",
            {f"{bits} bits": worst(bits, "none") for bits in lengths},
            lambda x: x <= LEVEL,
        ),
        *(
            judge(
                f"{bits} bits are proof after every attack (largest log10 p)",
                {"worst": worst(bits, *ATTACKS)},
                lambda x: x <= LEVEL,
            )
            for bits in lengths
        ),
    ]


EXPERIMENT = Experiment(
    name="proof",
    caption="What remains of keys of several lengths after pruning and the adaptive attack, strength 0.1.",
    cells=cells,
    measure=measure,
    show=show,
    verdict=verdict,
)
