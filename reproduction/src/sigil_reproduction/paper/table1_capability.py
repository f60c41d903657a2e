"""Who can do what (the paper's table 1): what a server is given, and which mark it can embed with it.

Every cell is tried out; `sigil_reproduction.paper.table1_server_trials` holds the trials.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sigil.baselines import ParameterMark
from sigil.federation.run import Run
from sigil.pages.tables import MISSING, NOT_RUN, Answer, Entry, Page, Table, Words
from sigil_reproduction.paper.table1_server_trials import NO, NONE, PARTLY, YES, Trial, TrialResult
from sigil_reproduction.runner.experiment import Experiment, Finding, Measured
from sigil_reproduction.runner.scales import PerScale, Scale
from sigil_reproduction.runner.store import Cell, Store

FRAMEWORKS = {"FL": None, "SL / SFL": "sfl", "U-SL / U-SFL": "usfl"}
# The paper's table 1; it has no row for Sigil itself.
PAPER: dict[str, tuple[str, ...]] = {
    "client model access": (YES, NO, NO),
    "client labels access": (NO, YES, NO),
    "client data access": (NO, NO, NO),
    "parameter watermark": (YES, NO, NO),
    "backdoor watermark": (PARTLY, PARTLY, NO),
}
SIGIL = "Sigil"
SIZES = PerScale((160, 6), smoke=(32, 1))  # images and rounds of a trial
ACCESS = {
    "client model access": "parameters",
    "client labels access": "labels",
    "client data access": "images",
}


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Six rows, three frameworks; the same small trials at every scale but `smoke`."""
    return [
        Cell(
            experiment="capability",
            name=f"{row} {framework}",
            seed=seed,
            trainings=(),
            options={"row": row, "framework": framework},
        )
        for seed in seeds
        for row in (*PAPER, SIGIL)
        for framework in FRAMEWORKS
    ]


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Try it, and say what happened."""
    row, mode = cell.options["row"], FRAMEWORKS[cell.options["framework"]]
    images, rounds = SIZES.at(store.scale)
    trial = Trial(mode or "usfl", cell.seed, images=images, rounds=rounds)
    tries: dict[str, tuple[Callable[[], TrialResult], Callable[[], TrialResult]]] = {
        "parameter watermark": (
            trial.parameter_mark_in_fl,
            lambda: trial.mark_at_the_server(ParameterMark()),
        ),
        "backdoor watermark": (trial.backdoor_in_fl, trial.backdoor_at_the_server),
        SIGIL: (lambda: (NONE, "an FL server returns no gradient at a cut"), trial.sigil),
    }
    if row in ACCESS:
        answer, happened = trial.access(ACCESS[row], federated=mode is None)
    else:
        in_fl, at_the_server = tries[row]
        answer, happened = in_fl() if mode is None else at_the_server()
    return {"answer": answer, "happened": happened}


def show(measured: Measured, folder: Path) -> Page:
    """The paper's table with ours, and what happened in every trial."""
    rows, log = [], []
    for row in (*PAPER, SIGIL):
        theirs = PAPER.get(row, ("", "", ""))
        rows.append([row, *(_answer(measured, row, *each) for each in zip(FRAMEWORKS, theirs, strict=True))])
        for framework in FRAMEWORKS:
            happened = measured.every(f"{row} {framework}")
            log.append([f"{row}, {framework}", happened[0]["happened"] if happened else NOT_RUN])
    return [
        Table(
            ["the server can / the mark can be embedded", *FRAMEWORKS],
            rows,
            notes="The paper's answer in brackets. What was tried on embedded digits, and what happened:",
        ),
        Table(["trial", "what happened"], log),
    ]


def _answer(measured: Measured, row: str, framework: str, theirs: str) -> Entry:
    found = " / ".join(dict.fromkeys(answers(measured, row, framework)))
    return Words(found) if found == NONE else Answer(found or MISSING, theirs)


def answers(measured: Measured, row: str, framework: str) -> list[str]:
    """What came out in one place of the table, for every seed that was measured."""
    return [str(numbers["answer"]) for numbers in measured.every(f"{row} {framework}")]


def verdict(measured: Measured) -> list[Finding]:
    """The paper's fifteen answers, and that Sigil can be embedded where nothing else can."""
    differ, count = [], 0
    for row, theirs in PAPER.items():
        for framework, answer in zip(FRAMEWORKS, theirs, strict=True):
            ours = answers(measured, row, framework)
            count += bool(ours)
            if ours and set(ours) != {answer}:
                differ.append(f"{row} in {framework}")
    everything = len(PAPER) * len(FRAMEWORKS)
    sigil = answers(measured, SIGIL, "U-SL / U-SFL")
    return [
        Finding(
            f"The paper's {everything} answers: {count} were tried, "
            + ("and all come out the same." if not differ else f"and these differ: {', '.join(differ)}."),
            None if count < everything and not differ else not differ,
        ),
        Finding(
            "The server of U-SFL can embed Sigil's mark and neither of the others"
            + ("." if sigil else ": not measured."),
            set(sigil) == {YES} if sigil else None,
        ),
    ]


CAPTION = "What a server is given in each framework, and which watermark it can embed with it."
EXPERIMENT = Experiment("capability", CAPTION, cells, show, measure, verdict)
