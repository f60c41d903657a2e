"""What an experiment is: cells to measure, how to measure one, and how to show them all."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from sigil import attacks
from sigil.errors import ExperimentError
from sigil.federation.run import Run
from sigil.pages import tables
from sigil.pages.tables import Number, Page
from sigil_reproduction.runner.intervals import AGREES, DIFFERS, UNTESTABLE, Interval, judge_equivalence
from sigil_reproduction.runner.reading import counts
from sigil_reproduction.runner.scales import Scale, get
from sigil_reproduction.runner.store import Cell, Result, Store

T = TypeVar("T")
Measure = Callable[[Cell, list[Run], Store], dict[str, Any]]


@dataclass(frozen=True)
class Measured:
    """The cells of an experiment, and what was measured of them, by name and seed."""

    cells: Sequence[Cell]
    results: Mapping[tuple[str, int], Result]

    @cached_property
    def seed(self) -> int:
        """The first seed, whose curves are drawn."""
        return min((cell.seed for cell in self.cells), default=0)

    def data(self, name: str) -> str:
        """The data set that a cell's training learns, by the name that the settings have for it."""
        return next(cell.trainings[0].data.name for cell in self.cells if cell.name == name)

    def first(self, name: str) -> dict[str, Any] | None:
        """All numbers of a cell for the first seed, if it was measured."""
        result = self.results.get((name, self.seed))
        return None if result is None else result.numbers

    def every(self, name: str) -> list[dict[str, Any]]:
        """All numbers of a cell, for each seed that was measured."""
        found = (self.results.get((cell.name, cell.seed)) for cell in self.cells if cell.name == name)
        return [result.numbers for result in found if result is not None]

    def by_seed(self, name: str, number: str) -> dict[int, float]:
        """One number of a cell, by the seeds that were measured."""
        rows = {
            cell.seed: self.results[name, cell.seed].numbers
            for cell in self.cells
            if cell.name == name and (name, cell.seed) in self.results
        }
        return {seed: float(row[number]) for seed, row in rows.items() if row.get(number) is not None}

    def values(self, name: str, number: str) -> list[float]:
        """One number of a cell, for each seed that was measured."""
        return list(self.by_seed(name, number).values())

    def mean(self, name: str, number: str) -> float | None:
        """The mean of one number over the seeds that were measured, if there are any."""
        values = self.values(name, number)
        return statistics.fmean(values) if values else None

    def number(
        self,
        name: str,
        number: str,
        quantity: str = "",
        form: str = ".1f",
        *,
        unit: str = "",
        paper: float | None = None,
        paper_form: str = "",
    ) -> Number:
        """One number of a cell as an entry of a table, beside the paper's."""
        found = Number.over(self.values(name, number), quantity, form, unit)
        return replace(found, paper=paper, paper_form=paper_form)


def difference(after: float | None, before: float | None) -> float | None:
    """How much more it became, if both were measured."""
    return None if after is None or before is None else after - before


@dataclass(frozen=True)
class Finding:
    """One claim held against the cells: does it hold here?

    `agrees` is None where it was not measured, and where it was and `untestable` says that the measurement
    does not decide.
    """

    text: str
    agrees: bool | None
    untestable: bool = False

    @property
    def word(self) -> str:
        """The verdict in words."""
        if self.agrees is None:
            return UNTESTABLE if self.untestable else "not measured"
        return AGREES if self.agrees else DIFFERS


def check_claim(
    claim: str, measured: Mapping[str, float | None], rule: Callable[[float], bool], form: str = ".1f"
) -> Finding:
    """A claim that must hold for each of these numbers, as far as they were measured.

    >>> check_claim("WSR of at least 95 %", {"λ = 0.1": 99.5, "λ = 1": None}, lambda wsr: wsr >= 95)
    Finding(text='WSR of at least 95 %: 99.5 (λ = 0.1); 1 not measured.', agrees=True, untestable=False)
    """
    return _check(
        claim, measured, lambda number: f"{number:{form}}", lambda n: AGREES if rule(n) else DIFFERS
    )


def check_equivalence(claim: str, measured: Mapping[str, Interval | None]) -> Finding:
    """A claim that there is no difference, which two one-sided tests must show for each of these."""
    return _check(claim, measured, lambda found: found.text("+.1f"), judge_equivalence)


