"""What it costs a thief who tunes well to be rid of each proof: a search for the least accuracy lost.

This is not in the paper. The thief is client 0 with its own images and the initial weights; it has its copy
of the model of the scheme that a new training takes (`shares`), with its imprint, and erases
(:func:`sigil.attacks.erase`) with itself as teacher. Recipes are drawn at random, and each counts for every
goal whose proofs are gone. Each is tried for a third of its epochs first, and goes no further unless it is
among the best third of those before it. Half of the test images choose the best recipe, the other half say
what it costs. Beside it stand fine-tuning alone, a fresh student of the model's answers, and a model of the
thief's own, from its labels alone, for which nothing need be stolen.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from sigil.rules import ALPHA
from sigil_reproduction.beyond.thief import Thief
from sigil_reproduction.runner.experiment import Experiment, Finding, Measured
from sigil_reproduction.runner.reading import KEYS
from sigil_reproduction.runner.scales import PerScale, Scale, get, shares
from sigil_reproduction.runner.store import KEY, Cell, Store

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
    "both": "mark and origin",
    "everything": "mark, origin and its imprint",
}
TRIALS = PerScale(40, smoke=1)
# A recipe is tried for this share of its epochs first, and goes on if no more than that share of those before
# it were better; the first ones all do.
SHORT, LEAST_BEFORE = 1 / 3, 6
RECIPIENTS = 10
NOTHING, FINETUNING, STUDENT = "none", "fine-tuning", "student"
OWN_LABELS = (500, 5_000)
# From nothing: a fresh student, and a model of the own labels alone.
FRESH_EPOCHS = 40
FRESH = Tuning(3e-3, epochs=FRESH_EPOCHS, decay=True, warmup=0.05)
# The first recipes, set by hand: one for each goal, then what is taken away stays away, or goes slowly.
KEPT = {"orthogonalise": 1.0, "keep": True}
TURNED = {"orthogonalise": 1.0, "way": "rotate"}
FIRST: tuple[dict[str, Any], ...] = (
    {"flatten": 10.0, "tuning": {}},
    {"orthogonalise": 1.0, "tuning": {"lr": 1e-3, "epochs": 12}},
    {"flatten": 3.0, "orthogonalise": 1.0, "tuning": {"lr": 1e-3, "epochs": 12}},
    {
        **{"flatten": 3.0, "orthogonalise": 1.0, "noise": 0.9, "shape": 0.7},
        "tuning": {"lr": 1e-3, "epochs": 12},
    },
    {"flatten": 3.0, **KEPT, "tuning": {"lr": 1e-3, "epochs": 9, "batch_size": 64}},
    {**KEPT, "tuning": {"lr": 1e-3, "epochs": 9, "batch_size": 64}},
    {
        **{"flatten": 3.0, **KEPT, "noise": 1.5, "shape": 0.7},
        "tuning": {"lr": 2e-3, "epochs": 9, "batch_size": 64},
    },
    {"flatten": 1.0, **TURNED, "tuning": {"lr": 1e-3, "epochs": 12}},
    {**TURNED, "tuning": {"lr": 1e-3, "epochs": 12}},
    {"flatten": 1.0, **KEPT, "orthogonalise": 0.98, "tuning": {"lr": 1e-3, "epochs": 12}},
    {"flatten": 3.0, "tuning": {"lr": 1e-3, "epochs": 12}},
)


def recipe(trial: int) -> dict[str, Any]:
    """The options of a trial: those of erasing, and what is changed of the thief's best recipe."""
    if trial < len(FIRST):
        return FIRST[trial]
    draw = random.Random(f"trial {trial}")

    def between(least: float, most: float) -> float:
        """Evenly in the logarithm."""
        return float(f"{math.exp(draw.uniform(math.log(least), math.log(most))):.2g}")

    # What costs most, both proofs and the origin alone, is tried most.
    (goal,) = draw.choices(list(GOALS), weights=(1, 3, 4, 2))
    options: dict[str, Any] = {}
    if "mark" in GOALS[goal]:
        options["flatten"] = between(0.5, 20.0)
    if "origin" in GOALS[goal]:
        options["way"] = draw.choice(("project", "project", "rotate"))
        options |= {"orthogonalise": draw.choice((0.97, 0.99, 1.0)), "keep": draw.random() < 0.75}
    if goal == "everything" or draw.random() < 0.2:
        options["noise"] = between(0.3, 2.0)
        options["shape"] = draw.choice((0.5, 0.7, 1.0))
    options["tuning"] = {
        "lr": between(4e-4, 3e-3),
        "epochs": draw.choice((6, 9, 12)),
        "batch_size": draw.choice((32, 64)),
        "labels": draw.choice((0.1, 0.3, 1.0)),
        "logits": draw.choice((1.0, 3.0)),
        "features": draw.choice((0.0, 0.3, 1.0)),
        "temperature": draw.choice((2.0, 4.0)),
        "averaged": draw.choice((0.0, 0.1, 0.3)),
        "norms": draw.choice(("trained", "trained", "re-estimated")),
    }
    return options


