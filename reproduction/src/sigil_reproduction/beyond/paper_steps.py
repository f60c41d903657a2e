"""What a longer training changes: effects that vanish at the reduced scale, checked once more.

The same images and rounds, but fewer clients, so that each takes about as many steps as the paper's. Shows
whether the weakest mark embeds, and what the adaptive attack does to marks that are set.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sigil.federation.run import Run
from sigil.pages import figures
from sigil.pages.tables import Page, Table
from sigil_reproduction.paper import table5_adaptive as adaptive
from sigil_reproduction.runner import attacked
from sigil_reproduction.runner.experiment import Experiment, Finding, Measured, check_claim, check_equivalence
from sigil_reproduction.runner.intervals import MARGIN, Interval, paired
from sigil_reproduction.runner.scales import Scale
from sigil_reproduction.runner.store import Cell, Store

ATTACKS = ("none", adaptive.CONTROL, "R_wm 10", adaptive.AVERAGING)
# Only marks that embed are worth attacking.
PLAN = {0.0: ATTACKS[:1], 1.0: ATTACKS, 0.1: ATTACKS, 0.01: ATTACKS[:1]}


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Clean and three strengths, and the attack on the two stronger ones."""
    return attacked.cells("longer", scale, seeds, PLAN, federation=scale.paper_steps, record=scale.recording)


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Attack the run and measure accuracy and the mark."""
    return adaptive.after_attack(runs[0], cell.options["attack"], store)


def show(measured: Measured, folder: Path) -> Page:
    """One row per strength, one column per attack."""
    rows = attacked.rows(measured, PLAN, ATTACKS)
    return [Table(["", *ATTACKS], rows)]


def verdict(measured: Measured) -> list[Finding]:
    """The paper's claims that the shorter training does not show."""

    def rates(*names: str) -> dict[str, float | None]:
        return {name: measured.mean(name, "wsr") for name in names}

    def gained(strength: float) -> Interval | None:
        marked, clean = (
            measured.by_seed(attacked.name_of(each, "none"), "accuracy") for each in (strength, 0.0)
        )
        return paired(marked, clean)

    return [
        check_equivalence(
            f"Marking leaves accuracy within {MARGIN:g} point of the clean model's",
            {figures.label(strength): gained(strength) for strength in PLAN if strength},
        ),
        check_claim(
            "The weakest mark embeds (WSR of at least 95 %)", rates("strength 0.01 none"), lambda x: x >= 95
        ),
        check_claim(
            "The adaptive attack leaves the mark of strength 0.1 above 70 %",
            rates("strength 0.1 R_wm 10"),
            lambda x: x > 70,
        ),
        check_claim(
            "and brings that of strength 1.0 below it", rates("strength 1 R_wm 10"), lambda x: x < 70
        ),
    ]


CAPTION = "Accuracy, WSR and p where each client takes as many steps as the paper's."
EXPERIMENT = Experiment("longer", CAPTION, cells, show, measure, verdict)