def _check(
    claim: str,
    measured: Mapping[str, T | None],
    text: Callable[[T], str],
    verdict: Callable[[T], str],
) -> Finding:
    known = {name: found for name, found in measured.items() if found is not None}
    if not known:
        return Finding(f"{claim}: not measured.", None)
    missing = len(measured) - len(known)
    gap = f"; {missing} not measured" if missing else ""
    words = {verdict(found) for found in known.values()}
    agrees = False if DIFFERS in words else None if UNTESTABLE in words else True
    named = ", ".join(f"{text(found)} ({name})" for name, found in known.items())
    return Finding(f"{claim}: {named}{gap}.", agrees, untestable=agrees is None)


def listed(findings: Sequence[Finding]) -> str:
    """Findings as a Markdown list."""
    words = [f"**{one.word}**" if one.agrees is False else one.word for one in findings]
    return "\n".join(f"- {word}: {one.text}" for word, one in zip(words, findings, strict=True))


def _others_measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    raise ExperimentError(f"{cell.experiment} shows cells of other experiments and has none of its own.")


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper.

    `cells` lists what must be measured at a scale; some of them may be another experiment's own. `measure`
    turns the trainings of a cell of this experiment into numbers. `show` returns the page, and saves its
    figures in the given folder. `verdict` holds the paper's claims against the cells: agreement in shape,
    since reduced scales cannot agree in size.
    """

    name: str
    caption: str
    cells: Callable[[Scale, Sequence[int]], list[Cell]]
    show: Callable[[Measured, Path], Page]
    measure: Measure = _others_measure
    verdict: Callable[[Measured], list[Finding]] = lambda measured: []

    def page(self, measured: Measured, folder: Path) -> Page:
        """What the experiment shows, without the rows and columns of which nothing was measured."""
        return tables.measured(self.show(measured, folder)) if measured.results else []

    def findings(self, measured: Measured, scale: Scale) -> list[Finding]:
        """The paper's claims against the cells that there are, at a scale that says anything about them."""
        known = self.verdict(measured) if scale.judged else []
        return [finding for finding in known if finding.agrees is not None or finding.untestable]

    def seeds(self, store: Store, asked: Sequence[int] = ()) -> list[int]:
        """The seeds of a page: those asked for, and those of which anything was measured; 0 at least.

        Where a page shows cells of other experiments too, its own decide. Cells of other seeds that the
        first seed asks for (a detector is held against several honest servers) make no seed of their own.
        """
        first = self._deciding(store, 0)
        measured = {
            seed
            for seed in set[int]().union(*(store.seeds(experiment) for experiment, _ in first))
            for place, cell in self._deciding(store, seed).items()
            if store.has(cell) and (not seed or place not in first)
        }
        return sorted(measured.union(asked)) or [0]

    def _deciding(self, store: Store, seed: int) -> dict[tuple[str, str], Cell]:
        """The cells of a seed, by their places: the experiment's own, or all if it has none."""
        cells = self.cells(get(store.scale), [seed])
        own = [cell for cell in cells if cell.experiment == self.name] or cells
        return {(cell.experiment, cell.file): cell for cell in own}


def curves(run: Run, *names: str) -> dict[str, list[Any]]:
    """The given metrics of a run, round by round (None where a round was not evaluated)."""
    return {name: [row.get(name) for row in run.metrics] for name in ("round", *names)}


def final_numbers(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Accuracy and WSR (%) at the end of a training, its mean cosine, and its curves."""
    run = runs[-1]
    final = run.final
    numbers: dict[str, Any] = {"accuracy": 100 * final["accuracy"]}
    if "wsr" in final:
        cosines = [row["injection_cosine"] for row in run.metrics if "injection_cosine" in row]
        numbers["wsr"] = 100 * final["wsr"]
        numbers["log10_p"] = final.get("log10_p_before", final["log10_p"])
        numbers["cosine"] = sum(cosines) / len(cosines) if cosines else None
        key, dataset = store.key(run), store.dataset(run.settings)
        report = attacks.measure(run.halves()[0], data=dataset, key=key).report
        assert report is not None
        numbers |= counts(report.readings)
    numbers["curves"] = curves(
        run,
        "loss",
        "accuracy",
        "wsr",
        "injection_cosine",
        "injection_cosine_abs",
        "injection_main_norm",
        "injection_watermark_norm",
        "injection_injected_norm",
    )
    return numbers
