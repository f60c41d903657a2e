"""Where to cut the network (the paper's table 6): ResNet-18, strength 0.1, 50 bits.

One row per cut, from the first residual stage to the last; the deeper the cut, the more the client holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sigil import models
from sigil.federation.settings import Settings
from sigil.pages.tables import Page, Row, Table
from sigil_reproduction.paper import ablations
from sigil_reproduction.paper import figure6_splitout as splitout
from sigil_reproduction.paper import table5_adaptive as adaptive
from sigil_reproduction.paper.ablations import NOISE, REMOVAL, SPLITOUT, WINDOWS
from sigil_reproduction.runner import published as paper
from sigil_reproduction.runner.experiment import Experiment, Finding, Measured, check_claim, difference
from sigil_reproduction.runner.scales import Scale
from sigil_reproduction.runner.stealth import OUTLIERS
from sigil_reproduction.runner.store import Cell

CUTS = ("layer1", "layer2", "layer3", "layer4")
DEFAULT = models.default_cut("resnet18")
COLUMNS = ("none", SPLITOUT, NOISE, *REMOVAL, *WINDOWS)


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Every column at every cut; what another table measures too is that table's own cell."""
    known = {(cell.name, cell.seed): cell for cell in splitout.cells(scale, seeds)}
    known |= {(cell.name, cell.seed): cell for cell in adaptive.cells(scale, seeds)}
    return [
        known.get((name_of(cut, column), seed))
        or Cell(
            experiment="split-point",
            name=name_of(cut, column),
            seed=seed,
            trainings=(_settings(scale, seed, cut, column),),
            options={"cut": cut, "column": column},
        )
        for seed in seeds
        for cut in CUTS
        for column in COLUMNS
    ]


def name_of(cut: str, column: str) -> str:
    """Name of a cell: the cut and the attack, or what the other table calls it."""
    if column == SPLITOUT:
        return f"{cut} strength 0.1"
    return f"strength 0.1 {column}" if cut == DEFAULT and column in WINDOWS else f"{cut} {column}"


def _settings(scale: Scale, seed: int, cut: str, column: str) -> Settings:
    # The default is left out, so that other experiments' training is this one.
    place: dict[str, Any] = {} if cut == DEFAULT else {"model": {"cut": cut}}
    if column == NOISE:
        snr = {"noise_snr": 1 / 100}
        return scale.settings(seed=seed, variation=True, watermark={"strength": 0.1}, behaviour=snr, **place)
    return scale.settings(seed=seed, watermark={"strength": 0.1}, record=scale.recording, **place)


def show(measured: Measured, folder: Path) -> Page:
    """The table, ours with the paper's in brackets."""
    published = paper.numbers()["ablation_split"]
    rows: list[Row] = [
        [
            cut,
            *(ablations.place(measured, name_of(cut, column), column, published[cut]) for column in COLUMNS),
        ]
        for cut in CUTS
    ]
    return [Table(["cut", *COLUMNS], rows, notes=ablations.NOTE)]


def verdict(measured: Measured) -> list[Finding]:
    """The paper's claims on depth."""

    def numbers(column: str, number: str, cuts: Sequence[str] = CUTS) -> dict[str, float | None]:
        return {cut: measured.mean(name_of(cut, column), number) for cut in cuts}

    def steps(column: str, number: str) -> dict[str, float | None]:
        """The deepest cut's number less the shallowest's."""
        first, last = numbers(column, number, (CUTS[0], CUTS[-1])).values()
        return {f"{CUTS[-1]} less {CUTS[0]}": difference(last, first)}

    lowest: dict[str, float | None] = {}
    for cut in CUTS:
        rates = [measured.mean(name_of(cut, window), "wsr") for window in WINDOWS]
        known = [rate for rate in rates if rate is not None]
        lowest[cut] = min(known) if known else None
    return [
        check_claim(
            "The mark embeds at every cut (WSR of at least 95 %)", numbers("none", "wsr"), lambda x: x >= 95
        ),
        check_claim(
            "SplitOut counts fewer outliers at the deepest cut",
            steps(SPLITOUT, OUTLIERS),
            lambda x: x < 0,
            "+.2f",
        ),
        check_claim(
            "Noise of 1/100 harms the mark less at the deepest cut",
            steps(NOISE, "wsr"),
            lambda x: x > 0,
            "+.1f",
        ),
        check_claim(
            "Noise of 1/100 harms the task more there", steps(NOISE, "accuracy"), lambda x: x < 0, "+.1f"
        ),
        check_claim(
            "Pruning 80 % harms the mark less there", steps("prune 80 %", "wsr"), lambda x: x > 0, "+.1f"
        ),
        check_claim("The adaptive attack leaves every cut above 70 % (lowest WSR)", lowest, lambda x: x > 70),
    ]


CAPTION = "Fidelity, stealth and robustness of the mark at four cuts; the paper's numbers in brackets."
EXPERIMENT = Experiment("split-point", CAPTION, cells, show, ablations.measure, verdict)
