"""Differences from the paper that may be the reduced scale's: each checked once with one reduction undone.

Every check trains twice: as the scale has it, and with the one thing changed that is held responsible.

- *The four cuts*: a network of an eighth of the width gets an eighth of the bits.
- *256 bits*: a network of twice the width gets the bits that the narrow one cannot hold.
- *Noise*: a mark that has as many steps to be set as the paper's.
- *Many clients*: as many steps for each as few clients take.
- *The weakest mark*: both, an eighth of the bits and as many steps as the paper's.
- *The adaptive attack*: on an eighth of the bits.
- *Averaging*, the strongest attack: on 128 bits, and on twice as many in a network of twice the width.
- *All images*: the largest trainings of all. Every client has as many images and steps as the paper's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sigil.federation.run import Run
from sigil.federation.settings import Settings
from sigil.pages.tables import Entry, Number, Page, Table
from sigil_reproduction.beyond.proof import PLAIN
from sigil_reproduction.paper import table5_adaptive as adaptive
from sigil_reproduction.paper.table6_split_point import CUTS
from sigil_reproduction.paper.table12_clients import COUNTS
from sigil_reproduction.runner import published as paper
from sigil_reproduction.runner import stealth
from sigil_reproduction.runner.attacked import entries
from sigil_reproduction.runner.experiment import (
    Experiment,
    Finding,
    Measured,
    check_claim,
    difference,
    final_numbers,
)
from sigil_reproduction.runner.scales import PAPER_BITS, PerScale, Scale, Sections
from sigil_reproduction.runner.stealth import OUTLIERS
from sigil_reproduction.runner.store import Cell, Store

BITS = 256  # too many for ResNet-18 at an eighth of its width
NOISE = {"noise 1/10": 1 / 10, "noise 1/100": 1 / 100}
LENGTH, CLIENTS, WEAKEST, ATTACK = f"{BITS} bits", "many clients", "λ = 0.01", "R_wm 10"
ATTACKS = (ATTACK, adaptive.HARDER)
CLEAN, MARKED, NOISIEST = "clean", "λ = 0.1", "noise 1/100"
# Before the name of what is checked with them.
LARGER = "all images, "
FEW = LARGER + "few bits, "
SMALL, UNDONE = "as the scale", "undone"
# How reductions are undone: as many bits per channel as the paper's, a network of twice the width, all images
# with as many steps as the paper's, and as many steps for many clients as few take.
BITS_PER_CHANNEL = PerScale(PAPER_BITS, desk=12, cpu=6, smoke=6)
TWICE_THE_WIDTH: PerScale[Mapping[str, Any]] = PerScale({}, desk={"width": 32}, cpu={"width": 16})
MORE_ROUNDS: PerScale[Mapping[str, Any]] = PerScale({}, cpu={"rounds": 50})
ALL_IMAGES: PerScale[Sections] = PerScale(
    {}, cpu={"data": {"train_limit": None}, "federation": {"local_epochs": 2, "batch_size": 32}}
)


@dataclass(frozen=True)
class Check:
    """What is checked, and the training as at this scale beside the one in which a reduction is undone."""

    subject: str
    small: Settings
    undone: Settings
    group: str = ""

    @property
    def name(self) -> str:
        """The name of the check's row."""
        return self.group + self.subject


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Two cells per check."""
    return [
        Cell(
            experiment="scaling",
            name=f"{check.name} {variant}",
            seed=seed,
            trainings=(settings,),
            options={"check": check.name, "subject": check.subject, "variant": variant},
        )
        for seed in seeds
        for check in _checks(scale, seed)
        for variant, settings in ((SMALL, check.small), (UNDONE, check.undone))
    ]


def _checks(scale: Scale, seed: int) -> list[Check]:
    """Every check, in the order of the table."""
    clean, weak, mark = ({"strength": strength} for strength in (0.0, 0.01, 0.1))
    bits, steps, record = BITS_PER_CHANNEL.at(scale), scale.paper_steps, scale.recording
    fewest, few, many = {**weak, "bits": bits}, {**mark, "bits": bits}, {**mark, "bits": BITS}
    clients = {"clients": COUNTS.at(scale)[-2]}

    def small(watermark: Mapping[str, Any], cut: str = "layer3") -> Settings:
        return stealth.recorded(scale, seed, cut, watermark)

    def all_images(watermark: Mapping[str, Any], **sections: Mapping[str, Any]) -> Settings:
        return scale.settings(
            seed=seed, variation=False, watermark=watermark, **sections, **ALL_IMAGES.at(scale)
        )

    wider = scale.settings(seed=seed, watermark=many, record=record, model=TWICE_THE_WIDTH.at(scale))
    found = [Check(cut, small(mark, cut), small(few, cut)) for cut in CUTS]
    found.append(Check(LENGTH, small(many), wider))
    noisy = {
        name: scale.settings(seed=seed, variation=True, watermark=mark, behaviour={"noise_snr": ratio})
        for name, ratio in NOISE.items()
    }
    for name, ratio in NOISE.items():
        noise = {"noise_snr": ratio}
        longer = scale.settings(seed=seed, watermark=mark, behaviour=noise, federation=steps)
        found.append(Check(name, noisy[name], longer))
    found += [
        Check(
            CLIENTS,
            scale.settings(seed=seed, variation=True, watermark=mark, federation=clients),
            scale.settings(seed=seed, watermark=mark, federation={**clients, **MORE_ROUNDS.at(scale)}),
        ),
        Check(
            WEAKEST,
            small(weak),
            scale.settings(seed=seed, watermark=fewest, federation=steps, record=record),
        ),
        Check(ATTACK, small(mark), small(few)),
        Check(adaptive.HARDER, small({**mark, "bits": BITS // 2}), wider),
    ]
    for group, subject, before, after in (
        (LARGER, CLEAN, clean, clean),
        (LARGER, MARKED, mark, mark),
        (LARGER, WEAKEST, weak, weak),
        (FEW, MARKED, mark, few),
        (FEW, WEAKEST, weak, fewest),
        (LARGER, ATTACK, mark, mark),
        (FEW, ATTACK, mark, few),
    ):
        found.append(Check(subject, small(before), all_images(after, record=record), group))
    noise = {"noise_snr": NOISE[NOISIEST]}
    found.append(Check(NOISIEST, noisy[NOISIEST], all_images(mark, behaviour=noise), LARGER))
    return found


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Accuracy and the mark at the end, and SplitOut's outliers where gradients were recorded."""
    (run,) = runs
    if cell.options["subject"] in ATTACKS:
        return adaptive.after_attack(run, cell.options["subject"], store)
    numbers = final_numbers(cell, runs, store)
    if cell.trainings[0].record.clients:
        numbers[OUTLIERS] = stealth.outliers_per_batch(run, store)
    return numbers