def aim(options: Mapping[str, Any]) -> str:
    """The last of the goals that a recipe works towards: those whose proofs it all attacks."""
    attacked = {"mark": ("flatten",), "origin": ("orthogonalise", "noise"), "imprint": ("noise",)}
    met = {proof for proof, ways in attacked.items() if any(way in options for way in ways)}
    return [goal for goal, proofs in GOALS.items() if met.issuperset(proofs)][-1]


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """What stands beside the search, then the trials."""
    wanted: list[tuple[str, dict[str, Any]]] = [(NOTHING, {}), (FINETUNING, {}), (STUDENT, {})]
    wanted += [(name_of(trial), recipe(trial)) for trial in range(TRIALS.at(scale))]
    wanted += [(f"own labels, {count} images", {"images": count}) for count in OWN_LABELS]
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


def name_of(trial: int) -> str:
    """Name of a trial's cell."""
    return f"trial {trial}"


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Attack the run, or make what stands beside it, and measure what is left."""
    (run,) = runs
    thief = Thief.of(run, store)

    def tuned(found: Tuning, **changes: Any) -> Tuning:
        found = found.changed(**changes, seed=thief.tuning.seed, precision=thief.tuning.precision)
        return found.changed(epochs=1) if store.scale == "smoke" else found

    if cell.name == NOTHING:
        kept = run.folder.is_relative_to(store.results)
        model = Path("results", store.scale, run.folder.relative_to(store.results)) if kept else Path("MODEL")
        return left(thief, thief.halves) | {"model": model.as_posix()}
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
    """Erase for a third of the epochs, and if that is among the best third so far for all of them.

    The first recipes, which were set by hand, go to the end at once.
    """
    options = {name: value for name, value in cell.options.items() if name != "tuning"}
    key = store.key(thief.run)
    assert key is not None
    copies = Imprint(key, thief.halves[0])
    issued = [copies.issue(recipient(number)) for number in range(RECIPIENTS)]
    thief = replace(thief, halves=(issued[0], thief.halves[1]))

    def erased(share: float) -> dict[str, Any]:
        tuning = tuned(BEST, **shortened(cell.options["tuning"], share))
        return left(
            thief, attacks.erase(thief.halves, thief.own, thief.initial, tuning=tuning, **options), copies
        )

    if cell.options in FIRST:
        return erased(1.0)
    short = erased(SHORT)
    known = store.results_of(cells(get(store.scale), [cell.seed])).values()
    if not is_promising(short, aim(cell.options), [result.numbers for result in known]):
        return {"short": short, "stopped": True}
    return {"short": short, **erased(1.0)}


def is_promising(short: Mapping[str, Any], goal: str, known: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a recipe is among the best third of those before it after a third of its epochs."""
    before = [numbers["short"] for numbers in known if "short" in numbers]
    before = [numbers for numbers in before if is_known(numbers, goal)]
    better = sum(score(numbers, goal) < score(short, goal) for numbers in before)
    return len(before) < LEAST_BEFORE or better <= SHORT * len(before)


