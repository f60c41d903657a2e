"""What an experiment is: cells to measure, how to measure one, and how to show them all."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from sigil.errors import ExperimentError
from sigil.federation.run import Run
from sigil.pages import tables
from sigil.pages.tables import Number, Page
from sigil_reproduction.runner.intervals import (
    AGREES,
    DIFFERS,
    NOT_RUN,
    UNTESTABLE,
    Interval,
    equivalence,
    interval,
    judge,
    judge_equivalence,
    paired,
)
from sigil_reproduction.runner.reading import counts, of_mark
from sigil_reproduction.runner.scales import Scale, get
from sigil_reproduction.runner.store import Cell, Result, Store

Measure = Callable[[Cell, list[Run], Store], dict[str, Any]]
COSINES = "injection_cosine", "injection_cosine_abs"


@dataclass(frozen=True)
class Measured:
    """The cells of an experiment, and what was measured of them, by name and seed."""

    cells: Sequence[Cell]
    results: Mapping[tuple[str, int], Result]

    @cached_property
    def seed(self) -> int:
        """The first seed, whose curves are drawn."""
        return min((cell.seed for cell in self.cells), default=0)

    @property
    def names(self) -> list[str]:
        """The names of the cells, each once, in their order."""
        return list(dict.fromkeys(cell.name for cell in self.cells))

    @property
    def of_first_seed(self) -> list[Cell]:
        """The cells of the first seed: one for each name, where every seed has the same."""
        return [cell for cell in self.cells if cell.seed == self.seed]

    def options(self, option: str) -> list[Any]:
        """The values of an option of the cells, each once, in their order."""
        return list(dict.fromkeys(cell.options[option] for cell in self.cells if option in cell.options))

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
    Finding(text='WSR of at least 95 %: 99.5 (λ = 0.1).', agrees=True, untestable=False)
    """
    known = {name: number for name, number in measured.items() if number is not None}
    if not known:
        return Finding(f"{claim}: not measured.", None)
    named = ", ".join(f"{number:{form}} ({name})" for name, number in known.items())
    return Finding(f"{claim}: {named}.", all(map(rule, known.values())))


def listed(findings: Sequence[Finding]) -> str:
    """Findings as a Markdown list."""
    words = [f"**{one.word}**" if one.agrees is False else one.word for one in findings]
    return "\n".join(f"- {word}: {one.text}" for word, one in zip(words, findings, strict=True))


def _others_measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    raise ExperimentError(f"{cell.experiment} shows cells of other experiments and has none of its own.")


@dataclass(frozen=True)
class Claim:
    """One claim of the paper: what it says and its number, and the cell whose number it is held against.

    `number` is a name among the cell's numbers; with a stop in it, one inside another ("detector.share"); of
    several between bars the largest. It *agrees* where the whole interval over seeds keeps the limit
    `holds`, *differs* where none of it does, and *cannot be tested here* where it reaches past the limit.
    With `instead_of`, another cell of the experiment, the claim is about the difference, paired by seed; that
    there is none (no `holds`) takes two one-sided tests.
    """

    text: str
    cell: str
    holds: Callable[[float], bool] | None = None
    number: str = "wsr"
    paper: str = ""
    instead_of: str = ""
    form: str = ".1f"
    unit: str = "%"
    opens: bool = False  # whether it is one of those that open the report
    counted: bool = False  # the same for every seed

    def held(self, measured: Measured) -> Held:
        """Against the cells of a scale."""
        found = self._interval(measured)
        if self.cell not in {cell.name for cell in measured.cells}:
            verdict = UNTESTABLE
        else:
            verdict = judge_equivalence(found) if self.holds is None else judge(found, self.holds)
        exponents = measured.values(self.cell, "log10_p") if self.number == "wsr" else []
        return Held(self, found, verdict, max(exponents, default=None))

    def _interval(self, measured: Measured) -> Interval | None:
        if self.instead_of:
            after, before = (measured.by_seed(cell, self.number) for cell in (self.cell, self.instead_of))
            return paired(after, before)
        found = (_largest(row, self.number.split("|")) for row in measured.every(self.cell))
        return interval([value for value in found if value is not None])


