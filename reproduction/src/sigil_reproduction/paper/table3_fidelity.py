"""Fidelity, effectiveness and orthogonality (the paper's table 3).

Each cell: accuracy (%), WSR (%) and mean cosine of G_main and G_wm, of a clean model and of models marked
at three strengths, for four architectures on two data sets, ten clients, IID.

What a mark costs is the difference to the clean model of the same seed, with a t interval over the seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sigil.pages.tables import NOT_RUN, Entry, Number, Page, Row, Table, Words
from sigil_reproduction.runner import published as paper
from sigil_reproduction.runner.experiment import Claim, Experiment, Measured, final_numbers
from sigil_reproduction.runner.intervals import MARGIN, Interval, equivalence, paired
from sigil_reproduction.runner.scales import STRENGTHS, TASKS, Scale
from sigil_reproduction.runner.store import Cell

NAMES = {
    "resnet18": "ResNet-18",
    "vgg11": "VGG11",
    "mobilenetv2": "MobileNetV2",
    "densenet121": "DenseNet-121",
}


def name_of(model: str, strength: float) -> str:
    """Name of a cell: the architecture and the strength."""
    return f"{model} {'clean' if strength == 0 else f'strength {strength:g}'}"


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """All architectures, clean and at three strengths."""
    return [cell for model in TASKS for cell in model_cells(scale, seeds, model)]


def model_cells(scale: Scale, seeds: Sequence[int], model: str) -> list[Cell]:
    """One architecture, clean and at three strengths."""
    return [
        Cell(
            experiment="fidelity",
            name=name_of(model, strength),
            seed=seed,
            trainings=(scale.settings(model, seed=seed, watermark={"strength": strength}),),
            options={"model": model, "strength": strength},
        )
        for seed in seeds
        for strength in (0.0, *STRENGTHS)
    ]


def show(measured: Measured, folder: Path) -> Page:
    """The table, ours with the paper's in brackets."""

    def place(model: str, strength: float, *quantities: tuple[str, str, str]) -> list[Entry]:
        theirs = paper.fidelity(model, strength) or {}
        return [
            measured.number(name_of(model, strength), number, quantity, form, paper=theirs.get(number))
            for number, quantity, form in quantities
        ]

    marked = (("accuracy", "acc", ".1f"), ("wsr", "WSR", ".1f"), ("cosine", "cos", ".1e"))
    rows: list[Row] = [
        [
            f"{model} / {measured.data(name_of(model, 0.0))}",
            place(model, 0.0, ("accuracy", "", ".1f")),
            *(place(model, strength, *marked) for strength in STRENGTHS),
        ]
        for model in TASKS
    ]
    strengths = [f"λ = {strength:g}" for strength in STRENGTHS]
    costs: list[Row] = [
        [model, *(_words(cost(measured, model, strength)) for strength in STRENGTHS)] for model in TASKS
    ]
    return [
        Table(["task", "clean", *strengths], rows),
        Table(
            ["points of accuracy gained by marking", *strengths],
            costs,
            notes="The mean difference to the clean model of the same seed, with its 95 % interval by "
            f"Student's t, and the p-value of two one-sided tests that it is less than {MARGIN:g} point "
            "either way: at most 0.05 shows that accuracy is the same. One seed shows nothing.",
        ),
    ]


def cost(measured: Measured, model: str, strength: float) -> Interval | None:
    """How much accuracy marking gains (or loses), paired by seed."""
    marked, clean = (measured.by_seed(name_of(model, each), "accuracy") for each in (strength, 0.0))
    return paired(marked, clean)


def _words(found: Interval | None) -> Words | Number:
    if found is None:
        return NOT_RUN
    p = equivalence(found)
    return Words(found.text("+.1f") + ("" if p is None else f", same within {MARGIN:g}: p = {p:.2g}"))


def _claims(model: str, strength: float) -> list[Claim]:
    """The paper's three: fidelity, effectiveness, orthogonality."""
    cell, name = name_of(model, strength), NAMES[model]
    theirs, clean = (paper.fidelity(model, each) or {} for each in (strength, 0.0))
    mark = f"λ = {strength:g}" if model == "resnet18" else f"λ = {strength:g}, {name}"
    return [
        Claim(
            f"Marking at λ = {strength:g} leaves accuracy as it is, {name} (within {MARGIN:g} point)",
            cell,
            number="accuracy",
            paper=f"{theirs['accuracy'] - clean['accuracy']:+.1f}",
            instead_of=name_of(model, 0.0),
            form="+.1f",
            unit="points",
            opens=strength == 0.1 and model in ("resnet18", "vgg11"),
        ),
        Claim(
            f"The mark embeds at {mark} (WSR ≥ 95 %)",
            cell,
            lambda wsr: wsr >= 95,
            paper=f"{theirs['wsr']:.1f} %",
            opens=model == "resnet18",
        ),
        Claim(
            f"Watermark and task gradient are orthogonal at {mark} (cosine within ±0.01)",
            cell,
            lambda cosine: abs(cosine) < 0.01,
            "cosine",
            f"{theirs['cosine']:.0e}",
            form=".0e",
            unit="",
            opens=strength == 0.1 and model == "resnet18",
        ),
    ]


CAPTION = "Accuracy, WSR and cosine of clean and marked models; the paper's numbers in brackets."
CLAIMS = [
    claim
    for claims in zip(*(_claims(model, each) for model in TASKS for each in reversed(STRENGTHS)), strict=True)
    for claim in claims
]
EXPERIMENT = Experiment("fidelity", CAPTION, cells, show, final_numbers, claims=CLAIMS)
