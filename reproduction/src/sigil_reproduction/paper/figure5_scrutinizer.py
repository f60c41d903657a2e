"""Stealth against Gradient Scrutinizer (the paper's figure 5): ResNet-18, recorded gradients.

The paper shows cut layer4, because at layer3 it found honest servers called attacks; here are both. FSHA,
and the honest server to compare it with, are watched live (see `splitguard`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from sigil.detectors import GradientScrutinizer
from sigil.federation.run import Run
from sigil.pages import figures
from sigil.pages.tables import Page, Picture, Table
from sigil_reproduction.runner import stealth, watched_live
from sigil_reproduction.runner.experiment import Claim, Experiment, Measured
from sigil_reproduction.runner.scales import Scale
from sigil_reproduction.runner.store import Cell, Store

NAME = stealth.PooledScrutinizer.name
# Names of the readings in a cell: the columns of the table.
PUBLISHED, SPARSE = "compat", "sparse"
READINGS = {
    NAME: "pooled",
    GradientScrutinizer.name: "batch by batch",
    PUBLISHED: "published overlap",
    SPARSE: "whole training",
}
SAID = "{suspicious:.0f} % of {scores}, mean {mean:.2f}"
NOTE_SPARSE = (
    "These three look at the first rounds, of which every batch was recorded. *Whole training* looks batch "
    "by batch at the share of all batches that was recorded, so its scores lie further apart. "
)
# The panels of the paper's figure.
SHOWN = (stealth.HONEST, "strength 0.1", "strength 1")


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Every recorded server, and the live trainings of the positive control."""
    own = [
        Cell(
            experiment="scrutinizer",
            name=f"{setting} {server}",
            seed=seed,
            trainings=(stealth.recorded(scale, seed, setting, stealth.watermark_of(scale, server)),),
            options={"setting": setting, "server": server},
        )
        for seed, setting, server in stealth.asked(scale, seeds)
    ]
    return own + watched_live.controls(scale, seeds)


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Replay the rounds recorded without a gap: as they are, pooled, and with the published overlap.

    The detector's score depends on how many batches it has seen, and a client sees every one. Where a share
    of the later batches was recorded, it also looks at that share of the whole training.
    """
    (run,) = runs
    dataset, recording = store.dataset(run.settings), stealth.recording_of(run)
    earlier = stealth.earlier_forms(store.scale)
    plain, pooled = stealth.scrutinizers(run.settings, dataset, inclusive=earlier)

    def like_plain(*, compat: bool) -> GradientScrutinizer:
        return GradientScrutinizer(every=plain.every, inclusive=earlier, compat=compat, client=stealth.CLIENT)

    found: dict[str, dict[str, Any]] = {}
    if recording.whole:
        found = {
            name: stealth.replayed(detector, run, store, whole=True)
            for name, detector in (
                (plain.name, plain),
                (pooled.name, pooled),
                (PUBLISHED, like_plain(compat=True)),
            )
        }
    if recording.share < 1:
        found[SPARSE] = stealth.replayed(like_plain(compat=False), run, store)
    for name in (PUBLISHED, SPARSE):
        found.get(name, {}).pop("curves", None)
    return found


def show(measured: Measured, folder: Path) -> Page:
    """The paper's figure for both cuts, and a table of all servers."""
    _draw(measured, folder / "scrutinizer.png")
    sparse = _sparse(measured)
    readings = {name: text for name, text in READINGS.items() if sparse or name != SPARSE}
    rows = [
        [
            cell.options.get("setting") or f"{cell.options['cut']}, live",
            stealth.label(cell.options["server"]),
            *(stealth.said(measured.first(cell.name), name, SAID) for name in readings),
        ]
        for cell in measured.of_first_seed
    ]
    return [
        Picture("Similarities and score over training", "scrutinizer.png"),
        Table(
            ["training", "server", *readings.values()],
            rows,
            names=2,
            notes="Each entry: the client's step of the first alarm, the share of scores below 0.5, the mean "
            f"score. *Pooled*: consecutive batches are taken together until they hold {stealth.BATCH} "
            "samples, as many as a batch of the paper; the figure shows this reading. *Published overlap*: "
            "the overlap is computed as in the detector's published code. "
            + (NOTE_SPARSE if sparse else "")
            + "Live trainings are those of [splitguard](../splitguard/), with fewer images. "
            + stealth.EARLIER_FORMS,
        ),
    ]


