"""Robustness against noise in training (the paper's figure 7): ResNet-18, all clients add noise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sigil.pages import figures
from sigil.pages.tables import Page, Picture, Row, Table
from sigil_reproduction.runner.experiment import (
    Experiment,
    Finding,
    Measured,
    check_claim,
    difference,
    final_numbers,
)
from sigil_reproduction.runner.scales import STRENGTHS, Scale
from sigil_reproduction.runner.store import Cell

RATIOS = {"noise-free": None, "1/10": 1 / 10, "1/30": 1 / 30, "1/50": 1 / 50, "1/100": 1 / 100}


def _name(ratio: str, strength: float) -> str:
    return f"SNR {ratio} {'clean' if strength == 0 else f'strength {strength:g}'}"


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """A clean model and three strengths, at five signal-to-noise ratios."""
    return [
        Cell(
            experiment="noise",
            name=_name(ratio, strength),
            seed=seed,
            trainings=(
                scale.settings(
                    seed=seed,
                    variation=True,
                    watermark={"strength": strength},
                    behaviour={"noise_snr": snr} if snr else {},
                ),
            ),
            options={"ratio": ratio, "strength": strength},
        )
        for seed in seeds
        for ratio, snr in RATIOS.items()
        for strength in (0.0, *STRENGTHS)
    ]


def show(measured: Measured, folder: Path) -> Page:
    """Accuracy and WSR over the ratio, as a figure and as a table."""
    figure, (left, right) = figures.panels(2)
    places = range(len(RATIOS))
    rows: list[Row] = []
    for strength, colour in figures.COLOURS.items():
        shown = {"accuracy": "acc", "wsr": "WSR"} if strength else {"accuracy": "acc"}
        names = [_name(ratio, strength) for ratio in RATIOS]
        rows.append(
            [
                figures.label(strength),
                *([measured.number(name, *each) for each in shown.items()] for name in names),
            ]
        )
        style = {"color": colour, "label": figures.label(strength)}
        figures.curve(left, places, [measured.mean(name, "accuracy") for name in names], **style)
        figures.curve(right, places, [measured.mean(name, "wsr") for name in names], **style)
    for axis, title in ((left, "accuracy (%)"), (right, "WSR (%)")):
        axis.set_xticks(list(places), list(RATIOS))
        axis.set(title=title, xlabel="signal-to-noise ratio")
    figures.legend(left)
    figures.save(figure, folder / "noise.png")
    return [
        Picture("Accuracy and WSR over the signal-to-noise ratio", "noise.png"),
        Table(["", *RATIOS], rows),
    ]


def verdict(measured: Measured) -> list[Finding]:
    """Noise costs the task, and not the stronger marks."""

    def change(strength: float, number: str, ratio: str) -> float | None:
        before = measured.mean(_name("noise-free", strength), number)
        after = measured.mean(_name(ratio, strength), number)
        return difference(after, before)

    costs = {figures.label(strength): change(strength, "accuracy", "1/100") for strength in (0.0, *STRENGTHS)}
    return [
        check_claim(
            "Noise of 1/100 costs every model at least 10 points of accuracy",
            costs,
            lambda x: x <= -10,
            "+.1f",
        ),
        *(
            check_claim(
                f"Noise of 1/100 leaves the mark of λ = {strength:g} (WSR within 2 points)",
                {"change": change(strength, "wsr", "1/100")},
                lambda x: x >= -2,
                "+.1f",
            )
            for strength in (1.0, 0.1)
        ),
        check_claim(
            "Noise of 1/30 brings the mark of λ = 0.01 down by more than 20 points",
            {"change": change(0.01, "wsr", "1/30")},
            lambda x: x < -20,
            "+.1f",
        ),
    ]


CAPTION = "Accuracy and WSR where every client adds Gaussian noise to the gradients that it receives."
EXPERIMENT = Experiment("noise", CAPTION, cells, show, final_numbers, verdict)
