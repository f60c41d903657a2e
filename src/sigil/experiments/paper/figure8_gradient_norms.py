"""Gradient composition (the paper's appendix C): norms of G_main and of the clipped G_wm over the rounds."""

from __future__ import annotations

from pathlib import Path

from sigil.experiments.lab.experiment import Experiment, Finding, Results, final_numbers, judge
from sigil.experiments.lab.scales import STRENGTHS
from sigil.experiments.lab.store import Cell
from sigil.experiments.pages import figures
from sigil.experiments.paper import figure4_orthogonality as orthogonality
from sigil.experiments.paper import table3_fidelity as fidelity


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
        axis.set_ylim(top=30 * axis.get_ylim()[1])  # room for the legend
        figures.legend(axis, {"loc": "upper right"})
    figures.save(figure, folder / "gradient-norms.png")
    return "![Norms over the rounds](gradient-norms.png)\n"


def verdict(cells: list[Cell], results: Results) -> list[Finding]:
    """What is sent of G_wm, as a share of G_main: falling at λ = 1, clipped to λ below."""
    first = min((cell.seed for cell in cells), default=0)
    shares: dict[float, list[float]] = {}
    for strength in STRENGTHS:
        result = results.get((fidelity.name_of("resnet18", strength), first))
        if result is not None:
            rows = result.numbers["curves"]
            norms = zip(rows["injection_injected_norm"], rows["injection_main_norm"], strict=True)
            shares[strength] = [sent / task for sent, task in norms if sent is not None and task]
    falls = {"last / first round": shares[1.0][-1] / shares[1.0][0]} if shares.get(1.0) else {"": None}
    largest = {
        figures.label(strength): max(shares[strength]) / strength if shares.get(strength) else None
        for strength in (0.01, 0.1)
    }
    return [
        judge(
            "At λ = 1 the mark's share of the gradient falls to less than a half",
            falls,
            lambda x: x < 0.5,
            ".2f",
        ),
        judge(
            "At weaker λ clipping holds it at λ (largest share over λ)", largest, lambda x: x <= 1.02, ".2f"
        ),
    ]


EXPERIMENT = Experiment(
    name="gradient-norms",
    caption="Norms of the task gradient and of the watermark gradient before and after clipping (ResNet-18).",
    cells=orthogonality.cells,
    measure=final_numbers,
    show=show,
    verdict=verdict,
)
