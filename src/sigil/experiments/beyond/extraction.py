"""Extraction by distillation: does a student carry its teacher's mark? The paper says that it does not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sigil import attacks, models
from sigil.experiments.lab import attacked
from sigil.experiments.lab.attacked import attackers_share, marks
from sigil.experiments.lab.experiment import Experiment, Finding, Measured
from sigil.experiments.lab.scales import STRENGTHS, PerScale, Scale
from sigil.experiments.lab.store import Cell, Store
from sigil.experiments.pages.tables import Page, Table
from sigil.federation.precision import choose
from sigil.federation.run import Run

# Name of the student, and how much of the training images the attacker has.
ATTACKS = {"none": None, "own share": "client", "all images": "all"}
# Distilling from all images is as long as a training, so it is tried on one strength only.
THOROUGH = 0.1
PLAN = {
    strength: list(ATTACKS) if strength == THOROUGH else ["none", "own share"]
    for strength in reversed(STRENGTHS)
}
EPOCHS = PerScale(50, desk=10, cpu=10, smoke=1)


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """The teacher and a student of the attacker's own share; for one strength one of all images too."""
    return attacked.cells("extraction", scale, seeds, PLAN)


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Distil into a fresh network of the same kind, then measure it as if it were the teacher."""
    (run,) = runs
    settings, dataset = run.settings, store.dataset(run.settings)
    teacher, images = run.halves(), ATTACKS[cell.options["attack"]]
    if images is None:
        return marks(teacher, dataset, settings, store)
    student = models.build(
        settings.model.name,
        classes=dataset.classes,
        width=settings.model.width,
        channels=dataset.shape[0],
        input_size=dataset.shape[1:],
        seed=settings.run.seed + 1,
    )
    cut = settings.model.cut or models.default_cut(settings.model.name)
    distilled = attacks.extract(
        teacher,
        models.split(student, cut),
        attackers_share(dataset, settings) if images == "client" else dataset,
        epochs=EPOCHS.at(store.scale),
        batch_size=settings.federation.batch_size,
        seed=settings.run.seed,
        precision=choose(settings.run.device, settings.run.precision),
    )
    return marks(distilled, dataset, settings, store)


def show(measured: Measured, folder: Path) -> Page:
    """The teacher and its students."""
    rows = attacked.rows(measured, PLAN, list(ATTACKS))
    return [Table(["", "teacher", "student of one client's images", "student of all images"], rows)]


def verdict(measured: Measured) -> list[Finding]:
    """The paper's one sentence on extraction."""
    rates = [
        rate
        for strength in STRENGTHS
        for attack in list(ATTACKS)[1:]
        for rate in measured.values(f"strength {strength:g} {attack}", "wsr")
    ]
    return [Finding("Distillation removes the mark.", max(rates) < 70 if rates else None)]


CAPTION = "Accuracy, WSR and p of students distilled from marked models."
EXPERIMENT = Experiment("extraction", CAPTION, cells, show, measure, verdict)
