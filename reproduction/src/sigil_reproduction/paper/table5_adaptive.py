"""Robustness against adaptive subspace removal (the paper's table 5): ResNet-18, three strengths.

The attacker is client 0. It recorded the gradients of its whole training, estimates the mark's directions
from an early window, and fine-tunes its model out of them on its own share of the data.

The paper's windows are the first R_wm of 80 rounds; here they are the same shares of the training, counted in
steps where they are shorter than a round. Two columns are not in the paper. *Fine-tuning only* is the same
training without the penalty: what the attack does to the mark beyond that is due to the directions it found.
*Averaging* uses one direction, the mean gradient of the first half of the training.

The paper says neither whether its principal components are centred, as in a textbook, nor with which
optimizer it fine-tunes, and both decide what the attack does. So a second table has both kinds of components,
with our fine-tuning and with the paper's, by Adam and by SGD, all on one model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sigil import attacks
from sigil.attacks.halves import Halves
from sigil.attacks.subspace import Subspace
from sigil.attacks.training import Optimizer
from sigil.errors import ExperimentError
from sigil.federation.precision import choose
from sigil.federation.recording import Recording
from sigil.federation.run import Run
from sigil.pages.tables import Entry, Page, Table
from sigil_reproduction.runner import attacked
from sigil_reproduction.runner import published as paper
from sigil_reproduction.runner.attacked import LARGEST, attackers_share, marks
from sigil_reproduction.runner.experiment import Claim, Experiment, Measured
from sigil_reproduction.runner.scales import STRENGTHS, PerScale, Scale
from sigil_reproduction.runner.store import Cell, Store

# The paper's windows, in rounds of 80, and when the late gradients begin.
WINDOWS = {f"R_wm {rounds}": rounds for rounds in (10, 5, 2, 1)}
PAPER_ROUNDS, LATE = 80, 70
CONTROL, AVERAGING = "fine-tuning only", "averaging"
# The same with a hundred times the penalty, for tables that look for the strongest attack.
HARDER = f"{AVERAGING}, γ = 100"
_GAMMA = {CONTROL: 0.0, HARDER: 100.0}
ATTACKS = ("none", CONTROL, *WINDOWS, AVERAGING)
PLAN = dict.fromkeys(reversed(STRENGTHS), ATTACKS)


@dataclass(frozen=True)
class Finetuning:
    """Epochs, rate and optimizer of the attack's fine-tuning."""

    epochs: int
    lr: float
    optimizer: Optimizer = "adam"


_OURS, _PAPERS, _PAPERS_SGD = Finetuning(10, 1e-3), Finetuning(100, 1e-4), Finetuning(100, 1e-4, "sgd")
_SECONDS = Finetuning(1, 1e-3)
FINETUNING = PerScale(_PAPERS, desk=_OURS, cpu=_OURS, smoke=_SECONDS)
# The second table: both kinds of components with each fine-tuning, after the paper's longest window.
FINETUNINGS = {
    "ours": PerScale(_OURS, smoke=_SECONDS),
    "paper, Adam": PerScale(_PAPERS, smoke=_SECONDS),
    "paper, SGD": PerScale(_PAPERS_SGD, smoke=_SECONDS),
}
COMPONENTS = {"no penalty": None, "centred PCA": True, "uncentred PCA": False}
VARIED = 0.1
BEFORE = "before the variants"
# The model that they are made on: the first seed's, unless its recording is from before it kept whole rounds.
VARIED_SEED: PerScale[int | None] = PerScale(None, desk=1)
VARIANTS = {f"{kind}, {tuning}": (kind, tuning) for kind in COMPONENTS for tuning in FINETUNINGS}


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Every window on every strength; the variants on one strength and with one seed."""
    varied = {VARIED: (BEFORE, *VARIANTS)}
    chosen = VARIED_SEED.at(scale)
    return attacked.cells("adaptive", scale, seeds, PLAN, record=scale.recording) + attacked.cells(
        "adaptive", scale, [min(seeds) if chosen is None else chosen], varied, record=scale.recording
    )


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Attack the run, then measure accuracy, the mark, and how much of the key's span was found."""
    return after_attack(runs[0], cell.options["attack"], store)


