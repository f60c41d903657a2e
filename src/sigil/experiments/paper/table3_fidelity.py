"""Fidelity, effectiveness and orthogonality (the paper's second table).

Each cell: accuracy (%), WSR (%) and mean cosine of G_main and G_wm, of a clean model and of models marked
at three strengths, for four architectures on two data sets, ten clients, IID.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sigil.experiments.lab import published as paper
from sigil.experiments.lab.experiment import Experiment, Finding, Results, final_numbers, judge
from sigil.experiments.lab.scales import STRENGTHS, TASKS, Scale
from sigil.experiments.lab.store import Cell
from sigil.experiments.pages.tables import beside, difference, markdown, mean, spread, values


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


def show(cells: list[Cell], results: Results, folder: Path) -> str:
    """The table, ours with the paper's in brackets."""
    rows = []
    for model, dataset in TASKS.items():
        clean = values(cells, results, name_of(model, 0.0), "accuracy")
        published = paper.fidelity(model, 0.0) or {}
        row = [f"{model} / {dataset}", beside(spread(clean), published.get("accuracy"))]
        for strength in STRENGTHS:
            name = name_of(model, strength)
            published = paper.fidelity(model, strength) or {}
            parts = [
                "acc " + beside(spread(values(cells, results, name, "accuracy")), published.get("accuracy")),
                "WSR " + beside(spread(values(cells, results, name, "wsr")), published.get("wsr")),
                "cos "
                + beside(
                    spread(values(cells, results, name, "cosine"), ".1e"), published.get("cosine"), ".1e"
                ),
            ]
            row.append("<br>".join(parts))
        rows.append(row)
    return markdown(["task", "clean", *(f"λ = {strength:g}" for strength in STRENGTHS)], rows)


def verdict(cells: list[Cell], results: Results) -> list[Finding]:
    """The paper's three claims: fidelity, effectiveness at every strength, orthogonality."""

    def number(model: str, strength: float, name: str) -> float | None:
        return mean(cells, results, name_of(model, strength), name)

    costs, cosines = {}, {}
    for model in TASKS:
        clean = number(model, 0.0, "accuracy")
        for strength in STRENGTHS:
            marked = number(model, strength, "accuracy")
            name = f"{model} λ = {strength:g}"
            costs[name] = difference(marked, clean)
            cosines[name] = number(model, strength, "cosine")
    return [
        judge("Marking costs at most 2 points of accuracy", costs, lambda x: x >= -2, "+.1f"),
        *(
            judge(
                f"The mark is embedded at λ = {strength:g} (WSR of at least 95 %)",
                {model: number(model, strength, "wsr") for model in TASKS},
                lambda wsr: wsr >= 95,
            )
            for strength in STRENGTHS
        ),
        judge("G_wm and G_main are orthogonal (cosine below 0.01)", cosines, lambda x: abs(x) < 0.01, ".0e"),
    ]


EXPERIMENT = Experiment(
    name="fidelity",
    caption="Accuracy, WSR and cosine of clean and marked models; the paper's numbers in brackets.",
    cells=cells,
    measure=final_numbers,
    show=show,
    verdict=verdict,
)
