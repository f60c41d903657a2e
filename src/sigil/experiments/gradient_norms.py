"""Gradient composition (the paper's appendix C): norms of G_main and of the clipped G_wm over the rounds."""

from __future__ import annotations

from pathlib import Path

from sigil.experiments import fidelity, figures, orthogonality
from sigil.experiments.experiment import Experiment, Results, final_numbers
from sigil.experiments.scales import STRENGTHS
from sigil.experiments.store import Cell


def show(cells: list[Cell], results: Results, folder: Path) -> str:
    """One panel a strength."""
    figure, axes = figures.panels(len(STRENGTHS))
    first = min((cell.seed for cell in cells), default=0)
    for axis, strength in zip(axes, STRENGTHS, strict=True):
        result = results.get((fidelity.name_of("resnet18", strength), first))
        if result is not None:
            rows = result.numbers["curves"]
            series = {
                "‖G_main‖": ("injection_main_norm", "#000000"),
                "‖G_wm‖ before clipping": ("injection_watermark_norm", "#999999"),
                "‖G_wm‖ as sent": ("injection_injected_norm", figures.COLOURS[strength]),
            }
            for name, (number, colour) in series.items():
                figures.curve(axis, rows["round"], rows[number], color=colour, label=name)
        axis.set(title=figures.label(strength), xlabel="round", ylabel="norm (batch mean)", yscale="log")
        axis.margins(y=0.45)  # room for the legend
        figures.legend(axis, {"loc": "upper right"})
    figures.save(figure, folder / "gradient-norms.png")
    return "![Norms over the rounds](gradient-norms.png)\n"


EXPERIMENT = Experiment(
    name="gradient-norms",
    caption="Norms of the task gradient and of the watermark gradient before and after clipping (ResNet-18).",
    cells=orthogonality.cells,
    measure=final_numbers,
    show=show,
)
