"""Fidelity, effectiveness and orthogonality (the paper's table 3).

Each cell: accuracy (%), WSR (%) and mean cosine of G_main and G_wm, of a clean model and of models marked
at three strengths, for four architectures on two data sets, ten clients, IID.

What a mark costs is the difference to the clean model of the same seed, with a t interval over the seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sigil.pages.tables import NOT_RUN, Entry, Number, Page, Row, Table, Words
from sigil_reproduction.runner import published as paper
from sigil_reproduction.runner.experiment import (
    Experiment,
    Finding,
    Measured,
    check_claim,
    check_equivalence,
    final_numbers,
)
from sigil_reproduction.runner.intervals import MARGIN, Interval, equivalence, paired
from sigil_reproduction.runner.scales import STRENGTHS, TASKS, Scale
from sigil_reproduction.runner.store import Cell


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
            f"{model} / {measured.data(name_of(model, 0.0))}",
            place(model, 0.0, ("accuracy", "", ".1f")),
            *(place(model, strength, *marked) for strength in STRENGTHS),
        ]
        for model in TASKS
    ]
    strengths = [f"λ = {strength:g}" for strength in STRENGTHS]
    costs: list[Row] = [
        [model, *(_words(cost(measured, model, strength)) for strength in STRENGTHS)] for model in TASKS
    ]
    return [
        Table(["task", "clean", *strengths], rows),
        Table(
            ["points of accuracy gained by marking", *strengths],
            costs,
            notes="The mean difference to the clean model of the same seed, with its 95 % interval by "
            f"Student's t, and the p-value of two one-sided tests that it is less than {MARGIN:g} point "
            "either way: at most 0.05 shows that accuracy is the same. One seed shows nothing.",
        ),
    ]


def cost(measured: Measured, model: str, strength: float) -> Interval | None:
    """How much accuracy marking gains (or loses), paired by seed."""
    marked, clean = (measured.by_seed(name_of(model, each), "accuracy") for each in (strength, 0.0))
    return paired(marked, clean)


def _words(found: Interval | None) -> Words | Number:
    if found is None:
        return NOT_RUN
    p = equivalence(found)
    return Words(found.text("+.1f") + ("" if p is None else f", same within {MARGIN:g}: p = {p:.2g}"))


def verdict(measured: Measured) -> list[Finding]:
    """The paper's three claims: fidelity, effectiveness at every strength, orthogonality."""

    def number(model: str, strength: float, name: str) -> float | None:
        return measured.mean(name_of(model, strength), name)

    cosines = {
        f"{model} λ = {strength:g}": number(model, strength, "cosine")
        for model in TASKS
        for strength in STRENGTHS
    }
    return [
        *(
            check_equivalence(
                f"Marking at λ = {strength:g} leaves accuracy within {MARGIN:g} point of the clean model's",
                {model: cost(measured, model, strength) for model in TASKS},
            )
            for strength in STRENGTHS
        ),
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
