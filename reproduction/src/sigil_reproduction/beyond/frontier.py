"""What it costs a thief who tunes well to be rid of each proof: a search for the least accuracy lost.

This is not in the paper. The thief is client 0 with its own images and the initial weights; it has its copy
of the model of the scheme that a new training takes (`shares`), with its imprint, and erases
(:func:`sigil.attacks.erase`) with itself as teacher. Recipes are drawn at random, and each counts for every
goal whose proofs are gone. Each is tried for a third of its epochs first, and goes no further unless it is
among the best third of those before it. Half of the test images choose the best recipe, the other half say
what it costs.

The best recipes of each goal are then confirmed: by a thief who draws differently, and on a model with the
paper's mark. Attempts to undercut them follow other ideas. Beside all that stand fine-tuning
alone, a fresh student of the model's answers, and a model of the thief's own, from its labels alone, for
which nothing need be stolen.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
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
from sigil.pages.tables import GAP, NOT_RUN, Entry, Number, Page, Picture, Row, Table, Words
from sigil.rules import ALPHA
from sigil_reproduction.beyond.recipes import ATTEMPTS, FIRST, GOALS, aim, follow, recipe
from sigil_reproduction.beyond.thief import Thief
from sigil_reproduction.runner.experiment import Experiment, Finding, Measured
from sigil_reproduction.runner.reading import KEYS
from sigil_reproduction.runner.scales import NEW_KEY, PerScale, Scale, get, shares
from sigil_reproduction.runner.store import KEY, Cell, Store

LEVEL = math.log10(ALPHA)
# The proofs, by the kind of the key if that decides what is proven.
PLACES = [(proof, kind) for proof in ("mark", "origin") for kind in KEYS] + [("imprint", "")]
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
# The five best recipes of each goal with a stamped key, by the half of the images that chooses: they are made
# once more with each of these seeds of the thief, for its order, augmentation and noise, and on other models.
AGAIN = (1, 2)
CONFIRMED: PerScale[Mapping[str, Sequence[str]]] = PerScale(
    {},
    desk={
        "mark": ("trial 19", "trial 33", "trial 9", "trial 10", "trial 2"),
        "origin": ("trial 19", "trial 17", "trial 5", "trial 9", "trial 22"),
        "both": ("trial 19", "trial 9", "trial 22", "trial 38", "trial 39"),
    },
)
# Attempts that beat them by the half that reports, or that took everything, which are confirmed like them.
WORKED: PerScale[Sequence[str]] = PerScale((), desk=("undercut 1", "undercut 3", "undercut 6"))
# The paper's mark with as many bits as a new key has; and what the best recipe of each goal leaves of shorter
# and of stronger marks.
PAPER, WEAKER, STRONGER = "paper's mark", "paper's mark, 50 bits", "paper's mark, 50 bits, λ = 1"
RECIPIENTS = 10
NOTHING, FINETUNING, STUDENT = "none", "fine-tuning", "student"
TRIAL, UNDERCUT, SHORTENED = "trial", "undercut", "shortened"
OWN_LABELS = (500, 5_000)
# From nothing: a fresh student, and a model of the own labels alone.
FRESH_EPOCHS = 40
FRESH = Tuning(3e-3, epochs=FRESH_EPOCHS, decay=True, warmup=0.05)


def plan(scale: Scale) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The model, the name and the options of every cell, in the order in which they are measured."""
    for name in (NOTHING, FINETUNING, STUDENT):
        yield "", name, {"attack": name}
    trials = {f"{TRIAL} {number}": recipe(number) for number in range(TRIALS.at(scale))}
    yield from (("", name, options) for name, options in trials.items())
    for count in OWN_LABELS:
        yield "", f"own labels, {count} images", {"images": count}
    attempts = {f"{UNDERCUT} {number}": each for number, each in enumerate(ATTEMPTS.at(scale))}
    known = trials | attempts
    known |= {
        f"{name} {SHORTENED}": {**options, "tuning": shortened(options["tuning"], SHORT)}
        for name, options in trials.items()
    }
    # The best of each goal first, then the second of each.
    ranks = zip_longest(*CONFIRMED.at(scale).values())
    confirmed = dict.fromkeys(name for rank in (*ranks, WORKED.at(scale)) for name in rank if name)
    for name in confirmed:
        for seed in AGAIN:
            yield "", again(name, seed), {**known[name], "thief": seed}
    yield from (("", name, options) for name, options in attempts.items())
    first = dict.fromkeys(names[0] for names in CONFIRMED.at(scale).values() if names)
    for model, there in ((PAPER, confirmed), (WEAKER, first), (STRONGER, first)):
        for name in (NOTHING, FINETUNING) if there else ():
            yield model, name, {"attack": name}
        yield from ((model, name, known[name]) for name in there)


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """What stands beside the search, the trials, and what confirms the best of them or undercuts them."""
    marks = {
        "": shares(scale),
        PAPER: {"bits": NEW_KEY.at(scale)},
        WEAKER: {"strength": 0.1},
        STRONGER: {"strength": 1.0},
    }
    # No gradients are needed: a model that was kept will do, and elsewhere the training of other tables.
    record = {} if scale.keeps_models else scale.recording
    return [
        Cell(
            "frontier",
            on(model, name),
            seed,
            (scale.settings(seed=seed, watermark=marks[model], record=record),),
            options,
        )
        for seed in seeds
        for model, name, options in plan(scale)
    ]