def shortened(tuning: Mapping[str, Any], share: float) -> dict[str, Any]:
    """What a recipe changes of the best one, with a share of its epochs."""
    return {**tuning, "epochs": max(1, round(share * tuning.get("epochs", BEST.epochs)))}


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
    return found if proof == "imprint" else KEYS[kind].corrected(found)


def is_known(numbers: Mapping[str, Any], goal: str) -> bool:
    """Whether all proofs of a goal were looked for; the first recipes had no imprint to lose."""
    return all(f"log10_p_{proof}" in numbers for proof in GOALS[goal])


def reached(numbers: Mapping[str, Any], goal: str, kind: str) -> bool:
    """Whether nothing that the goal names is proven any more."""
    return is_known(numbers, goal) and all(corrected(numbers, proof, kind) > LEVEL for proof in GOALS[goal])


def score(numbers: Mapping[str, Any], goal: str) -> float:
    """What the search lowers: the accuracy missing, and a point for each order of decades of proof left."""
    decades = sum(max(0.0, LEVEL - corrected(numbers, proof, "stamped")) for proof in GOALS[goal])
    return 100 - float(numbers["choosing"]) + math.log10(1 + decades)


@dataclass(frozen=True)
class Trial:
    """A recipe that was tried, for all of its epochs or a third: its cost by either half, what is left."""

    options: Mapping[str, Any]
    numbers: Mapping[str, Any]
    chosen_by: float
    lost: float


def tried(measured: Measured) -> list[Mapping[str, Any]]:
    """What was measured of the trials on the first seed."""
    numbers = (measured.first(cell.name) for cell in measured.cells if "tuning" in cell.options)
    return [each for each in numbers if each is not None]


def is_done(measured: Measured) -> bool:
    """Whether all trials were made."""
    return len(tried(measured)) == sum("tuning" in cell.options for cell in measured.cells)


def trials(measured: Measured) -> Iterator[Trial]:
    """All models that were made by trials on the first seed."""
    before = measured.first(NOTHING)
    for cell in measured.cells:
        found = measured.first(cell.name)
        if before and found and "tuning" in cell.options:
            short = {**cell.options, "tuning": shortened(cell.options["tuning"], SHORT)}
            for options, numbers in ((short, found.get("short", {})), (cell.options, found)):
                if "accuracy" in numbers:
                    lost = [float(before[each]) - float(numbers[each]) for each in ("choosing", "accuracy")]
                    yield Trial(options, numbers, *lost)


def best(measured: Measured, goal: str, kind: str) -> Trial | None:
    """The recipe that reaches a goal for the least accuracy, by the half of the images that chooses."""
    found = [trial for trial in trials(measured) if reached(trial.numbers, goal, kind)]
    return min(found, key=lambda trial: trial.chosen_by, default=None)


def command(options: Mapping[str, Any], data: str) -> str:
    """A trial as a command on the folder MODEL, which holds the run and its key."""
    given = {"lr": BEST.lr, "epochs": BEST.epochs, **options["tuning"]}
    given |= {name: value for name, value in options.items() if name != "tuning"}
    given |= {"initial": "$MODEL"} if "orthogonalise" in options else {}
    words = [
        f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
        for name, value in given.items()
        if value is not False
    ]
    return f"sigil attack erase $MODEL --out thief --key $MODEL/{KEY} --data {data} {' '.join(words)}"