def show(measured: Measured, folder: Path) -> Page:
    """One row per check: the paper's numbers, ours at this scale, and ours where the reduction is undone."""
    subjects = {cell.options["check"]: cell.options["subject"] for cell in measured.cells}
    published = _published()
    rows = [
        [
            check,
            [Number(value, name, ".4g") for name, value in published.get(subject, {}).items()],
            *(_place(measured, f"{check} {variant}", subject) for variant in (SMALL, UNDONE)),
        ]
        for check, subject in subjects.items()
    ]
    notes = (
        "λ = 0.1. *Outliers*: SplitOut's mean in 256 gradients. The four cuts: 50 bits, and as many bits "
        f"per channel as in the paper, so few that p can say little. *{BITS} bits*: a network of twice the "
        "width, where they are as 1,000 in the paper's. *Noise*: with the steps of `longer`. *Many "
        "clients*: as many steps for each client as ten of them take. *λ = 0.01*: the bits of the cuts "
        f"and the steps of `longer`. *{ATTACK}*: the adaptive attack on the trainings of layer3. "
        f"*{adaptive.HARDER}*: on 128 bits, and on the training of *{LENGTH}* in twice the width. *All "
        "images*: 50 bits, and a client has as many images and takes as many steps as the paper's; the "
        "width is still the scale's. *Few bits*: as many per channel as the paper's besides. Their "
        "recordings end at 512 MB, seven of ten rounds at the scale `cpu`; the attack takes the last two "
        "of those for late ones."
    )
    return [Table(["check", "the paper", SMALL, UNDONE], rows, notes=notes)]


def _place(measured: Measured, name: str, subject: str) -> list[Entry]:
    found = entries(measured, name, marked=subject != CLEAN)
    outliers = measured.values(name, OUTLIERS)
    return [*found, Number.over(outliers, "outliers")] if outliers else found


