"""The page of the experiment on tracing: leaks, innocents, and the claims held against them."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from sigil.pages.tables import NOT_RUN, Entry, Page, Row, Table, Words
from sigil.tracing.leak import LEVEL
from sigil_reproduction.beyond import tracing_attacks, tracing_closing
from sigil_reproduction.beyond.tracing_models import KINDS, MOMENTS
from sigil_reproduction.runner.experiment import Finding, Measured, check_claim

CLIENTS = 10


def show(measured: Measured, folder: Path) -> Page:
    """Leaks, innocents, attacks and the closing stage."""
    tasks = _tasks(measured)
    return [
        *tracing_attacks.show(measured, tasks),
        *(
            part
            for task in tasks
            for part in (
                f"## {task}: leaks",
                _leak_table(measured, task),
                f"## {task}: innocents",
                _innocent_table(measured, task),
            )
        ),
        *tracing_closing.show(measured, tasks),
    ]


def _tasks(measured: Measured) -> list[str]:
    return list(dict.fromkeys(str(cell.options["task"]) for cell in measured.cells))


def _rows(measured: Measured, task: str, kind: str) -> list[dict[str, Any]]:
    return [row for numbers in measured.every(f"{task} {kind} leaks") for row in numbers["rows"]]


def _leak_table(measured: Measured, task: str) -> Table:
    rows: list[Row] = []
    for kind in KINDS:
        found = _rows(measured, task, kind)
        for number in sorted({row["round"] for row in found}):
            places: list[Entry | list[Entry]] = []
            for moment in MOMENTS:
                here = [row for row in found if row["round"] == number and row["moment"] == moment]
                right = sum(row["named"] == row["client"] for row in here)
                wrong = sum(row["named"] not in (None, row["client"]) for row in here)
                first = sum(row["first"] for row in here)
                places.append([Words(f"{right} of {len(here)} named, {wrong} wrongly, {first} first")])
            rows.append([f"{kind}, round {number}", *places])
    if not rows:
        rows = [["leaks", NOT_RUN, NOT_RUN, NOT_RUN]]
    return Table(
        ["training", "after half an epoch", "after one epoch", "after all (two)"],
        rows,
        notes=(
            f"Local models of all clients, read on 256 test images; named at p ≤ {LEVEL:g} after the number "
            "of clients. *Wrongly*: another client was named. *First*: the right client heads the list, "
            "whether or not it is named."
        ),
    )


def _innocent_table(measured: Measured, task: str) -> Table:
    rows: list[Row] = []
    whats: dict[str, None] = {}
    every = {kind: measured.every(f"{task} {kind} innocents") for kind in KINDS}
    for found in every.values():
        for numbers in found:
            whats |= dict.fromkeys(numbers["counts"])
    for what in whats:
        places: list[Entry] = []
        for found in every.values():
            counts = [numbers["counts"][what] for numbers in found if what in numbers["counts"]]
            models, named, same = (
                sum(row[name] for row in counts) for name in ("models", "named", "called global")
            )
            places.append(Words(f"{named} of {models}, global {same}") if counts else NOT_RUN)
        rows.append([what, *places])
    for title, made, wrong in (
        ("all, times every client's share", "pairs", "pairs_named"),
        ("all, times drawn shares", "drawn_pairs", "drawn_named"),
    ):
        places = [
            Words(f"{sum(n[wrong] for n in found):,} of {sum(n[made] for n in found):,}")
            if found
            else NOT_RUN
            for found in every.values()
        ]
        rows.append([title, *places])
    return Table(
        ["the global model of each round", *(f"{kind} clients" for kind in KINDS)],
        rows or [["innocents", *[NOT_RUN] * len(KINDS)]],
        notes=(
            "Models of which a client was named, of all; *global*: called the global model. The last rows "
            f"count pairs of a model and a share with p ≤ {LEVEL:g} after the number of clients, so at most "
            f"{LEVEL:g} divided by the number of clients of them are expected: shares that clients had, with "
            "whatever makes clients differ, and shares drawn afterwards, which are nobody's."
        ),
    )


def verdict(measured: Measured) -> list[Finding]:
    """What tracing is for, held against the cells."""
    tasks = _tasks(measured)
    places = [(task, kind) for task in tasks for kind in KINDS]

    def rate(task: str, kind: str, moment: str, *, wrong: bool = False) -> float | None:
        found = [row for row in _rows(measured, task, kind) if row["moment"] == moment]
        named = [
            row["named"] not in (None, row["client"]) if wrong else row["named"] == row["client"]
            for row in found
        ]
        return 100 * statistics.fmean(named) if named else None

    innocents = [numbers for task, kind in places for numbers in measured.every(f"{task} {kind} innocents")]

    def share(made: str, wrong: str) -> float | None:
        total = sum(numbers[made] for numbers in innocents)
        return None if not total else CLIENTS * sum(numbers[wrong] for numbers in innocents) / total

    return [
        *(
            check_claim(
                f"A model leaked after {words} names its client in at least {least} % of leaks",
                {f"{task}, {kind}": rate(task, kind, moment) for task, kind in places},
                lambda x, least=least: x >= least,  # type: ignore[misc]
            )
            for moment, words, least in (("all", "all local epochs", 90), ("half", "half an epoch", 50))
        ),
        check_claim(
            "At most 1 % of leaks name another client (%)",
            {
                f"{task}, {kind}, {moment}": rate(task, kind, moment, wrong=True)
                for task, kind in places
                for moment in MOMENTS
            },
            lambda x: x <= 1,
        ),
        check_claim(
            f"Innocents are named no more often than the level, {LEVEL:g}",
            {
                "shares that clients had": share("pairs", "pairs_named"),
                "drawn shares": share("drawn_pairs", "drawn_named"),
            },
            lambda x: x <= LEVEL,
            ".5f",
        ),
    ]
