"""The figures that open a report: training, attacks, detectors, cuts; from the cells of a scale alone."""

from __future__ import annotations

from pathlib import Path

from sigil.pages import figures
from sigil.pages.tables import Page, Picture
from sigil_reproduction.beyond import curves
from sigil_reproduction.pages.claims import measured_of
from sigil_reproduction.paper import ablations
from sigil_reproduction.paper import figure5_scrutinizer as scrutinizer
from sigil_reproduction.paper import figure6_splitout as splitout
from sigil_reproduction.paper import table3_fidelity as fidelity
from sigil_reproduction.paper import table6_split_point as split_point
from sigil_reproduction.runner import stealth
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.store import Store

TRAINING, ATTACKS, DETECTORS, CUTS = "training.png", "attacks.png", "detectors.png", "cuts.png"
# The network whose training is drawn, and the servers whose detectors' scores are.
MODEL = "resnet18"
SHOWN = (stealth.HONEST, *stealth.MARKED, stealth.UNCLIPPED, stealth.SHARES)


def page(store: Store, folder: Path) -> Page:
    """The figures, saved in the folder; one of which no cell was measured is left out."""
    drawn = {
        TRAINING: ("Accuracy and WSR over the rounds, clean and marked", _training(store, folder)),
        ATTACKS: ("What each attack leaves over the accuracy that it costs", _attacks(store, folder)),
        DETECTORS: ("What the detectors say of honest and marked servers", _detectors(store, folder)),
        CUTS: ("What is left at each cut", _cuts(store, folder)),
    }
    return [Picture(words, name) for name, (words, there) in drawn.items() if there]


def _training(store: Store, folder: Path) -> bool:
    """Accuracy and WSR of ResNet-18, one thin curve per seed."""
    measured = measured_of(store, "fidelity")
    if not any(measured.every(fidelity.name_of(MODEL, strength)) for strength in figures.COLOURS):
        return False
    figure, (accuracy, wsr) = figures.panels(2, columns=2)
    for strength, colour in figures.COLOURS.items():
        for number, numbers in enumerate(measured.every(fidelity.name_of(MODEL, strength))):
            rows = numbers["curves"]
            style = {"color": colour, "label": None if number else figures.label(strength), "linewidth": 1.0}
            figures.curve(accuracy, rows["round"], figures.percent(rows["accuracy"]), **style)
            figures.curve(wsr, rows["round"], figures.percent(rows["wsr"]), **style)
    accuracy.set(title=f"ResNet-18 / {_task(measured)}", xlabel="round", ylabel="accuracy (%)")
    wsr.set(title="the mark", xlabel="round", ylabel="WSR (%)", ylim=(40, 102))
    figures.legend(accuracy, {"loc": "lower right"})
    figures.save(figure, folder / TRAINING)
    return True


def _task(measured: Measured) -> str:
    """What the network learned, as it is written."""
    name = measured.data(fidelity.name_of(MODEL, 0.0))
    return {"cifar10": "CIFAR-10"}.get(name, name)


def _cuts(store: Store, folder: Path) -> bool:
    """Accuracy and WSR over the cuts, one curve for each thing that is done to the model."""
    measured = measured_of(store, "split-point")
    shown = ("none", ablations.NOISE, *ablations.REMOVAL, *ablations.WINDOWS[:1])
    cuts = [cut for cut in split_point.CUTS if measured.every(split_point.name_of(cut, "none"))]
    if not cuts:
        return False
    figure, (accuracy, wsr) = figures.panels(2, columns=2)
    for column, colour in zip(shown, figures.SERIES, strict=True):
        for axis, number in ((accuracy, "accuracy"), (wsr, "wsr")):
            rates = [measured.mean(split_point.name_of(cut, column), number) for cut in cuts]
            figures.curve(axis, cuts, rates, color=colour, label=column)
    accuracy.set(title="λ = 0.1", xlabel="cut", ylabel="accuracy (%)")
    wsr.set(title="the mark", xlabel="cut", ylabel="WSR (%)", ylim=(40, 102))
    figures.legend_below(figure, [accuracy, wsr])
    figures.save(figure, folder / CUTS)
    return True


def _attacks(store: Store, folder: Path) -> bool:
    measured = measured_of(store, "curves")
    schemes = [name for name in curves.SCHEMES if curves.curve(measured, name, curves.NOTHING)]
    if schemes:
        curves.draw(measured, folder / ATTACKS, schemes)
    return bool(schemes)


def _detectors(store: Store, folder: Path) -> bool:
    """Gradient Scrutinizer's score and SplitOut's outliers over training, at both cuts."""
    readings = (
        ("scrutinizer", scrutinizer.NAME, 1.0, 0.5, "Gradient Scrutinizer, score"),
        ("splitout", splitout.NAME, float(splitout.BATCH), splitout.BATCH / 2, "SplitOut, outliers in 256"),
    )
    figure, axes = figures.panels(2 * len(stealth.CUTS), columns=2 * len(stealth.CUTS))
    there = False
    for number, (experiment, detector, times, alarm, title) in enumerate(readings):
        measured = measured_of(store, experiment)
        for axis, cut in zip(axes[number * len(stealth.CUTS) :], stealth.CUTS, strict=False):
            for server in SHOWN:
                numbers = measured.first(f"{cut} {server}")
                if numbers is not None and detector in numbers:
                    rows, there = numbers[detector]["curves"], True
                    scores = [times * score for score in rows["score"]]
                    figures.curve(axis, rows["scored_step"], scores, **stealth.style(server), markersize=0)
            axis.axhline(alarm, color="0.5", linewidth=1, linestyle="--", label="alarm")
            axis.set(title=f"{title}, {cut}", xlabel="step of client 0")
            if len(axis.lines) == 1:  # only the alarm: not measured, or too short a training for a score
                measured_here = any(measured.first(f"{cut} {server}") for server in SHOWN)
                axis.set_visible(measured_here)
                axis.set(xticks=[], yticks=[], xlabel="no score")
    figures.legend_below(figure, axes)
    if there:
        figures.save(figure, folder / DETECTORS)
    else:
        figures.discard(figure)
    return there
