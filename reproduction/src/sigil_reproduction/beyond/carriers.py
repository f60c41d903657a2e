"""Carriers that do not stand out: what is left of marks with other carriers after attacks that cost little.

This is not in the paper. Reading finds the product's mark because natural mean maps are smoother than random
carriers. Here carriers are channel-wise, shaped like the activations themselves, relative to a running
centre, or half of them gated; each was embedded as shares, and every attack is a point of a curve: log10 p on
test images over the accuracy that the attack costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sigil.attacks.training import Tuning
from sigil.federation.from_settings import cut_shape
from sigil.federation.measuring import accuracy
from sigil.federation.precision import choose
from sigil.federation.run import Run, train
from sigil.federation.settings import Settings
from sigil.models.spec import default_cut
from sigil.pages import figures
from sigil.pages.tables import NOT_RUN, Entry, Number, Page, Picture, Place, Row, Table
from sigil.rules import STAMPED_ALLOWANCE_LOG2, Price
from sigil_reproduction.beyond.carriers_attacks import AIMED, ATTACKS, Thief
from sigil_reproduction.beyond.carriers_mark import Kind, Mark, trainer
from sigil_reproduction.beyond.curves import GENTLE_RATE
from sigil_reproduction.runner.attacked import attackers_share
from sigil_reproduction.runner.experiment import Experiment, Finding, Measured, check_claim
from sigil_reproduction.runner.scales import PerScale, Scale
from sigil_reproduction.runner.store import Cell, Store

BITS = PerScale(512, desk=256, cpu=128, smoke=32)
# Where networks have learned: do more bits hold where these do not?
MORE_BITS = PerScale(0, desk=512)
WAITS = PerScale(3, smoke=1)
EPOCHS = PerScale(4, smoke=1)
RECORDED = PerScale(0.05, cpu=0.5, smoke=1.0)
# Where networks have learned, fine-tuning at the usual rate costs more than two points by itself.
RATE = PerScale(Tuning.lr, desk=GENTLE_RATE)
# VGG11 takes a third of ResNet-18's time, and half of the scale's rounds are enough to learn most of what it
# can. Cut at its third stage it has as many channels and positions there.
MODEL = PerScale("resnet18", desk="vgg11")
# The tasks of each scale, and what differs from the scale's other trainings: every kind of carriers needs a
# training of its own.
TASKS: PerScale[Mapping[str, Mapping[str, Mapping[str, Any]]]] = PerScale(
    {"cifar10": {}},
    desk={
        "cifar10": {
            "model": {"cut": "stage3"},
            "federation": {"rounds": 10},
            "optimizer": {"warmup_rounds": 1},
        }
    },
    cpu={
        "digits": {
            "model": {"width": 16, "cut": "layer2"},
            "data": {"name": "digits", "train_limit": None},
            "federation": {"rounds": 8, "local_epochs": 2},
            "run": {"evaluate_every": 8},
        },
        "cifar10": {
            "data": {"train_limit": 5_000, "test_limit": 2_000},
            "federation": {"batch_size": 32},
            "run": {"evaluate_every": 10},
        },
    },
    smoke={"digits": {"data": {"test_limit": None}}},
)
# Channel-wise carriers need channels: 128 of them.
WIDE: PerScale[Mapping[str, Mapping[str, Any]]] = PerScale(
    {"cifar10": {"cut": "layer4"}},
    desk={"cifar10": {"cut": "stage4"}},
    cpu={"digits": {"width": 32, "cut": "layer3"}, "cifar10": {"width": 16, "cut": "layer4"}},
    smoke={"digits": {}},
)
# What a reading of a stamped key must reach before its allowances to be proof at 3e-7.
PROOF = Price(STAMPED_ALLOWANCE_LOG2).log10_level()
AFFORDABLE = 2.0

WORDS = {
    "random": "random, as in the product",
    "channel-wise": "channel-wise, 128 channels",
    "covariance": "covariance of the activations, centre before the first injection",
    "covariance, running centre": "covariance, targets relative to a running centre",
    "half gated": "random, half of the bits gated",
    "more bits": "random, twice as many bits",
}


def kinds(scale: Scale) -> dict[str, Kind]:
    """The marks that are compared."""
    bits, waits, more = BITS.at(scale), WAITS.at(scale), MORE_BITS.at(scale)
    found = {
        "random": Kind(bits=bits),
        "channel-wise": Kind("channels", bits=bits // 2),
        "covariance": Kind("covariance", "before", bits=bits, waits=waits),
        "covariance, running centre": Kind("covariance", "running", bits=bits, waits=waits),
        "half gated": Kind(gated=0.5, bits=bits),
    }
    return found | ({"more bits": Kind(bits=more)} if more else {})


def settings_of(scale: Scale, task: str, name: str, seed: int) -> Settings:
    """An unmarked training, in which another server embeds the mark; client 0 is recorded."""
    sections = {section: dict(values) for section, values in TASKS.at(scale)[task].items()}
    sections["watermark"] = {"strength": 0.0}
    sections["record"] = {"clients": [0], "share": RECORDED.at(scale)}
    if name == "channel-wise":
        sections["model"] = {**sections.get("model", {}), **WIDE.at(scale)[task]}
    return scale.settings(MODEL.at(scale), seed=seed, variation=False, **sections)


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Every attack on the models of every kind; the trainings of a seed come first."""
    return [
        Cell(
            "carriers",
            name_of(task, name, attack),
            seed,
            (),
            {
                "task": task,
                "carriers": name,
                "attack": attack,
                "mark": asdict(kind),
            },
            live=settings_of(scale, task, name, seed),
        )
        for task in TASKS.at(scale)
        for seed in seeds
        for attack in ATTACKS
        for name, kind in kinds(scale).items()
    ]