def _sparse(measured: Measured) -> bool:
    """Whether any training was recorded with gaps."""
    return any(SPARSE in numbers for cell in measured.cells for numbers in measured.every(cell.name))


def _draw(measured: Measured, path: Path) -> None:
    """One row per cut: similarities with an honest server and two strengths, and all scores."""
    there = [each for each in SHOWN if any(measured.first(f"{cut} {each}") for cut in stealth.CUTS)]
    columns = len(there) + 1
    figure, axes = figures.panels(columns * len(stealth.CUTS), columns=columns)
    for number, cut in enumerate(stealth.CUTS):
        *panels, scores = axes[columns * number : columns * (number + 1)]
        for axis, server in zip(panels, there, strict=True):
            axis.set(title=f"{cut}, {stealth.label(server)}", xlabel="step", ylim=(0, 1.05))
            numbers = measured.first(f"{cut} {server}")
            if numbers is not None and NAME in numbers:
                _bands(axis, numbers[NAME]["curves"])
        for first in panels[:1]:
            first.set_ylabel("similarity")
            figures.legend(first, {"loc": "lower left"})
        stealth.honest_band(scores, measured, cut, NAME)
        for server, numbers in watched_live.with_attackers(measured, cut):
            if NAME in numbers:
                rows = numbers[NAME]["curves"]
                figures.curve(scores, rows["scored_step"], rows["score"], **stealth.style(server))
        scores.axhline(0.5, color="0.5", linewidth=1, linestyle="--")
        scores.set(title=f"{cut}, score", xlabel="step", ylim=(-0.03, 1.03))
    figures.legend(axes[-1])
    figures.save(figure, path)


def _bands(axis: Axes, rows: dict[str, list[float]]) -> None:
    """Mean similarity with one standard deviation on both sides, of pairs with the same label and not."""
    for name, text, colour in (
        ("same", "same label", "#0072b2"),
        ("different", "different labels", "#e69f00"),
    ):
        pairs = list(zip(rows[name], rows[f"{name}_spread"], strict=True))
        axis.plot(rows["step"], rows[name], color=colour, linewidth=1.2, label=text)
        low, high = [mean - spread for mean, spread in pairs], [mean + spread for mean, spread in pairs]
        axis.fill_between(rows["step"], low, high, color=colour, alpha=0.18, linewidth=0)


def _claim(text: str, cell: str, holds: Callable[[float], bool], theirs: str = "", **options: Any) -> Claim:
    # Over batches taken together, and over a sample of the whole training where not all of it was recorded.
    number = f"{NAME}.suspicious|{SPARSE}.suspicious"
    return Claim(
        f"Gradient Scrutinizer at {text}", cell, holds, number, theirs, unit="% of scores", **options
    )


CLAIMS = [
    _claim(
        "layer4 never calls λ = 0.1 an attack", "layer4 strength 0.1", lambda x: x <= 0, "0 %", opens=True
    ),
    _claim("layer4 never calls an honest server an attack", "layer4 honest", lambda x: x <= 0, "0 %"),
    _claim("layer3 calls an honest server an attack", "layer3 honest", lambda x: x > 0, "yes", opens=True),
    *(
        _claim(
            f"layer4 calls {stealth.label(name)} an attack",
            watched_live.name_of("layer4", name),
            lambda x: x > 0,
        )
        for name in stealth.ATTACKERS
    ),
]
CAPTION = (
    "Gradient Scrutinizer at client 0: similarity of gradients with the same and with different labels, "
    "and the score, of honest, marked and hijacking servers (ResNet-18)."
)
EXPERIMENT = Experiment("scrutinizer", CAPTION, cells, show, measure, claims=CLAIMS)
