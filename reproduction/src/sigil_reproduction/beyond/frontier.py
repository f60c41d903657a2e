"""What it costs a thief who tunes well to be rid of each proof: a search for the least accuracy lost.

This is not in the paper. The thief is client 0 with its own images and the initial weights; it has the model
of the scheme that a new training takes (`shares`), and erases (:func:`sigil.attacks.erase`) with itself as
teacher. For each goal recipes are drawn at random. Each is tried for a third of its epochs first, and goes no
further if it is worse than half of those before it. Half of the test images choose the best recipe, the other
half say what it costs. Beside it stand fine-tuning alone, a fresh student of the model's answers, and a model
of the thief's own, from its labels alone, for which nothing need be stolen.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import sigil
from sigil import attacks, models
from sigil.attacks import BEST, Tuning
from sigil.attacks.halves import Halves
from sigil.data import Dataset, Split
from sigil.data.partitions import stratified
from sigil.federation.run import Run
from sigil.imprint import Imprint, recipient
from sigil.pages import figures
from sigil.pages.tables import NOT_RUN, Number, Page, Picture, Row, Table, Words
from sigil.rules import ALPHA, Price
from sigil_reproduction.beyond.schemes import KEYS
from sigil_reproduction.beyond.thief import Thief
from sigil_reproduction.runner.experiment import Experiment, Finding, Measured
from sigil_reproduction.runner.scales import PerScale, Scale, get, shares
from sigil_reproduction.runner.store import Cell, Store

LEVEL = math.log10(ALPHA)
# Which proofs must be gone.
GOALS = {
    "mark": ("mark",),
    "origin": ("origin",),
    "both": ("mark", "origin"),
    "everything": ("mark", "origin", "imprint"),
}
WORDS = {
    "mark": "the mark",
    "origin": "the origin",
    "both": "both",
    "everything": "mark, origin and imprint",
}
TRIALS = PerScale(40, smoke=1)
# A recipe is tried for this share of its epochs first, and compared if so many were before it.
SHORT, LEAST_BEFORE = 1 / 3, 4
RECIPIENTS = 10
NOTHING, FINETUNING, STUDENT = "none", "fine-tuning", "student"
OWN_LABELS = (500, 5_000)
# From nothing: a fresh student, and a model of the own labels alone.
FRESH_EPOCHS = 40
FRESH = Tuning(3e-3, epochs=FRESH_EPOCHS, decay=True, warmup=0.05)
# The first recipe of each goal, from which nothing was searched.
FIRST: dict[str, dict[str, Any]] = {
    "mark": {"flatten": 10.0, "tuning": {}},
    "origin": {"orthogonalise": 1.0, "tuning": {"lr": 1e-3, "epochs": 12}},
    "both": {"flatten": 3.0, "orthogonalise": 1.0, "tuning": {"lr": 1e-3, "epochs": 12}},
    "everything": {
        **{"flatten": 3.0, "orthogonalise": 1.0, "noise": 0.9, "shape": 0.7},
        "tuning": {"lr": 1e-3, "epochs": 12},
    },
}


def recipe(goal: str, trial: int) -> dict[str, Any]:
    """The options of a trial: those of erasing, and what is changed of the thief's best recipe."""
    if not trial:
        return FIRST[goal]
    draw = random.Random(f"{goal} {trial}")

    def between(least: float, most: float) -> float:
        """Evenly in the logarithm."""
        return float(f"{math.exp(draw.uniform(math.log(least), math.log(most))):.2g}")

    tuning = {
        "lr": between(2e-4, 3e-3),
        "epochs": draw.choice((6, 10, 14)),
        "warmup": draw.choice((0.0, 0.05, 0.1)),
        "labels": draw.choice((0.0, 0.1, 0.3, 1.0)),
        "logits": draw.choice((0.3, 1.0, 3.0)),
        "features": draw.choice((0.0, 0.0, 0.3, 1.0)),
        "temperature": draw.choice((1.0, 2.0, 4.0)),
        "averaged": draw.choice((0.0, 0.1, 0.3)),
        "norms": draw.choice(("trained", "trained", "frozen", "re-estimated")),
    }
    options: dict[str, Any] = {"tuning": tuning}
    if goal != "origin":
        options["flatten"] = between(0.3, 30.0)
    if goal != "mark":
        options["way"] = draw.choice(("project", "project", "rotate"))
        options["orthogonalise"] = draw.choice((0.9, 0.95, 1.0))
        options["keep"] = draw.choice((False, True))
    if goal == "everything" or draw.random() < 0.25:
        options["noise"] = between(0.1, 1.2)
        options["shape"] = draw.choice((0.0, 0.5, 0.7, 1.0))
    return options


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """What stands beside the search, then the trials, each goal in turn."""
    wanted: list[tuple[str, dict[str, Any]]] = [(NOTHING, {}), (FINETUNING, {})]
    goals = [(goal, trial) for trial in range(TRIALS.at(scale)) for goal in GOALS]
    wanted += [(name_of(*each), {"goal": each[0], "trial": each[1], **recipe(*each)}) for each in goals]
    beside = [(STUDENT, {}), *((f"own labels, {count} images", {"images": count}) for count in OWN_LABELS)]
    wanted[2 + len(GOALS) : 2 + len(GOALS)] = beside
    # No gradients are needed: a model that was kept will do, and elsewhere the training of other tables.
    record = {} if scale.keeps_models else scale.recording
    return [
        Cell(
            "frontier",
            name,
            seed,
            (scale.settings(seed=seed, watermark=shares(scale), record=record),),
            options,
        )
        for seed in seeds
        for name, options in wanted
    ]


