"""Robustness against noise in training (the paper's noise figure): ResNet-18, all clients add noise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sigil.experiments.lab.experiment import Experiment, Finding, Results, final_numbers, judge
from sigil.experiments.lab.scales import STRENGTHS, Scale
from sigil.experiments.lab.store import Cell
from sigil.experiments.pages import figures
from sigil.experiments.pages.tables import difference, markdown, mean, spread, values

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


def show(cells: list[Cell], results: Results, folder: Path) -> str:
    """Accuracy and WSR over the ratio, as a figure and as a table."""
    figure, (left, right) = figures.panels(2)
    places = range(len(RATIOS))
    lines = []
    for strength, colour in figures.COLOURS.items():
        line = [figures.label(strength)]
        series: dict[str, list[float | None]] = {"accuracy": [], "wsr": []}
        for ratio in RATIOS:
            found = {key: values(cells, results, _name(ratio, strength), key) for key in series}
            for key, numbers in found.items():
                series[key].append(sum(numbers) / len(numbers) if numbers else None)
            mark = f"<br>WSR {spread(found['wsr'])}" if strength else ""
            line.append(f"acc {spread(found['accuracy'])}{mark}")
        lines.append(line)
        style = {"color": colour, "label": figures.label(strength)}
        figures.curve(left, places, series["accuracy"], **style)
        figures.curve(right, places, series["wsr"], **style)
    for axis, title in ((left, "accuracy (%)"), (right, "WSR (%)")):
        axis.set_xticks(list(places), list(RATIOS))
        axis.set(title=title, xlabel="signal-to-noise ratio")
    figures.legend(left)
    figures.save(figure, folder / "noise.png")
    table = markdown(["", *RATIOS], lines)
    return f"![Accuracy and WSR over the signal-to-noise ratio](noise.png)\n\n{table}"


def verdict(cells: list[Cell], results: Results) -> list[Finding]:
    """Noise costs the task, and not the stronger marks."""

    def change(strength: float, number: str, ratio: str) -> float | None:
        before = mean(cells, results, _name("noise-free", strength), number)
        after = mean(cells, results, _name(ratio, strength), number)
        return difference(after, before)

    costs = {figures.label(strength): change(strength, "accuracy", "1/100") for strength in (0.0, *STRENGTHS)}
    return [
        judge(
            "Noise of 1/100 costs every model at least 10 points of accuracy",
            costs,
            lambda x: x <= -10,
            "+.1f",
        ),
        *(
            judge(
                f"Noise of 1/100 leaves the mark of λ = {strength:g} (WSR within 2 points)",
                {"change": change(strength, "wsr", "1/100")},
                lambda x: x >= -2,
                "+.1f",
            )
            for strength in (1.0, 0.1)
        ),
        judge(
            "Noise of 1/30 brings the mark of λ = 0.01 down by more than 20 points",
            {"change": change(0.01, "wsr", "1/30")},
            lambda x: x < -20,
            "+.1f",
        ),
    ]


EXPERIMENT = Experiment(
    name="noise",
    caption="Accuracy and WSR where every client adds Gaussian noise to the gradients that it receives.",
    cells=cells,
    measure=final_numbers,
    show=show,
    verdict=verdict,
)
