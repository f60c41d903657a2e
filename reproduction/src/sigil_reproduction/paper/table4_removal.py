"""Robustness against post-training removal (the paper's table 4): ResNet-18.

Each cell: accuracy (%) and WSR (%) of a model after an attack. Columns: a clean model, the two baselines, and
Sigil at three strengths. The attacker is client 0, and fine-tunes on its own share of the data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sigil import attacks
from sigil.attacks.halves import Halves
from sigil.data import Dataset
from sigil.federation.run import Run
from sigil.federation.settings import Settings
from sigil.pages.tables import Page, Row, Table
from sigil_reproduction.runner import published as paper
from sigil_reproduction.runner.attacked import LARGEST, attackers_share, entries, marks
from sigil_reproduction.runner.experiment import Claim, Experiment, Measured
from sigil_reproduction.runner.scales import PerScale, Scale
from sigil_reproduction.runner.store import Cell, Store

# Name of the target: the settings that make it, and its column in the paper's data.
TARGETS: dict[str, tuple[dict[str, Any], str]] = {
    "clean": ({"watermark": {"strength": 0.0}}, "clean_acc"),
    "BDWM": ({"watermark": {"strength": 0.0}, "behaviour": {"mark": "backdoor"}}, "bdwm"),
    "PWM": ({"watermark": {"strength": 0.0}, "behaviour": {"mark": "parameter"}}, "pwm"),
    "λ = 1": ({"watermark": {"strength": 1.0}}, "1.0"),
    "λ = 0.1": ({"watermark": {"strength": 0.1}}, "0.1"),
    "λ = 0.01": ({"watermark": {"strength": 0.01}}, "0.01"),
}
Attack = Callable[[Halves, Dataset, Settings, str], Halves]
# Of the steps that fine-tuning is named after; at `smoke` it only has to run.
SHARE = PerScale(1.0, smoke=0.02)


def _finetune(steps: int) -> Attack:
    def attack(model: Halves, own: Dataset, settings: Settings, scale: str) -> Halves:
        return attacks.finetune(
            model,
            own,
            steps=round(steps * SHARE.at(scale)),
            batch_size=settings.federation.batch_size,
            seed=settings.run.seed,
        )

    return attack


# Name of the attack: the attack, and what names its row in the paper's data.
ATTACKS: dict[str, tuple[Attack, dict[str, Any]]] = {
    "none": (lambda model, *_: model, {"attack": "none"}),
    "finetune 50": (_finetune(50), {"attack": "finetune", "steps": 50}),
    "finetune 100": (_finetune(100), {"attack": "finetune", "steps": 100}),
    "prune 60 %": (lambda model, *_: attacks.prune(model, 0.6), {"attack": "prune", "ratio": 0.6}),
    "prune 80 %": (lambda model, *_: attacks.prune(model, 0.8), {"attack": "prune", "ratio": 0.8}),
    "FP16": (lambda model, *_: attacks.quantize(model, "fp16"), {"attack": "quantize", "format": "fp16"}),
    "INT8": (lambda model, *_: attacks.quantize(model, "int8"), {"attack": "quantize", "format": "int8"}),
    "INT4": (lambda model, *_: attacks.quantize(model, "int4"), {"attack": "quantize", "format": "int4"}),
}


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Every attack on every target."""
    return [
        Cell(
            experiment="removal",
            name=f"{target} {attack}",
            seed=seed,
            trainings=(scale.settings(seed=seed, **changes),),
            options={"target": target, "attack": attack},
        )
        for seed in seeds
        for target, (changes, _) in TARGETS.items()
        for attack in ATTACKS
    ]


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Attack both halves of the trained model, then measure accuracy and the target's own mark."""
    (run,) = runs
    settings, dataset = run.settings, store.dataset(run.settings)
    attack, _ = ATTACKS[cell.options["attack"]]
    attacked = attack(run.halves(), attackers_share(dataset, settings), settings, store.scale)
    return marks(attacked, run, store)


def show(measured: Measured, folder: Path) -> Page:
    """The table, ours with the paper's in brackets; for Sigil also the p-value."""
    rows: list[Row] = [
        [
            attack,
            *(
                entries(measured, f"{target} {attack}", _published(row, column), marked=target != "clean")
                for target, (_, column) in TARGETS.items()
            ),
        ]
        for attack, (_, row) in ATTACKS.items()
    ]
    return [Table(["attack", *TARGETS], rows, notes=LARGEST)]


def _published(row: dict[str, Any], column: str) -> tuple[float | None, float | None]:
    for entry in paper.numbers()["removal"]:
        if all(entry.get(name) == value for name, value in row.items()):
            if column == "clean_acc":
                return entry["clean_acc"], None
            accuracy, wsr = entry[column] if column in entry else entry["sigil"][column]
            return accuracy, wsr
    return None, None


CAPTION = "Accuracy and WSR after fine-tuning, pruning and quantization; the paper's numbers in brackets."
PRUNED = "prune 80 %"


def _left(words: str, attack: str, limit: float) -> list[Claim]:
    """What an attack leaves of Sigil's marks."""
    return [
        Claim(
            f"{words} leaves the mark of {target} (WSR ≥ {limit:g} %)",
            f"{target} {attack}",
            lambda wsr: wsr >= limit,
            paper=f"{_published(ATTACKS[attack][1], column)[1]:.1f} %",
            opens=target == "λ = 0.1",
        )
        for target, (_, column) in TARGETS.items()
        if target.startswith("λ")
    ]


CLAIMS = [
    *_left("Fine-tuning (100 steps)", "finetune 100", 95),
    *_left("INT4", "INT4", 95),
    *_left("Pruning 80 %", PRUNED, 70),
    *(
        Claim(
            f"Pruning 80 % destroys accuracy, {each} (below 20 %)",
            f"{each} {PRUNED}",
            lambda x: x < 20,
            "accuracy",
        )
        for each in TARGETS
    ),
    Claim("Pruning 80 % removes the backdoor (WSR below 20 %)", f"BDWM {PRUNED}", lambda x: x < 20),
    *(
        Claim(f"The parameter mark survives {each} (WSR ≥ 98 %)", f"PWM {each}", lambda x: x >= 98)
        for each in ATTACKS
    ),
]
EXPERIMENT = Experiment("removal", CAPTION, cells, show, measure, claims=CLAIMS)