def _published() -> dict[str, dict[str, float]]:
    """The paper's numbers, by what is checked."""
    numbers = paper.numbers()

    def pair(numbers: Sequence[float]) -> dict[str, float]:
        return dict(zip(("acc", "WSR"), numbers, strict=True))

    def of_strength(strength: float) -> dict[str, float]:
        found = paper.fidelity("resnet18", strength) or {}
        return {short: found[name] for short, name in (("acc", "accuracy"), ("WSR", "wsr")) if name in found}

    rows = {cut: numbers["ablation_split"][cut] for cut in CUTS} | {
        LENGTH: numbers["ablation_length"]["1000"]
    }
    return {
        **{check: pair(row["none"]) | {"outliers": row["splitout"]} for check, row in rows.items()},
        NOISIEST: {"WSR": numbers["noise"]["points_given_in_text"]["wsr"]["0.1"]["1/100"]},
        CLIENTS: pair(numbers["clients"]["50"]["0.1"]),
        ATTACK: pair(numbers["adaptive"]["0.1"]["10"]),
        CLEAN: of_strength(0.0),
        MARKED: of_strength(0.1),
        WEAKEST: of_strength(0.01),
    }


def verdict(measured: Measured) -> list[Finding]:
    """Whether undoing a reduction brings the paper's shape back."""

    def numbers(number: str, *checks: str) -> dict[str, float | None]:
        return {check: measured.mean(f"{check} {UNDONE}", number) for check in checks}

    def with_all(*checks: str) -> list[str]:
        return [group + check for group in (LARGER, FEW) for check in checks]

    clean = measured.mean(f"{LARGER}{CLEAN} {UNDONE}", "accuracy")
    return [
        check_claim(
            "With the paper's number of bits per channel the mark embeds at every cut (WSR of at least 95 %)",
            numbers("wsr", *CUTS),
            lambda x: x >= 95,
        ),
        check_claim(
            "and SplitOut counts at most 25 outliers in 256", numbers(OUTLIERS, *CUTS), lambda x: x <= 25
        ),
        check_claim(
            f"Twice the width holds {BITS} bits (WSR of at least 95 %)",
            numbers("wsr", LENGTH),
            lambda x: x >= 95,
        ),
        check_claim(
            "With the paper's number of steps noise leaves the mark (WSR of at least 95 %)",
            numbers("wsr", *NOISE),
            lambda x: x >= 95,
        ),
        check_claim(
            "Many clients that take as many steps as few do carry the mark (95 %)",
            numbers("wsr", CLIENTS),
            lambda x: x >= 95,
        ),
        check_claim("λ = 0.01 embeds (WSR of at least 95 %)", numbers("wsr", WEAKEST), lambda x: x >= 95),
        check_claim(
            "The adaptive attack leaves λ = 0.1 above 70 %", numbers("wsr", ATTACK), lambda x: x > 70
        ),
        check_claim(
            f"{BITS} bits in twice the width are proof after {adaptive.HARDER} (log10 p)",
            numbers("log10_p", adaptive.HARDER),
            PLAIN.proves,
        ),
        check_claim(
            "With all images and the paper's number of steps marking costs at most 1 point of accuracy",
            {
                check: difference(marked, clean)
                for check, marked in numbers("accuracy", *with_all(MARKED, WEAKEST)).items()
            },
            lambda x: x >= -1,
            "+.1f",
        ),
        check_claim(
            "λ = 0.1 embeds (WSR of at least 95 %)", numbers("wsr", *with_all(MARKED)), lambda x: x >= 95
        ),
        check_claim(
            "The adaptive attack leaves it above 70 %", numbers("wsr", *with_all(ATTACK)), lambda x: x > 70
        ),
        check_claim("λ = 0.01 embeds (95 %)", numbers("wsr", *with_all(WEAKEST)), lambda x: x >= 95),
        check_claim(
            "Noise of 1/100 leaves λ = 0.1 (95 %)", numbers("wsr", LARGER + NOISIEST), lambda x: x >= 95
        ),
        check_claim(
            "SplitOut counts at most 25 outliers in 256",
            numbers(OUTLIERS, *with_all(MARKED, WEAKEST)),
            lambda x: x <= 25,
        ),
    ]


CAPTION = "Differences from the paper, as at this scale and with one reduction undone, or several."
EXPERIMENT = Experiment("scaling", CAPTION, cells, show, measure, verdict)