def name_of(task: str, name: str, attack: str) -> str:
    """Name of a cell."""
    return f"{task} {name} {attack}"


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Train with the mark unless that is done, attack, and measure accuracy and the mark."""
    settings, kind = cell.live, Kind(**cell.options["mark"])
    assert settings is not None
    dataset, precision = store.dataset(settings), choose(settings.run.device, settings.run.precision)
    shape = cut_shape(settings, store.data_dir)
    mark = Mark(kind, shape, clients=settings.federation.clients, seed=settings.run.seed)
    folder = store.runs / f"carriers {cell.options['task']} {cell.options['carriers']} seed {cell.seed}"
    carriers = folder / "carriers.safetensors"
    run = train(settings, folder, data_dir=store.data_dir, wait=True, trainer=trainer(mark, carriers))
    if carriers.exists():
        mark.load(carriers)
    tuning = Tuning(
        lr=RATE.at(store.scale), epochs=EPOCHS.at(store.scale), seed=cell.seed, precision=precision
    )
    thief = Thief(
        run.halves(),
        attackers_share(dataset, settings),
        folder,
        tuning,
        kind,
    )
    client, server = ATTACKS[cell.options["attack"]](thief)
    return {
        "accuracy": 100 * accuracy(client, server, dataset, precision=precision),
        **mark.read(client, dataset, seed=cell.seed),
        "machine": precision.describe(),
    }


Points = dict[int, tuple[float, float]]


def lost(measured: Measured, task: str, name: str, attack: str) -> Points:
    """By seed: points of accuracy that the attack costs, and log10 p afterwards."""
    found = {}
    for seed in sorted({cell.seed for cell in measured.cells}):
        before, after = (measured.results.get((name_of(task, name, each), seed)) for each in ("none", attack))
        if before is not None and after is not None:
            cost = before.numbers["accuracy"] - after.numbers["accuracy"]
            found[seed] = (cost, float(after.numbers["log10_p_inputs"]))
    return found


def _distinct(measured: Measured, option: str) -> list[str]:
    return list(dict.fromkeys(str(cell.options[option]) for cell in measured.cells))


def show(measured: Measured, folder: Path) -> Page:
    """Per task the curves and a table of all attacks; before them what was tried and what removed it."""
    names, tasks = _distinct(measured, "carriers"), _distinct(measured, "task")
    page: list[str | Table | Picture] = [
        Table(
            ["carriers", "seeds", "embeds", "cheapest removal", "proof after all attacks of two points"],
            [_summary(measured, task, name) for task in tasks for name in names],
            caption="## What was tried, and what removed it",
        )
    ]
    for task in tasks:
        _draw(measured, task, names, folder / f"{task}.png")
        page += [
            f"## {task}",
            _trainings(measured, task, names),
            Picture(
                "log10 p on images over the accuracy that an attack costs: green the product's attacks, "
                "orange those aimed at the carriers; dashed what a stamped key needs, dotted two points of "
                "accuracy",
                f"{task}.png",
            ),
            Table(
                ["attack", *(WORDS[name] for name in names)],
                [[attack, *(_place(measured, task, name, attack) for name in names)] for attack in ATTACKS],
                notes=(
                    "Accuracy (%), WSR on 256 test images (%) and log10 p, the largest of the seeds, before "
                    f"any allowance; a stamped key needs {PROOF:.1f}. The numbers behind an attack's name "
                    "are its weight."
                ),
            ),
        ]
    return page


def _trainings(measured: Measured, task: str, names: Sequence[str]) -> str:
    """The architecture and rounds of a task's trainings, and where each kind of carriers is cut."""
    made = {
        name: cell.live
        for name in names
        for cell in measured.cells
        if cell.live is not None and (cell.options["task"], cell.options["carriers"]) == (task, name)
    }
    cuts = {
        name: f"cut at {each.model.cut or default_cut(each.model.name)} with width {each.model.width}"
        for name, each in made.items()
    }
    usual, first = cuts[names[0]], made[names[0]]
    others = "".join(f"; {name}: {words}" for name, words in cuts.items() if words != usual)
    return f"{first.model.name} in {first.federation.rounds} rounds, {usual}{others}."


