"""Training curves (the paper's figure 3): accuracy and WSR over the rounds."""

from __future__ import annotations

from pathlib import Path

from sigil.pages import figures
from sigil.pages.tables import Page, Picture
from sigil_reproduction.paper import table3_fidelity as fidelity
from sigil_reproduction.runner.experiment import Experiment, Finding, Measured, check_claim
from sigil_reproduction.runner.scales import STRENGTHS, TASKS


def show(measured: Measured, folder: Path) -> Page:
    """Two rows of panels: accuracy above, WSR below, one column per task."""
    tasks = [
        model
        for model in TASKS
        if any(measured.first(fidelity.name_of(model, each)) for each in figures.COLOURS)
    ]
    figure, axes = figures.panels(2 * len(tasks), columns=len(tasks))
    for column, model in enumerate(tasks):
        data = measured.data(fidelity.name_of(model, 0.0))
        above, below = axes[column], axes[column + len(tasks)]
        for strength, colour in figures.COLOURS.items():
            numbers = measured.first(fidelity.name_of(model, strength))
            if numbers is None:
                continue
            rows = numbers["curves"]
            style = {"color": colour, "label": figures.label(strength)}
            figures.curve(above, rows["round"], figures.percent(rows["accuracy"]), **style)
            figures.curve(below, rows["round"], figures.percent(rows["wsr"]), **style)
        above.set(title=f"{model} / {data}", ylabel="accuracy (%)", xlabel="round")
        below.set(ylabel="WSR (%)", xlabel="round", ylim=(40, 102))
        figures.legend(above)
    figures.save(figure, folder / "training-curves.png")
    return [Picture("Accuracy and WSR over the rounds", "training-curves.png")]


def verdict(measured: Measured) -> list[Finding]:
    """Marked and clean curves lie together, for the first seed."""
    distances: dict[str, float | None] = {}
    for model in TASKS:
        clean = measured.first(fidelity.name_of(model, 0.0))
        for strength in STRENGTHS:
            marked = measured.first(fidelity.name_of(model, strength))
            distance = None
            if clean is not None and marked is not None:
                one, two = (figures.percent(each["curves"]["accuracy"]) for each in (clean, marked))
                # At the high rates of the first rounds even clean trainings differ by several points.
                later = list(zip(one, two, strict=True))[len(one) // 2 :]
                apart = [abs(a - b) for a, b in later if a is not None and b is not None]
                distance = sum(apart) / len(apart) if apart else None
            distances[f"{model} λ = {strength:g}"] = distance
    return [
        check_claim(
            "In the second half of the training marked and clean accuracy lie within 3 points on average",
            distances,
            lambda x: x <= 3,
        )
    ]


CAPTION = "Accuracy (above) and WSR (below) over the rounds, first seed."
EXPERIMENT = Experiment("training-curves", CAPTION, fidelity.cells, show, verdict=verdict)
