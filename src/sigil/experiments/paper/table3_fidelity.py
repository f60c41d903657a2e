"""Fidelity, effectiveness and orthogonality (the paper's table 3).

Each cell: accuracy (%), WSR (%) and mean cosine of G_main and G_wm, of a clean model and of models marked
at three strengths, for four architectures on two data sets, ten clients, IID.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sigil.experiments.lab import published as paper
from sigil.experiments.lab.experiment import (
    Experiment,
    Finding,
    Measured,
    check_claim,
    difference,
    final_numbers,
)
from sigil.experiments.lab.scales import STRENGTHS, TASKS, Scale
from sigil.experiments.lab.store import Cell
from sigil.experiments.pages.tables import Entry, Page, Row, Table


def name_of(model: str, strength: float) -> str:
    """Name of a cell: the architecture and the strength."""
    return f"{model} {'clean' if strength == 0 else f'strength {strength:g}'}"


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """All architectures, clean and at three strengths."""
    return [cell for model in TASKS for cell in model_cells(scale, seeds, model)]


def model_cells(scale: Scale, seeds: Sequence[int], model: str) -> list[Cell]:
    """One architecture, clean and at three strengths."""
    return [
        Cell(
            experiment="fidelity",
            name=name_of(model, strength),
            seed=seed,
            trainings=(scale.settings(model, seed=seed, watermark={"strength": strength}),),
            options={"model": model, "strength": strength},
        )
        for seed in seeds
        for strength in (0.0, *STRENGTHS)
    ]


def show(measured: Measured, folder: Path) -> Page:
    """The table, ours with the paper's in brackets."""

    def place(model: str, strength: float, *quantities: tuple[str, str, str]) -> list[Entry]:
        theirs = paper.fidelity(model, strength) or {}
        return [
            measured.number(name_of(model, strength), number, quantity, form, paper=theirs.get(number))
            for number, quantity, form in quantities
        ]

    marked = (("accuracy", "acc", ".1f"), ("wsr", "WSR", ".1f"), ("cosine", "cos", ".1e"))
    rows: list[Row] = [
        [
            f"{model} / {dataset}",
            place(model, 0.0, ("accuracy", "", ".1f")),
            *(place(model, strength, *marked) for strength in STRENGTHS),
        ]
        for model, dataset in TASKS.items()
    ]
    return [Table(["task", "clean", *(f"λ = {strength:g}" for strength in STRENGTHS)], rows)]


def verdict(measured: Measured) -> list[Finding]:
    """The paper's three claims: fidelity, effectiveness at every strength, orthogonality."""

    def number(model: str, strength: float, name: str) -> float | None:
        return measured.mean(name_of(model, strength), name)

    costs, cosines = {}, {}
    for model in TASKS:
        clean = number(model, 0.0, "accuracy")
        for strength in STRENGTHS:
            marked = number(model, strength, "accuracy")
            name = f"{model} λ = {strength:g}"
            costs[name] = difference(marked, clean)
            cosines[name] = number(model, strength, "cosine")
    return [
        check_claim("Marking costs at most 2 points of accuracy", costs, lambda x: x >= -2, "+.1f"),
        *(
            check_claim(
                f"The mark is embedded at λ = {strength:g} (WSR of at least 95 %)",
                {model: number(model, strength, "wsr") for model in TASKS},
                lambda wsr: wsr >= 95,
            )
            for strength in STRENGTHS
        ),
        check_claim(
            "G_wm and G_main are orthogonal (cosine below 0.01)", cosines, lambda x: abs(x) < 0.01, ".0e"
        ),
    ]


CAPTION = "Accuracy, WSR and cosine of clean and marked models; the paper's numbers in brackets."
EXPERIMENT = Experiment("fidelity", CAPTION, cells, show, final_numbers, verdict)