def _draw(measured: Measured, task: str, names: Sequence[str], path: Path) -> None:
    figure, axes = figures.panels(len(names), columns=3)
    for axis, name in zip(axes, names, strict=True):
        for aimed, colour in ((False, figures.SERIES[0]), (True, figures.SERIES[1])):
            points = [
                point
                for attack in ATTACKS
                if (attack in AIMED) == aimed
                for point in lost(measured, task, name, attack).values()
            ]
            axis.scatter([cost for cost, _ in points], [p for _, p in points], s=14, color=colour)
        axis.axhline(PROOF, color="#000000", linewidth=0.8, linestyle="--")
        axis.axvline(AFFORDABLE, color="#000000", linewidth=0.8, linestyle=":")
        axis.set_title(WORDS[name], fontsize=7)
        axis.set_xlabel("accuracy lost, points")
        axis.set_ylabel("log10 p on images")
    figures.save(figure, path)


def _place(measured: Measured, task: str, name: str, attack: str) -> list[Entry]:
    cell = name_of(task, name, attack)
    exponents = measured.values(cell, "log10_p_inputs")
    if not exponents:
        return [NOT_RUN]
    return [
        measured.number(cell, "accuracy", "acc"),
        measured.number(cell, "wsr_inputs", "WSR"),
        Number(max(exponents), "log10 p"),
    ]


def removal(measured: Measured, task: str, name: str) -> tuple[str, float] | None:
    """The attack that removes the proof at the smallest cost in any seed, and that cost."""
    found = [
        (cost, attack)
        for attack in ATTACKS
        for cost, exponent in lost(measured, task, name, attack).values()
        if attack != "none" and exponent > PROOF
    ]
    return None if not found else (min(found)[1], min(found)[0])


def _summary(measured: Measured, task: str, name: str) -> Row:
    title = f"{task}: {WORDS[name]}"
    start = measured.values(name_of(task, name, "none"), "log10_p_inputs")
    if not start:
        return [title, NOT_RUN, NOT_RUN, NOT_RUN, NOT_RUN]
    embeds = f"log10 p {max(start):.1f}, " + ("yes" if max(start) <= PROOF else "**no**")
    cheapest = removal(measured, task, name)
    attacked = any(lost(measured, task, name, attack) for attack in ATTACKS if attack != "none")
    removed: Place = "none of these attacks" if attacked else NOT_RUN
    holds: Place = "yes" if attacked else NOT_RUN
    if cheapest is not None:
        attack, cost = cheapest
        removed, holds = f"{attack}: {cost:+.1f} points", "yes" if cost > AFFORDABLE else "**no**"
    return [title, str(len(start)), embeds, removed, holds if max(start) <= PROOF else "**no**"]


def verdict(measured: Measured) -> list[Finding]:
    """The rule for a new default: proof after every attack of at most two points."""
    return [
        check_claim(
            f"{task}, {WORDS[name]}: proof with a stamped key after every attack that costs at most two "
            "points (largest log10 p)",
            {
                attack: max(affordable)
                for attack in ATTACKS
                if (
                    affordable := [
                        exponent
                        for cost, exponent in lost(measured, task, name, attack).values()
                        if cost <= AFFORDABLE
                    ]
                )
            },
            lambda x: x <= PROOF,
        )
        for task in _distinct(measured, "task")
        for name in _distinct(measured, "carriers")
    ]


CAPTION = (
    "Marks with carriers that were meant not to stand out, after the product's attacks and after some that "
    "are aimed at them: what a thief must pay to remove each."
)
EXPERIMENT = Experiment("carriers", CAPTION, cells, show, measure, verdict)