def name_of(goal: str, trial: int) -> str:
    """Name of a trial's cell."""
    return f"{goal}, trial {trial}"


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Attack the run, or make what stands beside it, and measure what is left."""
    (run,) = runs
    thief = Thief.of(run, store)

    def tuned(found: Tuning, **changes: Any) -> Tuning:
        found = found.changed(**changes, seed=thief.tuning.seed, precision=thief.tuning.precision)
        return found.changed(epochs=1) if store.scale == "smoke" else found

    if cell.name == NOTHING:
        return left(thief, thief.halves)
    if cell.name == FINETUNING:
        return left(thief, attacks.finetune(thief.halves, thief.own, tuning=tuned(BEST, labels=1.0)))
    if cell.name == STUDENT:
        taught = tuned(FRESH, labels=0.0, logits=1.0)
        return left(thief, attacks.extract(thief.halves, fresh(run, thief), thief.own, tuning=taught))
    if "images" in cell.options:
        own, count = thief.own, cell.options["images"]
        if count < len(own.train):
            own = attacks.share(own, stratified(own.train.labels, count, seed=cell.seed))
        # As many steps with few images as with many.
        epochs = round(FRESH_EPOCHS * len(thief.own.train) / len(own.train))
        return left(thief, attacks.finetune(fresh(run, thief), own, tuning=tuned(FRESH, epochs=epochs)))
    return try_recipe(cell, thief, store, tuned)


def fresh(run: Run, thief: Thief) -> Halves:
    """A model of the same architecture that has learned nothing."""
    spec, settings = thief.halves[0].spec, run.settings
    made = models.build(
        spec.name, classes=spec.classes, width=spec.width, channels=spec.channels, seed=settings.run.seed + 1
    )
    return models.split(made, spec.cut or models.default_cut(spec.name))


def try_recipe(cell: Cell, thief: Thief, store: Store, tuned: Callable[..., Tuning]) -> dict[str, Any]:
    """Erase for a third of the epochs, and if that is better than half of the others for all of them."""
    options = {key: value for key, value in cell.options.items() if key not in ("goal", "trial", "tuning")}
    goal = cell.options["goal"]
    copies = None
    if "imprint" in GOALS[goal]:
        key = thief.store.key(thief.run)
        assert key is not None
        copies = Imprint(key, thief.halves[0])
        issued = [copies.issue(recipient(number)) for number in range(RECIPIENTS)]
        thief = replace(thief, halves=(issued[0], thief.halves[1]))

    def erased(share: float) -> dict[str, Any]:
        tuning = tuned(BEST, **cell.options["tuning"])
        tuning = tuning.changed(epochs=max(1, round(share * (tuning.epochs or 1))))
        erased = attacks.erase(thief.halves, thief.own, thief.initial, tuning=tuning, **options)
        return left(thief, erased, copies)

    short = erased(SHORT)
    before = [
        score(result.numbers["short"], goal)
        for result in store.results_of(cells(get(store.scale), [cell.seed])).values()
        if result.options.get("goal") == goal and "short" in result.numbers
    ]
    if len(before) >= LEAST_BEFORE and score(short, goal) > statistics.median(before):
        return {"short": short, "stopped": True}
    return {"short": short, **erased(1.0)}


def left(thief: Thief, attacked: Halves, copies: Imprint | None = None) -> dict[str, Any]:
    """What is left: accuracy (%) on both halves of the test images, and log10 p before correction.

    That of the imprint is corrected, by the rules of tracing, at the level of an owner.
    """
    data, key = thief.store.dataset(thief.run.settings), thief.store.key(thief.run)
    precision = thief.tuning.precision
    choosing, reporting = (
        attacks.measure(attacked, data=every_second(data, number), key=given, precision=precision)
        for number, given in enumerate((None, key))
    )
    assert reporting.report is not None
    numbers: dict[str, Any] = {
        "choosing": 100 * (choosing.accuracy or 0.0),
        "accuracy": 100 * (reporting.accuracy or 0.0),
        "log10_p_mark": min(
            reading.log10_p_before for reading in reporting.report.readings if reading.kind != "origin"
        ),
        "log10_p_origin": thief.origin_of(attacked).log10_p,
    }
    if copies is not None and key is not None:
        numbers["log10_p_imprint"] = sigil.trace(attacked[0], key, copies).recipients[0].log10_p
    return numbers


def every_second(data: Dataset, start: int) -> Dataset:
    """The data set with every second test image."""
    return replace(data, test=Split(np.array(data.test.images[start::2]), data.test.labels[start::2]))


def corrected(numbers: Mapping[str, Any], proof: str, kind: str) -> float:
    """log10 p of a proof, corrected for a kind of key (stamped or plain)."""
    found = float(numbers[f"log10_p_{proof}"])
    return found if proof == "imprint" else Price(KEYS[kind]).corrected(found)


def reached(numbers: Mapping[str, Any], goal: str, kind: str) -> bool:
    """Whether nothing that the goal names is proven any more."""
    return all(corrected(numbers, proof, kind) > LEVEL for proof in GOALS[goal])


def score(numbers: Mapping[str, Any], goal: str) -> float:
    """What the search lowers: the accuracy missing, and a point for each order of decades of proof left."""
    decades = sum(max(0.0, LEVEL - corrected(numbers, proof, "stamped")) for proof in GOALS[goal])
    return 100 - float(numbers["choosing"]) + math.log10(1 + decades)


@dataclass(frozen=True)
class Trial:
    """A recipe that was tried to the end: its cost by either half of the test images, and what is left."""

    options: Mapping[str, Any]
    numbers: Mapping[str, Any]
    chosen_by: float
    lost: float


def trials(measured: Measured, goal: str) -> Iterator[Trial]:
    """The finished trials of a goal on the first seed."""
    before = measured.first(NOTHING)
    for cell in measured.cells:
        numbers = measured.first(cell.name)
        if before and numbers and cell.options.get("goal") == goal and "accuracy" in numbers:
            lost = [float(before[each]) - float(numbers[each]) for each in ("choosing", "accuracy")]
            yield Trial(cell.options, numbers, *lost)


def best(measured: Measured, goal: str, kind: str) -> Trial | None:
    """The recipe that reaches a goal for the least accuracy, by the half of the images that chooses."""
    found = [trial for trial in trials(measured, goal) if reached(trial.numbers, goal, kind)]
    return min(found, key=lambda trial: trial.chosen_by, default=None)


def command(options: Mapping[str, Any], data: str) -> str:
    """A trial as a command; MODEL is the folder of the run, KEY its key."""
    given = {"lr": BEST.lr, "epochs": BEST.epochs, **options["tuning"]}
    given |= {key: value for key, value in options.items() if key not in ("goal", "trial", "tuning")}
    if "orthogonalise" in options:
        given["initial"] = "MODEL"
    words = [
        f"--{key}"
        if value is True
        else f"--{key} {value:g}"
        if isinstance(value, float)
        else f"--{key} {value}"
        for key, value in given.items()
        if value is not False
    ]
    return f"sigil attack erase MODEL --out OUT --key KEY --data {data} {' '.join(words)}"


def show(measured: Measured, folder: Path) -> Page:
    """The figure, the price of each goal, what stands beside it, and the best recipes as commands."""
    draw(measured, folder / "frontier.png")
    kinds = list(KEYS)
    prices: list[Row] = []
    commands = []
    for goal in GOALS:
        tried = [cell for cell in measured.cells if cell.options.get("goal") == goal]
        known = [numbers for cell in tried if (numbers := measured.first(cell.name)) is not None]
        stopped = sum("stopped" in numbers for numbers in known)
        row: list[Any] = [goal, str(len(known)), str(stopped)]
        for kind in kinds:
            found = best(measured, goal, kind)
            row.append(_price(measured, goal, found))
            if found is not None:
                commands.append(f"{goal}, {kind} key: `{command(found.options, measured.data(NOTHING))}`")
        prices.append(row)
    before = measured.first(NOTHING)
    beside: list[Row] = []
    for name in (NOTHING, FINETUNING, STUDENT, *(f"own labels, {count} images" for count in OWN_LABELS)):
        numbers = measured.first(name)
        if numbers is None or before is None:
            beside.append([name, *[NOT_RUN] * 6])
            continue
        beside.append(
            [
                name,
                Number(float(numbers["accuracy"])),
                Number(float(before["accuracy"]) - float(numbers["accuracy"]), form="+.1f"),
                *(Number(corrected(numbers, proof, kind)) for proof in ("mark", "origin") for kind in kinds),
            ]
        )
    return [
        Picture("What is left of each proof over the accuracy that a recipe costs", "frontier.png"),
        Table(
            ["goal", "trials", "of these stopped early", *(f"points lost, {kind} key" for kind in kinds)],
            prices,
            caption="The least accuracy for which nothing that the goal names is proven any more.",
            notes="Chosen by one half of the test images, said of the other.",
        ),
        Table(
            [
                *("", "accuracy", "lost"),
                *(f"{proof}, {kind} key" for proof in ("mark", "origin") for kind in kinds),
            ],
            beside,
            notes=f"Corrected log10 p, proven at {LEVEL:.1f} or below.",
        ),
        *(["## The best recipes\n\n" + "\n".join(f"- {each}" for each in commands)] if commands else []),
    ]


def _price(measured: Measured, goal: str, found: Trial | None) -> Number | Words:
    if found is not None:
        return Number(found.lost, form="+.2f")
    return Words("no recipe yet") if any(trials(measured, goal)) else NOT_RUN


def draw(measured: Measured, path: Path) -> None:
    """One panel per proof and kind of key: corrected log10 p over the accuracy lost, one colour per goal."""
    places = [(proof, kind) for proof in ("mark", "origin") for kind in KEYS] + [("imprint", "")]
    figure, axes = figures.panels(len(places), columns=3)
    before = measured.first(NOTHING)
    for axis, (proof, kind) in zip(axes, places, strict=True):
        for goal, colour in zip(GOALS, figures.SERIES, strict=False):
            found = [trial for trial in trials(measured, goal) if f"log10_p_{proof}" in trial.numbers]
            points = [(trial.lost, corrected(trial.numbers, proof, kind)) for trial in found]
            if points:
                axis.plot(*zip(*points, strict=True), "o", color=colour, markersize=4, label=f"goal: {goal}")
        for name, marker in ((NOTHING, "k*"), (FINETUNING, "ks"), (STUDENT, "k^")):
            numbers = measured.first(name)
            if before and numbers and f"log10_p_{proof}" in numbers:
                lost = float(before["accuracy"]) - float(numbers["accuracy"])
                axis.plot([lost], [corrected(numbers, proof, kind)], marker, markersize=6, label=name)
        axis.axhline(LEVEL, color="0.5", linewidth=1, linestyle="--", label="proof below this line")
        title = f"{proof}, {kind} key" if kind else f"{proof}, before its owner"
        axis.set(title=title, xlabel="points of accuracy lost", ylabel="log10 p, corrected")
        axis.set_yscale("symlog", linthresh=10.0)
        axis.set_ylim(bottom=min(axis.get_ylim()[0], 3 * LEVEL), top=1.0)
    figures.legend_below(figure, axes)
    figures.save(figure, path)


def verdict(measured: Measured) -> list[Finding]:
    """What a thief must pay for each goal, held against two points of accuracy."""
    findings = []
    for goal in GOALS:
        found = best(measured, goal, "stamped")
        tried = [measured.first(cell.name) for cell in measured.cells if cell.options.get("goal") == goal]
        text = f"To be rid of {WORDS[goal]} with a stamped key costs at least 2 points of accuracy"
        words = f"{found.lost:+.2f}" if found else "no recipe does it" if all(tried) else "no recipe yet"
        # A search that has only begun can show that the price is lower, not that it is not.
        cheap = found is not None and found.lost < 2
        findings.append(Finding(f"{text}: {words}.", False if cheap else True if all(tried) else None))
    return findings


CAPTION = (
    "What it costs a thief who tunes well to be rid of the mark, of the origin, of both, and of its imprint "
    "too, found by a random search (ResNet-18, shares)."
)
EXPERIMENT = Experiment("frontier", CAPTION, cells, show, measure, verdict)
