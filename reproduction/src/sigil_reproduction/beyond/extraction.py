"""Extraction by distillation: does what a thief teaches by the model's answers carry the mark?

The paper says that a student distilled into a fresh model does not. In U-SFL a thief has more than answers:
it is a client with its own half, and what it lacks is the server's. So it teaches a substitute for the
*server* half by the logits that it was sent for its own images, with the client half as it is or trained
along. The mark lies in the client half.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sigil import attacks, models
from sigil.federation.precision import choose
from sigil.federation.run import Run
from sigil.pages.tables import Page, Table
from sigil_reproduction.runner import attacked
from sigil_reproduction.runner.attacked import attackers_share, marks
from sigil_reproduction.runner.experiment import Claim, Experiment, Measured
from sigil_reproduction.runner.scales import STRENGTHS, PerScale, Scale
from sigil_reproduction.runner.store import Cell, Store

# Name of the student, how much of the training images the attacker has, and whether the client half is its
# own, from which only a substitute for the server half is taught.
SUBSTITUTE, ALL_TRAINED = "substitute server half", "substitute, both halves trained"
ATTACKS: dict[str, tuple[str, bool]] = {
    "own share": ("client", False),
    "all images": ("all", False),
    SUBSTITUTE: ("client", True),
    ALL_TRAINED: ("client", True),
}
# Distilling from all images is as long as a training, so it is tried on one strength only.
THOROUGH = 0.1
PLAN = {
    strength: ["none", *ATTACKS] if strength == THOROUGH else ["none", "own share"]
    for strength in reversed(STRENGTHS)
}
EPOCHS = PerScale(50, desk=10, cpu=10, smoke=1)


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """The teacher and a student of the attacker's own share; for one strength one of all images too."""
    return attacked.cells("extraction", scale, seeds, PLAN)


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Distil into a fresh network of the same kind, whole or behind the cut, then measure the mark in it."""
    (run,) = runs
    settings, dataset = run.settings, store.dataset(run.settings)
    teacher, attack = run.halves(), cell.options["attack"]
    if attack == "none":
        return marks(teacher, run, store)
    images, inside = ATTACKS[attack]
    fresh = models.build(
        settings.model.name,
        classes=dataset.classes,
        width=settings.model.width,
        channels=dataset.shape[0],
        input_size=dataset.shape[1:],
        seed=settings.run.seed + 1,
    )
    cut = settings.model.cut or models.default_cut(settings.model.name)
    client_half, server_half = models.split(fresh, cut)
    distilled = attacks.extract(
        teacher,
        (teacher[0] if inside else client_half, server_half),
        attackers_share(dataset, settings) if images == "client" else dataset,
        part="server" if attack == SUBSTITUTE else "whole",
        epochs=EPOCHS.at(store.scale),
        batch_size=settings.federation.batch_size,
        seed=settings.run.seed,
        precision=choose(settings.run.device, settings.run.precision),
    )
    return marks(distilled, run, store)


def show(measured: Measured, folder: Path) -> Page:
    """The teacher, its students, and the thief's own half with a substitute for the server's."""
    columns = ["none", *ATTACKS]
    names = ["teacher", "student of one client's images", "student of all images", SUBSTITUTE, ALL_TRAINED]
    rows = attacked.rows(measured, PLAN, columns)
    return [
        Table(
            ["", *names],
            rows,
            notes="Students are fresh models. A substitute is taught by the logits for one client's images, "
            "behind the client half that this client has: with that half as it is, and with both trained.",
        )
    ]


CLAIMS = [
    *(
        Claim(
            f"Distillation into a fresh model removes λ = {strength:g}, {attack} (WSR < 70 %)",
            attacked.name_of(strength, attack),
            lambda wsr: wsr < 70,
            paper="no number",
            opens=(strength, attack) == (THOROUGH, "own share"),
        )
        for strength, planned in PLAN.items()
        for attack in planned
        if attack in ATTACKS and not ATTACKS[attack][1]
    ),
    *(
        Claim(
            f"The mark is still there: {attack} (WSR ≥ 95 %)",
            attacked.name_of(THOROUGH, attack),
            lambda wsr: wsr >= 95,
        )
        for attack in (SUBSTITUTE, ALL_TRAINED)
    ),
]
CAPTION = "Accuracy, WSR and p of what a thief teaches by the answers of marked models."
EXPERIMENT = Experiment("extraction", CAPTION, cells, show, measure, claims=CLAIMS)
