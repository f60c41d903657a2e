"""Training curves (the paper's figure on fidelity and effectiveness): accuracy and WSR over the rounds."""

from __future__ import annotations

from pathlib import Path

from sigil.experiments import fidelity, figures
from sigil.experiments.experiment import Experiment, Results, final_numbers
from sigil.experiments.scales import TASKS
from sigil.experiments.store import Cell


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


def _percent(values: list[float | None]) -> list[float | None]:
    return [None if value is None else 100 * value for value in values]


EXPERIMENT = Experiment(
    name="training-curves",
    caption="Accuracy (above) and WSR (below) over the rounds, first seed.",
    cells=fidelity.cells,
    measure=final_numbers,
    show=show,
)
