"""Where to cut the network (the paper's table 6): ResNet-18, strength 0.1, 50 bits.

One row per cut, from the first residual stage to the last; the deeper the cut, the more the client holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from sigil_reproduction.runner.experiment import Claim, Experiment, Measured
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


def _embeds(cut: str) -> Claim:
    theirs = f"{paper.numbers()['ablation_split'][cut]['none'][1]:.1f} %"
    text = f"The mark embeds at every cut: {cut} (WSR ≥ 95 %)"
    return Claim(text, name_of(cut, "none"), lambda x: x >= 95, paper=theirs, opens=cut == CUTS[0])


def _deeper(text: str, column: str, holds: Callable[[float], bool], number: str = "wsr") -> Claim:
    """The deepest cut's number less the shallowest's."""
    deep, shallow = (name_of(cut, column) for cut in (CUTS[-1], CUTS[0]))
    return Claim(f"At the deepest cut {text}", deep, holds, number, instead_of=shallow, form="+.1f", unit="")


CLAIMS = [
    *map(_embeds, CUTS),
    _deeper("SplitOut counts fewer outliers", SPLITOUT, lambda x: x < 0, OUTLIERS),
    _deeper("noise of 1/100 harms the mark less", NOISE, lambda x: x > 0),
    _deeper("noise of 1/100 harms the task more", NOISE, lambda x: x < 0, "accuracy"),
    _deeper("pruning 80 % harms the mark less", "prune 80 %", lambda x: x > 0),
    *(
        Claim(
            f"The adaptive attack, {window}, leaves the mark at {cut} (WSR > 70 %)",
            name_of(cut, window),
            lambda wsr: wsr > 70,
        )
        for cut in CUTS
        for window in WINDOWS
    ),
]
CAPTION = "Fidelity, stealth and robustness of the mark at four cuts; the paper's numbers in brackets."
EXPERIMENT = Experiment("split-point", CAPTION, cells, show, ablations.measure, claims=CLAIMS)
