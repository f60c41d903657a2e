"""Robustness against noise in training (the paper's figure 7): ResNet-18, all clients add noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sigil.pages import figures
from sigil.pages.tables import Page, Picture, Row, Table
from sigil_reproduction.runner import published as paper
from sigil_reproduction.runner.experiment import Claim, Experiment, Measured, final_numbers
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


def _change(text: str, strength: float, holds: Callable[[float], bool], **more: Any) -> Claim:
    """What noise changes, paired by seed."""
    ratio = more.pop("ratio", "1/100")
    before = _name("noise-free", strength)
    claim = f"Noise of {ratio} {text}"
    return Claim(claim, _name(ratio, strength), holds, instead_of=before, form="+.1f", unit="points", **more)


CLAIMS = [
    Claim(
        "Noise of 100 times the gradient's power leaves the mark (WSR ≥ 95 %)",
        _name("1/100", 0.1),
        lambda wsr: wsr >= 95,
        paper=f"{paper.numbers()['noise']['points_given_in_text']['wsr']['0.1']['1/100']:.1f} %",
        opens=True,
    ),
    *(
        _change(
            f"costs at least 10 points of accuracy, {figures.label(strength)}",
            strength,
            lambda points: points <= -10,
            number="accuracy",
        )
        for strength in (0.0, *STRENGTHS)
    ),
    _change("leaves the mark of λ = 1 (WSR within 2 points)", 1.0, lambda points: points >= -2),
    _change("takes more than 20 points of λ = 0.01", 0.01, lambda points: points < -20, ratio="1/30"),
]
CAPTION = "Accuracy and WSR where every client adds Gaussian noise to the gradients that it receives."
EXPERIMENT = Experiment("noise", CAPTION, cells, show, final_numbers, claims=CLAIMS)
