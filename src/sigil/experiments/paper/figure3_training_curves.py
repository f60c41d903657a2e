"""Training curves (the paper's figure on fidelity and effectiveness): accuracy and WSR over the rounds."""

from __future__ import annotations

from pathlib import Path

from sigil.experiments.lab.experiment import Experiment, Finding, Results, final_numbers, judge
from sigil.experiments.lab.scales import STRENGTHS, TASKS
from sigil.experiments.lab.store import Cell
from sigil.experiments.pages import figures
from sigil.experiments.paper import table3_fidelity as fidelity


def show(cells: list[Cell], results: Results, folder: Path) -> str:
    """Two rows of panels: accuracy above, WSR below, one column a task."""
    figure, axes = figures.panels(2 * len(TASKS), columns=len(TASKS))
    first = min((cell.seed for cell in cells), default=0)
    for column, (model, dataset) in enumerate(TASKS.items()):
        above, below = axes[column], axes[column + len(TASKS)]
        for strength, colour in figures.COLOURS.items():
            result = results.get((fidelity.name_of(model, strength), first))
            if result is None:
                continue
            rows = result.numbers["curves"]
            style = {"color": colour, "label": figures.label(strength)}
            figures.curve(above, rows["round"], _percent(rows["accuracy"]), **style)
            figures.curve(below, rows["round"], _percent(rows["wsr"]), **style)
        above.set(title=f"{model} / {dataset}", ylabel="accuracy (%)", xlabel="round")
        below.set(ylabel="WSR (%)", xlabel="round", ylim=(40, 102))
        figures.legend(above)
    figures.save(figure, folder / "training-curves.png")
    return "![Accuracy and WSR over the rounds](training-curves.png)\n"


def verdict(cells: list[Cell], results: Results) -> list[Finding]:
    """Marked and clean curves lie together, for the first seed."""
    first = min((cell.seed for cell in cells), default=0)
    distances: dict[str, float | None] = {}
    for model in TASKS:
        clean = results.get((fidelity.name_of(model, 0.0), first))
        for strength in STRENGTHS:
            marked = results.get((fidelity.name_of(model, strength), first))
            distance = None
            if clean is not None and marked is not None:
                one, two = (_percent(each.numbers["curves"]["accuracy"]) for each in (clean, marked))
                # At the high rates of the first rounds even clean trainings differ by several points.
                later = list(zip(one, two, strict=True))[len(one) // 2 :]
                apart = [abs(a - b) for a, b in later if a is not None and b is not None]
                distance = sum(apart) / len(apart) if apart else None
            distances[f"{model} λ = {strength:g}"] = distance
    return [
        judge(
            "In the second half of the training marked and clean accuracy lie within 3 points on average",
            distances,
            lambda x: x <= 3,
        )
    ]


def _percent(values: list[float | None]) -> list[float | None]:
    return [None if value is None else 100 * value for value in values]


EXPERIMENT = Experiment(
    name="training-curves",
    caption="Accuracy (above) and WSR (below) over the rounds, first seed.",
    cells=fidelity.cells,
    measure=final_numbers,
    show=show,
    verdict=verdict,
)
