"""Gradient orthogonality (the paper's figure 4): cosine of G_main and G_wm over the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sigil.pages import figures
from sigil.pages.tables import Page, Picture, Row, Table
from sigil_reproduction.paper import table3_fidelity as fidelity
from sigil_reproduction.runner.experiment import Experiment, Measured
from sigil_reproduction.runner.scales import STRENGTHS, Scale
from sigil_reproduction.runner.store import Cell


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """ResNet-18 at three strengths: the same cells as in the fidelity table."""
    return [cell for cell in fidelity.model_cells(scale, seeds, "resnet18") if cell.options["strength"]]


def show(measured: Measured, folder: Path) -> Page:
    """The figure, and the mean over training."""
    figure, (signed, absolute) = figures.panels(2)
    lost = []
    for strength in STRENGTHS:
        numbers = measured.first(fidelity.name_of("resnet18", strength))
        if numbers is None:
            continue
        rows = numbers["curves"]
        rounds = zip(rows["round"], rows["injection_cosine"], strict=True)
        lost += [f"{figures.label(strength)}, round {number}" for number, cosine in rounds if cosine is None]
        style = {"color": figures.COLOURS[strength], "label": figures.label(strength)}
        figures.curve(signed, rows["round"], rows["injection_cosine"], **style)
        figures.curve(absolute, rows["round"], rows["injection_cosine_abs"], **style)
    signed.axhline(0, color="black", linewidth=0.8)
    signed.set(title="mean cosine of G_main and G_wm", xlabel="round", ylabel="cosine")
    absolute.set(title="mean absolute cosine", xlabel="round", ylim=(0, None))
    figures.legend(signed)
    figures.save(figure, folder / "orthogonality.png")
    cosines: list[Row] = [
        [
            figures.label(strength),
            measured.number(fidelity.name_of("resnet18", strength), "cosine", form=".1e"),
        ]
        for strength in STRENGTHS
    ]
    return [
        Picture("Cosine over the rounds", "orthogonality.png"),
        Table(["resnet18", "mean cosine over training"], cosines),
        *([f"Left out, as their cosines were lost: {'; '.join(lost)}."] if lost else []),
    ]


CAPTION = "Cosine of the task gradient and the watermark gradient over the rounds (ResNet-18)."
EXPERIMENT = Experiment("orthogonality", CAPTION, cells, show)