def show(measured: Measured, folder: Path) -> Page:
    """The figure, the price of each goal, what stands beside it, and the best recipes as commands."""
    draw(measured, folder / "frontier.png")
    before, known, kinds = measured.first(NOTHING), tried(measured), list(KEYS)
    stopped = sum("stopped" in numbers for numbers in known)
    made = list(trials(measured))
    prices: list[Row] = []
    commands: dict[str, list[str]] = {}
    for goal in GOALS:
        row: list[Any] = [goal, str(len(known)), str(stopped)]
        for kind in kinds:
            row.append(str(sum(reached(trial.numbers, goal, kind) for trial in made)))
            found = best(measured, goal, kind)
            row.append(
                NOT_RUN
                if not known
                else Words("no recipe yet")
                if found is None
                else Number(found.lost, form="+.2f")
            )
            if found:
                words = command(found.options, measured.data(NOTHING))
                commands.setdefault(words, []).append(f"{goal}, {kind} key")
        prices.append(row)
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
    look = f"sigil verify thief/client.safetensors --key $MODEL/{KEY} --inputs {measured.data(NOTHING)}"
    listed = "\n".join(f"- {'; '.join(goals)}: `{words}`" for words, goals in commands.items())
    recipes = (
        "## The best recipes\n\nEach takes a few minutes of one core, in the folder `reproduction` of a "
        "checkout, with as many images as one client has:\n\n"
        f"- `MODEL={(before or {}).get('model', '…')}`\n{listed}\n- what is left: `{look}`"
    )
    return [
        Picture("What is left of each proof over the accuracy that a recipe costs", "frontier.png"),
        Table(
            [
                *("goal", "trials", "of these stopped early"),
                *(
                    f"{kind} key: {what}"
                    for kind in kinds
                    for what in ("models without proof", "least points lost")
                ),
            ],
            prices,
            caption="The least accuracy for which nothing that the goal names is proven any more.",
            notes="One search for all goals; a model counts for each whose proofs are gone, also one of a "
            "trial that stopped early. Chosen by one half of the test images, said of the other; one seed. "
            "Half of 10,000 images tell an accuracy to about half a point, a difference little better.",
        ),
        Table(
            [
                *("", "accuracy", "lost"),
                *(f"{proof}, {kind} key" for proof in ("mark", "origin") for kind in kinds),
            ],
            beside,
            notes=f"Corrected log10 p, proven at {LEVEL:.1f} or below.",
        ),
        *([recipes] if commands else []),
    ]


def draw(measured: Measured, path: Path) -> None:
    """One panel per proof and kind of key: corrected log10 p over the accuracy lost, one colour per goal."""
    places = [(proof, kind) for proof in ("mark", "origin") for kind in KEYS] + [("imprint", "")]
    figure, axes = figures.panels(len(places), columns=3)
    before = measured.first(NOTHING)
    for axis, (proof, kind) in zip(axes, places, strict=True):
        for goal, colour in zip(GOALS, figures.SERIES, strict=False):
            found = [
                trial
                for trial in trials(measured)
                if f"log10_p_{proof}" in trial.numbers and aim(trial.options) == goal
            ]
            points = [(trial.lost, corrected(trial.numbers, proof, kind)) for trial in found]
            if points:
                axis.plot(
                    *zip(*points, strict=True),
                    "o",
                    color=colour,
                    markersize=4,
                    label=f"aimed at {WORDS[goal]}",
                )
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
    done = is_done(measured)
    for goal in GOALS:
        found = best(measured, goal, "stamped")
        text = f"To be rid of {WORDS[goal]} with a stamped key costs at least 2 points of accuracy"
        words = f"{found.lost:+.2f}" if found else "no recipe does it" if done else "no recipe yet"
        # A search that has only begun can show that the price is lower, not that it is not.
        cheap = found is not None and found.lost < 2
        findings.append(Finding(f"{text}: {words}.", False if cheap else True if done else None))
    return findings


CAPTION = (
    "What it costs a thief who tunes well to be rid of the mark, of the origin, of both, and of its imprint "
    "too, found by a random search (ResNet-18, shares)."
)
EXPERIMENT = Experiment("frontier", CAPTION, cells, show, measure, verdict)
