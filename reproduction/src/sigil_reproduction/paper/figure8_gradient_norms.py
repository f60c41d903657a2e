"""Gradient composition (the paper's figure 8, appendix C): norms of G_main and of G_wm, clipped and not."""

from __future__ import annotations

from pathlib import Path

from sigil.pages import figures
from sigil.pages.tables import Page, Picture
from sigil_reproduction.paper import figure4_orthogonality as orthogonality
from sigil_reproduction.paper import table3_fidelity as fidelity
from sigil_reproduction.runner.experiment import Experiment, Finding, Measured, check_claim
from sigil_reproduction.runner.scales import STRENGTHS


def show(measured: Measured, folder: Path) -> Page:
    """One panel per strength."""
    found = {each: measured.first(fidelity.name_of("resnet18", each)) for each in STRENGTHS}
    there = {strength: numbers["curves"] for strength, numbers in found.items() if numbers is not None}
    figure, axes = figures.panels(len(there))
    for axis, (strength, rows) in zip(axes, there.items(), strict=True):
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
    return [Picture("Norms over the rounds", "gradient-norms.png")]


def verdict(measured: Measured) -> list[Finding]:
    """What is sent of G_wm, as a share of G_main: falling at λ = 1, clipped to λ below."""
    shares: dict[float, list[float]] = {}
    for strength in STRENGTHS:
        numbers = measured.first(fidelity.name_of("resnet18", strength))
        if numbers is not None:
            rows = numbers["curves"]
            norms = zip(rows["injection_injected_norm"], rows["injection_main_norm"], strict=True)
            shares[strength] = [sent / task for sent, task in norms if sent is not None and task]
    falls = {"last / first round": shares[1.0][-1] / shares[1.0][0]} if shares.get(1.0) else {"": None}
    largest = {
        figures.label(strength): max(shares[strength]) / strength if shares.get(strength) else None
        for strength in (0.01, 0.1)
    }
    return [
        check_claim(
            "At λ = 1 the mark's share of the gradient falls to less than a half",
            falls,
            lambda x: x < 0.5,
            ".2f",
        ),
        check_claim(
            "At weaker λ clipping holds it at λ (largest share over λ)", largest, lambda x: x <= 1.02, ".2f"
        ),
    ]


CAPTION = "Norms of the task gradient and of the watermark gradient before and after clipping (ResNet-18)."
EXPERIMENT = Experiment("gradient-norms", CAPTION, orthogonality.cells, show, verdict=verdict)