def _largest(row: Mapping[str, Any], names: Sequence[str]) -> float | None:
    """The largest of the numbers with these names that there are; a detector without a score has none."""
    values: list[float] = []
    for name in names:
        *inside, number = name.split(".")
        place: Any = row
        for each in inside:
            place = place.get(each, {})
        if place.get(number) is not None and place.get("scores") != 0:
            values.append(float(place[number]))
    return max(values, default=None)


@dataclass(frozen=True)
class Held:
    """A claim held against the cells of a scale."""

    claim: Claim
    found: Interval | None
    verdict: str
    log10_p: float | None = None  # of a rate, before correction: the largest of the seeds

    @property
    def ours(self) -> str:
        """Our number in words."""
        if self.found is None:
            return NOT_RUN
        text = self.found.text(self.claim.form, self.claim.unit)
        if self.claim.counted:
            return text.removesuffix(", one seed")
        p = equivalence(self.found) if self.claim.holds is None else None
        return text if p is None else f"{text}; same: p = {p:.2g}"

    @property
    def word(self) -> str:
        """The verdict in words; one seed is said to be one."""
        alone = self.found is not None and self.found.half is None and not self.claim.counted
        word = f"{self.verdict}, one seed" if alone else self.verdict
        return f"**{word}**" if self.verdict in (DIFFERS, UNTESTABLE) else word

    @property
    def finding(self) -> Finding:
        """The same for the experiment's own page."""
        agrees = {AGREES: True, DIFFERS: False}.get(self.verdict)
        text = f"{self.claim.text}: {self.ours if self.found else 'not measured'}."
        return Finding(text, agrees, untestable=self.found is not None and agrees is None)


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper.

    `cells` lists what must be measured at a scale; some of them may be another experiment's own. `measure`
    turns the trainings of a cell of this experiment into numbers. `show` returns the page, and saves its
    figures in the given folder. `claims` are the paper's about single cells, and `verdict` holds what is said
    about several against them: agreement in shape, since reduced scales cannot agree in size.
    """

    name: str
    caption: str
    cells: Callable[[Scale, Sequence[int]], list[Cell]]
    show: Callable[[Measured, Path], Page]
    measure: Measure = _others_measure
    verdict: Callable[[Measured], list[Finding]] = lambda measured: []
    claims: Sequence[Claim] = ()

    def page(self, measured: Measured, folder: Path) -> Page:
        """What the experiment shows, without the rows and columns of which nothing was measured."""
        return tables.measured(self.show(measured, folder)) if measured.results else []

    def findings(self, measured: Measured, scale: Scale) -> list[Finding]:
        """The paper's claims against the cells that there are, at a scale that says anything about them."""
        known = [claim.held(measured).finding for claim in self.claims] + self.verdict(measured)
        return (
            []
            if not scale.judged
            else [finding for finding in known if finding.agrees is not None or finding.untestable]
        )

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
    rows = [row if _is_cosine(row) else row | dict.fromkeys(COSINES) for row in run.metrics]
    return {name: [row.get(name) for row in rows] for name in ("round", *names)}


def _is_cosine(row: Mapping[str, Any]) -> bool:
    """Whether a round's cosines are some: early trainings divided by a norm that had vanished."""
    return float(row.get(COSINES[1], 0.0)) <= 1.0


def final_numbers(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Accuracy and WSR (%) at the end of a training, its mean cosine, and its curves."""
    run = runs[-1]
    final = run.final
    numbers: dict[str, Any] = {"accuracy": 100 * final["accuracy"]}
    if "wsr" in final:
        cosines = [value for value in curves(run, *COSINES)[COSINES[0]] if value is not None]
        numbers["wsr"] = 100 * final["wsr"]
        numbers["log10_p"] = final.get("log10_p_before", final["log10_p"])
        numbers["cosine"] = sum(cosines) / len(cosines) if cosines else None
        key, dataset = store.key(run), store.dataset(run.settings)
        assert key is not None
        numbers |= counts(of_mark(run.halves()[0], key, dataset))
    numbers["curves"] = curves(
        run,
        "loss",
        "accuracy",
        "wsr",
        *COSINES,
        "injection_main_norm",
        "injection_watermark_norm",
        "injection_injected_norm",
    )
    return numbers