def after_attack(run: Run, attack: str, store: Store) -> dict[str, Any]:
    """The numbers of one variant of the attack on a run that has a recording."""
    halves, found = attack_run(run, attack, store)
    numbers = marks(halves, run, store)
    key = store.key(run)
    if found is not None and key is not None and _gamma(attack):
        numbers |= {
            "overlap": 100 * attacks.overlap(found.directions, key),
            "chance": 100 * found.directions.shape[1] / key.dimension,
            "early_gradients": found.early_rows,
        }
    return numbers


def attack_run(run: Run, attack: str, store: Store) -> tuple[Halves, Subspace | None]:
    """One variant of the attack on a run that has a recording: the attacked halves and what was found."""
    settings = run.settings
    halves = run.halves()
    if attack in ("none", BEFORE):
        return halves, None
    recording = Recording(run.folder / "recording")
    rounds = settings.federation.rounds
    window = WINDOWS.get(attack, 10)
    early = math.ceil(rounds * window / PAPER_ROUNDS)
    steps = math.ceil(_steps(recording, rounds, early) * window / PAPER_ROUNDS)
    late = rounds + 1 - math.ceil(rounds * LATE / PAPER_ROUNDS)  # where it was full before, the last it has
    tuning, centre = FINETUNING.at(store.scale), False
    if attack in VARIANTS:
        kind, name = VARIANTS[attack]
        centre, tuning = bool(COMPONENTS[kind]), FINETUNINGS[name].at(store.scale)
    averages = attack in (AVERAGING, HARDER)
    averaging: dict[str, Any] = {"unit": "window", "main_components": 0, "components": 1}
    # The paper's 64 and 64, but for the smallest cuts of the smoke scale, which have no more dimensions.
    components = min(64, math.prod(recording.shape) // 2)
    counts: dict[str, Any] = {"main_components": components, "components": components}
    return attacks.subspace(
        halves,
        recording,
        attackers_share(store.dataset(settings), settings),
        early_rounds=range(1, (max(1, rounds // 2) if averages else early) + 1),
        early_steps=None if averages else steps,
        late_rounds=recording.rounds[-late:],
        gamma=_gamma(attack),
        centre=centre,
        epochs=tuning.epochs,
        lr=tuning.lr,
        optimizer=tuning.optimizer,
        batch_size=settings.federation.batch_size,
        seed=settings.run.seed,
        precision=choose(settings.run.device, settings.run.precision),
        **averaging if averages else counts,
    )


def _steps(recording: Recording, rounds: int, early: int) -> int:
    """How many steps the window is a share of: those of the training, as far as they were recorded."""
    if not recording.partial or recording.full:
        return len(recording)
    if recording.whole_rounds < early:
        raise ExperimentError(
            f"The recording keeps {100 * recording.share:.0f} % of the first gradients, and an attacker has "
            f"all of them; train again with record.whole_rounds={early}."
        )
    return rounds * sum(1 for _ in recording.steps(rounds=[1], whole=True))


def _gamma(attack: str) -> float:
    """The weight of the attack's penalty."""
    if attack in VARIANTS and COMPONENTS[VARIANTS[attack][0]] is None:
        return 0.0
    return _GAMMA.get(attack, 1.0)


def show(measured: Measured, folder: Path) -> Page:
    """The table, ours with the paper's in brackets; p is the largest over the seeds."""
    rows = attacked.rows(measured, PLAN, ATTACKS, _published)
    return [
        Table(
            ["", *ATTACKS],
            rows,
            notes="Span: the share of the span of the secret matrix that the attacker found (by chance it is "
            f"{_chance(measured)}). Components are not centred. {LARGEST}",
        ),
        Table(
            ["components", "before", *FINETUNINGS],
            [[kind, *_variants(measured, kind)] for kind in COMPONENTS],
            caption=f"λ = {VARIED:g}, window R_wm 10, one model: textbook (centred) principal components and "
            "those that are not centred, which keep the mean gradient, with three kinds of fine-tuning: ours "
            "(10 epochs of Adam at 1e-3), and the paper's 100 epochs at 1e-4 by Adam and by SGD with the "
            "training's momentum and weight decay (the paper's numbers in brackets, wherever its attack may "
            "belong).",
            notes=_explained(measured),
        ),
    ]


def _variants(measured: Measured, kind: str) -> list[list[Entry]]:
    published = paper.numbers()["adaptive"][paper.key(VARIED)]
    theirs = {BEFORE: published["before"], **dict.fromkeys(_PAPERS_OWN, published["10"])}
    return [
        attacked.entries(measured, attacked.name_of(VARIED, name), theirs.get(name))
        for name in (BEFORE, *(f"{kind}, {tuning}" for tuning in FINETUNINGS))
    ]


# Points of WSR: what one model can show.
_CLEAR = 5.0
# What the paper's numbers may be those of.
_PAPERS_OWN = ("centred PCA, paper, Adam", "centred PCA, paper, SGD")


def _explained(measured: Measured) -> str:
    """What decides between the paper's numbers and ours, in the numbers of the same model."""
    alone, centred, uncentred = (
        measured.mean(attacked.name_of(VARIED, f"{kind}, ours"), "wsr") for kind in COMPONENTS
    )
    if alone is None or centred is None or uncentred is None:
        return ""
    numbers = (
        f"With equal fine-tuning (ours) no penalty leaves WSR {alone:.1f} %, centred components leave "
        f"{centred:.1f} % and uncentred ones {uncentred:.1f} %. "
    )
    if centred - uncentred < _CLEAR:
        return numbers + "Centring makes little difference here."
    return numbers + (
        "Centring subtracts the mean gradient, and the mark pushes every sample the same way, so that much "
        "of it is in that mean. A claim about textbook components says nothing about an attacker who does "
        "not centre."
    )


def _chance(measured: Measured) -> str:
    names = {cell.name for cell in measured.cells if cell.options["attack"] != AVERAGING}
    shares = {f"{chance:.1f} %" for name in names for chance in measured.values(name, "chance")}
    return ", ".join(sorted(shares)) or "not measured"


def _published(strength: float, attack: str) -> tuple[float, float] | None:
    column = {"none": "before"} | {name: str(window) for name, window in WINDOWS.items()}
    row = paper.numbers()["adaptive"][paper.key(strength)]
    return row[column[attack]] if attack in column else None


CAPTION = "Accuracy, WSR and p after the adaptive attack; the paper's numbers in brackets."


def _claim(what: str, strength: float, attack: str, window: str, *, opens: bool = False) -> Claim:
    """The paper says that this attack leaves λ = 0.1 and removes λ = 1."""
    words, sign = ("leaves", "≥") if strength < 1 else ("removes", "<")
    return Claim(
        f"The adaptive attack, {what}, {words} λ = {strength:g} (WSR {sign} 70 %)",
        attacked.name_of(strength, attack),
        (lambda wsr: wsr >= 70) if strength < 1 else (lambda wsr: wsr < 70),
        paper=f"{(_published(strength, window) or (0, 0))[1]:.1f} %",
        opens=opens,
    )


LONGEST = "R_wm 10"
CLAIMS = [
    *(
        _claim(f"textbook PCA, fine-tuning: {tuning}", VARIED, f"centred PCA, {tuning}", LONGEST, opens=opens)
        for tuning, opens in (("paper, Adam", True), ("ours", True), ("paper, SGD", False))
    ),
    *(
        _claim(f"uncentred, {window}", strength, window, window, opens=window == LONGEST)
        for strength in (VARIED, 1.0)
        for window in WINDOWS
    ),
]
EXPERIMENT = Experiment("adaptive", CAPTION, cells, show, measure, claims=CLAIMS)
