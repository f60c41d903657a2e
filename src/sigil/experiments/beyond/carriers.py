"""Carriers that do not stand out: what is left of marks with other carriers after attacks that cost little.

This is not in the paper. Reading finds the product's mark because natural mean maps are smoother than random
carriers. Here carriers are channel-wise, shaped like the activations themselves, relative to a running
centre, or half of them gated; each was embedded as shares, and every attack is a point of a curve: log10 p on
test images over the accuracy that the attack costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sigil.attacks.training import Tuning
from sigil.experiments.beyond.carriers_attacks import AIMED, ATTACKS, Thief
from sigil.experiments.beyond.carriers_mark import Kind, Mark, trainer
from sigil.experiments.lab.attacked import attackers_share
from sigil.experiments.lab.experiment import Experiment, Finding, Measured, check_claim
from sigil.experiments.lab.scales import PerScale, Scale, get
from sigil.experiments.lab.store import Cell, Store
from sigil.experiments.pages import figures
from sigil.experiments.pages.tables import NOT_RUN, Entry, Number, Page, Picture, Row, Table
from sigil.federation.evaluation import accuracy
from sigil.federation.from_settings import cut_shape
from sigil.federation.precision import choose
from sigil.federation.recording import Recording
from sigil.federation.run import Run, train
from sigil.federation.settings import Settings, make
from sigil.keys.length import ALPHA, STAMPED_ALLOWANCE_LOG2, TESTS

BITS = PerScale(512, desk=256, cpu=128, smoke=32)
WAITS = PerScale(3, smoke=1)
EPOCHS = PerScale(4, smoke=1)
RECORDED = PerScale(0.05, cpu=0.25, smoke=1.0)
TEST_IMAGES = PerScale[int | None](None, cpu=4_000)
# What a reading of a stamped key must reach before its allowances to be proof at 3e-7.
PROOF = math.log10(ALPHA) - math.log10(TESTS) - STAMPED_ALLOWANCE_LOG2 * math.log10(2)
AFFORDABLE = 2.0

WORDS = {
    "random": "random, as in the product",
    "channel-wise": "channel-wise, 128 channels",
    "covariance": "covariance of the activations, centre before the first injection",
    "covariance, running centre": "covariance, targets relative to a running centre",
    "half gated": "random, half of the bits gated",
}


def kinds(scale: Scale) -> dict[str, Kind]:
    """The marks that are compared."""
    bits, waits = BITS.at(scale), WAITS.at(scale)
    return {
        "random": Kind(bits=bits),
        "channel-wise": Kind("channels", bits=bits // 2),
        "covariance": Kind("covariance", "before", bits=bits, waits=waits),
        "covariance, running centre": Kind("covariance", "running", bits=bits, waits=waits),
        "half gated": Kind(gated=0.5, bits=bits),
    }


def settings_of(scale: Scale, name: str, seed: int) -> Settings:
    """An unmarked training, in which another server embeds the mark; client 0 is recorded."""
    sections: dict[str, Mapping[str, Any]] = {
        "watermark": {"strength": 0.0},
        "record": {"clients": [0], "share": RECORDED.at(scale)},
        "data": {"test_limit": TEST_IMAGES.at(scale)} if TEST_IMAGES.at(scale) else {},
        **(scale.wide if name == "channel-wise" else {}),
    }
    return scale.settings(seed=seed, **sections)


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Every attack on the models of every kind; the trainings of a seed come first."""
    return [
        Cell(
            "carriers",
            f"{name} {attack}",
            seed,
            (),
            {
                "carriers": name,
                "attack": attack,
                "mark": asdict(kind),
                "settings": settings_of(scale, name, seed).model_dump(mode="json", exclude_defaults=True),
            },
        )
        for seed in seeds
        for attack in ATTACKS
        for name, kind in kinds(scale).items()
    ]


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Train with the mark unless that is done, attack, and measure accuracy and the mark."""
    settings, kind = make(cell.options["settings"]), Kind(**cell.options["mark"])
    dataset, precision = store.dataset(settings), choose(settings.run.device, settings.run.precision)
    shape = cut_shape(settings, store.data_dir)
    mark = Mark(kind, shape, clients=settings.federation.clients, seed=settings.run.seed)
    folder = store.runs / f"carriers {cell.options['carriers']} seed {cell.seed}"
    carriers = folder / "carriers.safetensors"
    run = train(
        settings, folder, data_dir=store.data_dir, wait=True, trainer=trainer(mark, carriers)
    )
    if carriers.exists():
        mark.load(carriers)
    tuning = Tuning(epochs=EPOCHS.at(get(store.scale)), seed=cell.seed, precision=precision)
    thief = Thief(
        run.halves(),
        attackers_share(dataset, settings),
        Recording(folder / "recording"),
        tuning,
        kind,
    )
    client, server = ATTACKS[cell.options["attack"]](thief)
    return {
        "accuracy": 100 * accuracy(client, server, dataset, precision=precision),
        **mark.read(client, dataset, seed=cell.seed),
        "machine": precision.describe(),
    }


def lost(measured: Measured, name: str, attack: str) -> dict[int, tuple[float, float]]:
    """By seed: points of accuracy that the attack costs, and log10 p afterwards."""
    found = {}
    for seed in sorted({cell.seed for cell in measured.cells}):
        before, after = (measured.results.get((f"{name} {each}", seed)) for each in ("none", attack))
        if before is not None and after is not None:
            cost = before.numbers["accuracy"] - after.numbers["accuracy"]
            found[seed] = (cost, float(after.numbers["log10_p_inputs"]))
    return found


def show(measured: Measured, folder: Path) -> Page:
    """The curves, one table of all attacks, and what was tried and failed."""
    names = list(dict.fromkeys(str(cell.options["carriers"]) for cell in measured.cells))
    figure, axes = figures.panels(len(names), columns=3)
    for axis, name in zip(axes, names, strict=True):
        for aimed, colour in ((False, figures.SERIES[0]), (True, figures.SERIES[1])):
            points = [
                point
                for attack in ATTACKS
                if (attack in AIMED) == aimed
                for point in lost(measured, name, attack).values()
            ]
            if points:
                axis.scatter(*zip(*points, strict=True), s=14, color=colour)
        axis.axhline(PROOF, color="#000000", linewidth=0.8, linestyle="--")
        axis.axvline(AFFORDABLE, color="#000000", linewidth=0.8, linestyle=":")
        axis.set_title(WORDS[name], fontsize=8)
        axis.set_xlabel("accuracy lost, points")
        axis.set_ylabel("log10 p on images")
    figures.save(figure, folder / "curves.png")
    rows: list[Row] = [
        [attack, *([_place(measured, name, attack)] for name in names)] for attack in ATTACKS
    ]
    flat: list[Row] = [[row[0], *(place[0] for place in row[1:])] for row in rows]  # type: ignore[index]
    return [
        Picture(
            "log10 p on images over the accuracy that an attack costs: green the product's attacks, orange "
            "those aimed at the carriers; dashed what a stamped key needs, dotted two points of accuracy",
            "curves.png",
        ),
        Table(
            ["attack", *(WORDS[name] for name in names)],
            flat,
            notes=(
                "Accuracy (%), WSR on 256 test images (%) and log10 p, the largest of the seeds, before any "
                f"allowance; a stamped key needs {PROOF:.1f}. The numbers behind an attack's name are its "
                "weight."
            ),
        ),
        Table(
            ["carriers", "seeds", "embeds", "cheapest removal", "proof after all attacks of two points"],
            [_summary(measured, name) for name in names],
            caption="## What was tried, and what removed it",
        ),
    ]


def _place(measured: Measured, name: str, attack: str) -> list[Entry]:
    cell = f"{name} {attack}"
    exponents = measured.values(cell, "log10_p_inputs")
    if not exponents:
        return [NOT_RUN]
    return [
        measured.number(cell, "accuracy", "acc"),
        measured.number(cell, "wsr_inputs", "WSR"),
        Number(max(exponents), "log10 p"),
    ]


def removal(measured: Measured, name: str) -> tuple[str, float] | None:
    """The attack that removes the proof at the smallest cost in any seed, and that cost."""
    found = [
        (cost, attack)
        for attack in ATTACKS
        for cost, exponent in lost(measured, name, attack).values()
        if attack != "none" and exponent > PROOF
    ]
    return None if not found else (min(found)[1], min(found)[0])


def _summary(measured: Measured, name: str) -> Row:
    start = measured.values(f"{name} none", "log10_p_inputs")
    if not start:
        return [WORDS[name], NOT_RUN, NOT_RUN, NOT_RUN, NOT_RUN]
    embeds = f"log10 p {max(start):.1f}, " + ("yes" if max(start) <= PROOF else "**no**")
    cheapest = removal(measured, name)
    if cheapest is None:
        return [WORDS[name], str(len(start)), embeds, "none of these attacks", "yes"]
    attack, cost = cheapest
    holds = cost > AFFORDABLE and max(start) <= PROOF
    return [WORDS[name], str(len(start)), embeds, f"{attack}: {cost:+.1f} points", "yes" if holds else "**no**"]


def verdict(measured: Measured) -> list[Finding]:
    """The rule for a new default: proof after every attack of at most two points."""
    names = dict.fromkeys(str(cell.options["carriers"]) for cell in measured.cells)
    return [
        check_claim(
            f"{WORDS[name]}: proof with a stamped key after every attack that costs at most two points "
            "(largest log10 p)",
            {
                attack: max(affordable)
                for attack in ATTACKS
                if (affordable := [p for cost, p in lost(measured, name, attack).values() if cost <= AFFORDABLE])
            },
            lambda x: x <= PROOF,
        )
        for name in names
    ]


CAPTION = (
    "Marks with carriers that were meant not to stand out, after the product's attacks and after attacks that "
    "are aimed at them: what a thief must pay to remove each (ResNet-18)."
)
EXPERIMENT = Experiment("carriers", CAPTION, cells, show, measure, verdict)