def again(name: str, seed: int) -> str:
    """Name of a recipe that another thief follows."""
    return f"{name}, thief's seed {seed}"


def on(model: str, name: str) -> str:
    """Name of the cell of an attack on a model; that of the search is not named."""
    return f"{name}, {model}" if model else name


def is_a(kind: str, cell: Cell) -> bool:
    """Whether a cell is a trial of the search, or an attempt to undercut it."""
    return cell.name.removeprefix(f"{kind} ").isdigit()


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Attack the run, or make what stands beside it, and measure what is left."""
    (run,) = runs
    thief, options = Thief.of(run, store), cell.options

    def tuned(found: Tuning, **changes: Any) -> Tuning:
        seed = options.get("thief", thief.tuning.seed)
        found = found.changed(**changes, seed=seed, precision=thief.tuning.precision)
        return found.changed(epochs=1) if store.scale == "smoke" else found

    if options.get("attack") == NOTHING:
        kept = run.folder.is_relative_to(store.results)
        model = Path("results", store.scale, run.folder.relative_to(store.results)) if kept else Path("MODEL")
        return left(thief, thief.halves) | {"model": model.as_posix()}
    if options.get("attack") == FINETUNING:
        return left(thief, attacks.finetune(thief.halves, thief.own, tuning=tuned(BEST, labels=1.0)))
    if options.get("attack") == STUDENT:
        taught = tuned(FRESH, labels=0.0, logits=1.0)
        return left(thief, attacks.extract(thief.halves, fresh(run, thief), thief.own, tuning=taught))
    if "images" in options:
        own, count = thief.own, options["images"]
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
    """Follow a recipe; a drawn trial for a third of its epochs first, and on if that is promising."""
    key = store.key(thief.run)
    assert key is not None
    copies = Imprint(key, thief.halves[0])
    issued = [copies.issue(recipient(number)) for number in range(RECIPIENTS)]
    thief = replace(thief, halves=(issued[0], thief.halves[1]))

    def erased(share: float) -> dict[str, Any]:
        tuning = tuned(BEST, **shortened(cell.options["tuning"], share))
        return left(thief, follow(cell.options, thief, thief.initial, tuning), copies)

    if not is_a(TRIAL, cell) or cell.options in FIRST:
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
    marks = [reading for reading in reporting.report.readings if reading.kind != "origin"]
    numbers: dict[str, Any] = {
        "choosing": 100 * (choosing.accuracy or 0.0),
        "accuracy": 100 * (reporting.accuracy or 0.0),
        "wsr": 100 * max(reading.wsr for reading in marks),
        "log10_p_mark": min(reading.log10_p_before for reading in marks),
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
class Recipe:
    """A recipe that was followed: what was left, once per seed of the thief, and the points that it cost.

    ``chosen_by`` is the mean over the seeds by the half of the images that chooses; ``lost`` has the points
    of each seed by the other half; ``seconds`` is the processor time of one core.
    """

    name: str
    options: Mapping[str, Any]
    left: Sequence[Mapping[str, Any]]
    chosen_by: float
    lost: Sequence[float]
    seconds: float = 0.0

    @property
    def price(self) -> float:
        """What it costs: the mean over the seeds."""
        return statistics.fmean(self.lost)

    @property
    def by_all(self) -> float:
        """The same by all test images, the half that chooses among them."""
        return (self.chosen_by + self.price) / 2

    @property
    def confirmed(self) -> bool:
        """Whether other thieves followed it too."""
        return len(self.left) > len(AGAIN)

    def reaches(self, goal: str, kind: str) -> bool:
        """Whether nothing that the goal names is proven any more, whatever the seed."""
        return all(reached(numbers, goal, kind) for numbers in self.left)


def tried(measured: Measured, *kinds: str) -> list[Mapping[str, Any]]:
    """What was measured of the trials, or of the attempts to undercut them too, on the first seed."""
    cells = (cell for cell in measured.cells if any(is_a(kind, cell) for kind in kinds or (TRIAL, UNDERCUT)))
    numbers = (measured.first(cell.name) for cell in cells)
    return [each for each in numbers if each is not None]


def is_done(measured: Measured) -> bool:
    """Whether all trials were made."""
    return len(tried(measured, TRIAL)) == sum(is_a(TRIAL, cell) for cell in measured.cells)


def left_by(measured: Measured, name: str, model: str = "") -> list[Mapping[str, Any]]:
    """What an attack on a model left, once per seed of the thief."""
    whole = name.removesuffix(f" {SHORTENED}")
    found = [measured.first(on(model, each)) for each in (name, *(again(name, seed) for seed in AGAIN))]
    found += [(measured.first(whole) or {}).get("short")] if whole != name and not model else []
    return [each for each in found if each is not None and "accuracy" in each]


def recipes(measured: Measured) -> Iterator[Recipe]:
    """All recipes that were followed, also for a third of their epochs in a trial."""
    before = measured.first(NOTHING)
    for cell in measured.cells:
        if before is None or not (is_a(TRIAL, cell) or is_a(UNDERCUT, cell)):
            continue
        short = {**cell.options, "tuning": shortened(cell.options["tuning"], SHORT)}
        for name, options in ((f"{cell.name} {SHORTENED}", short), (cell.name, cell.options)):
            left = left_by(measured, name)
            chosen_by, lost = (
                [float(before[half]) - float(each[half]) for each in left]
                for half in ("choosing", "accuracy")
            )
            if left:
                # That of another thief, if there is one: a trial followed the first third of a recipe before.
                cells = (again(name, AGAIN[0]), cell.name)
                spent = (measured.results.get((each, measured.seed)) for each in cells)
                seconds = next(each.seconds for each in spent if each is not None)
                yield Recipe(name, options, left, statistics.fmean(chosen_by), lost, seconds)


def ranked(measured: Measured, goal: str, kind: str) -> list[Recipe]:
    """The recipes that reach a goal, the best first by the half of the images that chooses."""
    found = [each for each in recipes(measured) if each.reaches(goal, kind)]
    return sorted(found, key=lambda each: each.chosen_by)


def best(measured: Measured, goal: str, kind: str) -> Recipe | None:
    """The recipe that reaches a goal for the least accuracy: of those that were confirmed, if any was."""
    found = ranked(measured, goal, kind)
    return next((each for each in found if each.confirmed), found[0] if found else None)


def words_of(options: Mapping[str, Any]) -> list[str]:
    """The options of a recipe, as the command line takes them."""
    given = {"lr": BEST.lr, "epochs": BEST.epochs, **options["tuning"]}
    given |= {name: value for name, value in options.items() if name != "tuning"}
    return [
        f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
        for name, value in given.items()
        if value is not False
    ]


def command(options: Mapping[str, Any], data: str) -> str:
    """A recipe as a command on the folder MODEL, which holds the run and its key."""
    words = words_of({**options, **({"initial": "$MODEL"} if "orthogonalise" in options else {})})
    return f"sigil attack erase $MODEL --out thief --key $MODEL/{KEY} --data {data} {' '.join(words)}"


def show(measured: Measured, folder: Path) -> Page:
    """The figure, the price of each goal, what stands beside it, what confirms it, the best as commands."""
    draw(measured, folder / "frontier.png")
    known, made = tried(measured, TRIAL), list(recipes(measured))
    stopped, undercut = sum("stopped" in numbers for numbers in known), len(tried(measured, UNDERCUT))
    confirmed = [each.name for each in made if each.confirmed]
    others = f" and {undercut} attempts to undercut them" if undercut else ""
    thieves = (
        f"the mean and the range of {1 + len(AGAIN)} thieves who draw differently"
        if confirmed
        else "one seed"
    )
    prices: list[Row] = []
    commands: dict[str, list[str]] = {}
    for goal in GOALS:
        for kind in KEYS if known else ():
            found, what = best(measured, goal, kind), f"{goal}, {kind} key"
            reaching = str(sum(each.reaches(goal, kind) for each in made))
            if found is None:
                prices.append([what, reaching, Words("no recipe"), *[NOT_RUN] * 4])
                continue
            other = _lost(measured, found.name, PAPER)
            minutes = f"{found.seconds / 60:.1f}"
            by_all = f"{found.by_all:+.2f}"
            prices.append([what, reaching, found.name, _points(found.lost), by_all, _points(other), minutes])
            commands.setdefault(command(found.options, measured.data(NOTHING)), []).append(what)
    beside = [NOTHING, FINETUNING, STUDENT, *(f"own labels, {count} images" for count in OWN_LABELS)]
    attempts = {
        cell.name: f"{cell.name}: `{' '.join(words_of(cell.options))}`"
        for cell in measured.cells
        if is_a(UNDERCUT, cell)
    }
    blocks: list[str | Table | Picture] = [
        Picture("What is left of each proof over the accuracy that a recipe costs", "frontier.png"),
        Table(
            [
                *("goal", "models without proof", "cheapest recipe", "points lost", "by all images"),
                *(f"on the {PAPER}", "minutes"),
            ],
            prices,
            caption="The least accuracy for which nothing that the goal names is proven any more. It takes "
            "the images of one client and these minutes of one core.",
            notes=f"{len(known)} trials, of which {stopped} stopped early,{others} serve all goals: a model "
            "counts for each whose proofs are gone. Recipes are chosen by one half of the test images; the "
            f"points lost are those of the other half, {thieves}. Half of 10,000 images tell an accuracy to "
            "about half a point, a difference little better.",
        ),
        _table(measured, "What stands beside the search:", {name: name for name in beside}),
        _table(measured, "The recipes that were confirmed:", {name: name for name in confirmed}),
    ]
    for model in (PAPER, WEAKER, STRONGER):
        there = {name: name for name in (NOTHING, FINETUNING, *confirmed) if measured.first(on(model, name))}
        blocks.append(_table(measured, f"The same on the {model}:", there, model))
    blocks.append(_table(measured, "Attempts to undercut the search, by other ideas:", attempts))
    if commands:
        listed = "\n".join(f"- {'; '.join(goals)}: `{words}`" for words, goals in commands.items())
        look = f"sigil verify thief/client.safetensors --key $MODEL/{KEY} --inputs {measured.data(NOTHING)}"
        blocks.append(
            "## The best recipes\n\nEach takes a few minutes of one core, in the folder `reproduction` of a "
            "checkout, with as many images as one client has:\n\n"
            f"- `MODEL={(measured.first(NOTHING) or {}).get('model', '…')}`\n{listed}\n"
            f"- what is left: `{look}`"
        )
    return blocks


def _table(measured: Measured, caption: str, names: Mapping[str, str], model: str = "") -> Table:
    """What attacks on a model cost and leave; of several thieves the mean, and the strongest proof."""
    rows: list[Row] = []
    for name, words in names.items():
        left, lost = left_by(measured, name, model), _lost(measured, name, model)
        row: list[Any] = [words, Number.over([float(each["accuracy"]) for each in left]), _points(lost)]
        rates = [float(each["wsr"]) for each in left if "wsr" in each]
        row.append(Number(statistics.fmean(rates)) if rates else GAP if left else NOT_RUN)
        for proof, kind in PLACES:
            found = [corrected(each, proof, kind) for each in left if f"log10_p_{proof}" in each]
            row.append(Number(min(found)) if found else GAP if left else NOT_RUN)
        rows.append(row)
    columns = ["", "accuracy", "lost", "WSR"]
    columns += [f"{proof}, {kind} key" if kind else proof for proof, kind in PLACES]
    return Table(columns, rows, caption, notes=f"Corrected log10 p, proven at {LEVEL:.1f} or below.")


def _lost(measured: Measured, name: str, model: str = "") -> list[float]:
    """The points of accuracy that an attack on a model cost, once per seed of the thief."""
    before = measured.first(on(model, NOTHING))
    return [
        float(before["accuracy"]) - float(each["accuracy"])
        for each in left_by(measured, name, model)
        if before
    ]


def _points(lost: Sequence[float]) -> Entry:
    """The mean of the points lost, and their range."""
    if not lost:
        return NOT_RUN
    between = f" ({min(lost):+.1f} to {max(lost):+.1f})" if len(lost) > 1 else ""
    return Words(f"{statistics.fmean(lost):+.2f}{between}")


def draw(measured: Measured, path: Path) -> None:
    """One panel per proof and kind of key: corrected log10 p over the accuracy lost, one colour per goal."""
    figure, axes = figures.panels(len(PLACES), columns=3)
    made = list(recipes(measured))
    for axis, (proof, kind) in zip(axes, PLACES, strict=True):
        for goal, colour in zip(GOALS, figures.SERIES, strict=False):
            points = [
                (lost, corrected(numbers, proof, kind))
                for each in made
                if aim(each.options) == goal
                for lost, numbers in zip(each.lost, each.left, strict=True)
                if f"log10_p_{proof}" in numbers
            ]
            if points:
                axis.plot(
                    *zip(*points, strict=True),
                    "o",
                    color=colour,
                    markersize=4,
                    label=f"aimed at {WORDS[goal]}",
                )
        for name, marker in ((NOTHING, "k*"), (FINETUNING, "ks"), (STUDENT, "k^")):
            for lost, numbers in zip(_lost(measured, name), left_by(measured, name), strict=True):
                if f"log10_p_{proof}" in numbers:
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
        words = f"{found.price:+.2f}" if found else "no recipe does it" if done else "no recipe yet"
        # A search that has only begun can show that the price is lower, not that it is not.
        cheap = found is not None and found.price < 2
        findings.append(Finding(f"{text}: {words}.", False if cheap else True if done else None))
    # Would a longer or a stronger mark have held?
    found = best(measured, "both", "stamped")
    for model in (PAPER, WEAKER, STRONGER):
        after = measured.first(on(model, found.name)) if found else None
        lost = f": {_lost(measured, found.name, model)[0]:+.2f} points" if found and after else ""
        text = f"On the {model} the recipe that takes both leaves a proof with a stamped key{lost}."
        findings.append(Finding(text, None if after is None else not reached(after, "both", "stamped")))
    return findings


CAPTION = (
    "What it costs a thief who tunes well to be rid of the mark, of the origin, of both, and of its imprint "
    "too, found by a random search (ResNet-18, shares)."
)
EXPERIMENT = Experiment("frontier", CAPTION, cells, show, measure, verdict)
