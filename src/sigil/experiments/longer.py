"""What a longer training changes: effects that vanish at the reduced scale, checked once more.

The same images and rounds, but fewer clients, so that each takes about as many steps as the paper's. Shows
whether the weakest mark embeds, and what the adaptive attack does to marks that are set.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sigil.experiments import adaptive
from sigil.experiments.experiment import Experiment, Results
from sigil.experiments.removal import entry
from sigil.experiments.scales import STRENGTHS, Scale
from sigil.experiments.store import Cell, Store
from sigil.experiments.tables import markdown
from sigil.federation.run import Run

ATTACKS = ("none", adaptive.CONTROL, "R_wm 10", adaptive.AVERAGING)
# Only marks that embed are worth attacking.
ATTACKED = (1.0, 0.1)


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Clean and three strengths, and the attack on the two stronger ones."""
    return [
        Cell(
            experiment="longer",
            name=f"strength {strength:g} {attack}",
            seed=seed,
            trainings=(
                scale.settings(
                    seed=seed,
                    federation=scale.longer,
                    watermark={"strength": strength},
                    record={"clients": [0]},
                ),
            ),
            options={"strength": strength, "attack": attack},
        )
        for seed in seeds
        for strength in (0.0, *reversed(STRENGTHS))
        for attack in (ATTACKS if strength in ATTACKED else ATTACKS[:1])
    ]


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Attack the run and measure accuracy and the mark."""
    return adaptive.after_attack(runs[0], cell.options["attack"], store)


def show(cells: list[Cell], results: Results, folder: Path) -> str:
    """A row a strength, a column an attack."""
    names = {cell.name for cell in cells}
    lines = []
    for strength in (0.0, *reversed(STRENGTHS)):
        line = ["clean" if strength == 0 else f"λ = {strength:g}"]
        for attack in ATTACKS:
            name = f"strength {strength:g} {attack}"
            line.append(entry(cells, results, name, marked=strength > 0) if name in names else "")
        lines.append(line)
    return markdown(["", *ATTACKS], lines)


EXPERIMENT = Experiment(
    name="longer",
    caption="Accuracy, WSR and p where each client takes as many steps as the paper's.",
    cells=cells,
    measure=measure,
    show=show,
)
