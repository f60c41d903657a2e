"""Prose about results whose numbers come from the cells, never from a keyboard.

``results/SCALE/README.md.jinja`` becomes ``README.md`` beside it, and ``results/summary.md.jinja`` becomes
part of another page, such as the project's README.md, between two marks. In a template

- ``{{ n(experiment, cell, number) }}`` is the mean over the seeds that were measured ("wsr" unless another
  number is named; one inside another is written "detector.share"), ``pm`` the same with ± their deviation,
- ``{{ seeds(experiment, cell) }}`` how many seeds of a cell were measured,
- ``{{ gained(model, strength) }}`` what marking gains in accuracy, paired by seed, with its interval,
- ``{{ lost(cell) }}`` how many points of accuracy an attack of `curves` or a named experiment cost,
- ``{{ cheapest("both").price }}`` the fewest points for which a recipe of `frontier` reaches a goal with a
  stamped key, None if none does; ``{{ cheap() }}`` what costs less than half a point, ``{{ tried() }}`` how
  many recipes were tried, ``{{ begun() }}`` whether the search has only begun,
- ``{{ largest(experiment, cell, number) }}`` the largest over seeds, of log10 p what proves least,
- ``{{ benchmark(name, claim) }}`` what ``benchmarks/results/NAME.json`` says of a claim,
- ``{{ level("plain") }}`` log10 p at which a plain or a stamped key is proof, before correction,
- ``{{ proven(experiment, cell, number, "plain") }}`` whether the largest log10 p is that low,
- ``{{ scale }}`` the scale's name.

What was not measured is "not run".
"""

from __future__ import annotations

import json
import math
import statistics
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, TemplateError

from sigil import files
from sigil.errors import ExperimentError
from sigil_reproduction.beyond import frontier
from sigil_reproduction.pages import claims
from sigil_reproduction.paper import table3_fidelity as fidelity
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.intervals import AGREES, MARGIN, NOT_RUN, UNTESTABLE, judge_equivalence
from sigil_reproduction.runner.reading import KEYS
from sigil_reproduction.runner.store import Store

NOTES, SUMMARY = "README.md.jinja", "summary.md.jinja"
FIGURES = "figures"
BEGIN, END = "<!-- results -->", "<!-- end of results -->"


class Numbers:
    """The numbers of a scale's cells, as a template asks for them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._measured = cache(self._read)

    def _read(self, experiment: str) -> Measured:
        return claims.measured_of(self._store, experiment)

    def values(self, experiment: str, cell: str, number: str) -> list[float]:
        """One number of a cell, for each seed that was measured."""
        measured = self._measured(experiment)
        if cell not in {one.name for one in measured.cells}:
            raise ExperimentError(f"There is no cell {cell!r} in {experiment}; correct the template.")
        rows: list[Any] = measured.every(cell)
        *inside, name = number.split(".")
        for outer in inside:
            if rows and not any(outer in row for row in rows):
                raise ExperimentError(f"{cell} of {experiment} has no {outer!r}; correct the template.")
            rows = [row[outer] for row in rows if outer in row]  # not every seed has every reading
        return [float(row[name]) for row in rows]

    def n(self, experiment: str, cell: str, number: str = "wsr", form: str = ".1f") -> str:
        """The mean over seeds."""
        found = self.values(experiment, cell, number)
        return format(statistics.fmean(found), form) if found else NOT_RUN

    def largest(self, experiment: str, cell: str, number: str, form: str = ".1f") -> str:
        """The largest over seeds; of exponents the one that proves least."""
        found = self.values(experiment, cell, number)
        return format(max(found), form) if found else NOT_RUN

    def proven(self, experiment: str, cell: str, number: str, key: str) -> str:
        """Whether log10 p, before correction, is proof with a "plain" or a "stamped" key, for every seed."""
        found = self.values(experiment, cell, number)
        if not found:
            return NOT_RUN
        return "yes" if max(found) <= KEYS[key].log10_level() else "**no**"

    def pm(self, experiment: str, cell: str, number: str = "wsr", form: str = ".1f") -> str:
        """The mean, with ± the standard deviation where there are several seeds."""
        found = self.values(experiment, cell, number)
        spread = f" ± {statistics.stdev(found):{form}}" if len(found) > 1 else ""
        return self.n(experiment, cell, number, form) + spread

    def gained(self, model: str, strength: float) -> str:
        """What marking gains in accuracy, with its interval."""
        found = fidelity.cost(self._measured("fidelity"), model, strength)
        if found is None:
            return NOT_RUN
        shown = {AGREES: "shown", UNTESTABLE: "not shown"}.get(judge_equivalence(found))
        same = f" ({shown} to be the same within {MARGIN:g} point)" if shown else ""
        return found.text("+.1f", "points") + same

    def lost(self, cell: str, experiment: str = "curves") -> str:
        """The points of accuracy that an attack cost, the mean over the seeds that have both."""
        self.values(experiment, cell, "accuracy")  # says which cell there is not
        measured = self._measured(experiment)
        nothing = f"{cell.partition(' ')[0]} none" if experiment == "curves" else frontier.NOTHING
        before = measured.by_seed(nothing, "accuracy")
        after = measured.by_seed(cell, "accuracy")
        costs = [before[seed] - found for seed, found in after.items() if seed in before]
        return f"{statistics.fmean(costs):.1f}" if costs else NOT_RUN

    def cheapest(self, goal: str) -> frontier.Recipe | None:
        """The recipe that costs least to be rid of all that a goal names, with a stamped key."""
        return frontier.best(self._measured("frontier"), goal, "stamped")

    def cheap(self) -> list[str]:
        """What the search takes for less than half a point over all test images, in words."""
        found = {words: self.cheapest(goal) for goal, words in frontier.WORDS.items()}
        return [words for words, one in found.items() if one and one.by_all < 0.5]

    def tried(self) -> int:
        """How many recipes were tried, by the search and by the attempts to undercut it."""
        measured = self._measured("frontier")
        return len(frontier.tried(measured, frontier.TRIAL)) + len(
            frontier.tried(measured, frontier.UNDERCUT)
        )

    def begun(self) -> bool:
        """Whether that search has not tried all that it is to try."""
        return not frontier.is_done(self._measured("frontier"))

    def benchmark(self, name: str, claim: str) -> float:
        """What a benchmark of the project measured for a claim; NaN where there are no benchmarks."""
        file = self._store.results.parents[2] / "benchmarks" / "results" / f"{name}.json"
        rows = json.loads(file.read_text("utf-8"))["claims"] if file.exists() else []
        return next((float(row["measured"]) for row in rows if row["claim"] == claim), math.nan)

    def seeds(self, experiment: str, cell: str) -> int:
        """How many seeds of a cell were measured."""
        return len(self._measured(experiment).every(cell))

    def level(self, key: str) -> str:
        """The largest log10 p, before correction, that proves something with a "plain" or a "stamped" key."""
        return f"{KEYS[key].log10_level():.1f}"


def render(template: str, store: Store) -> str:
    """A template's text with the numbers of a scale."""
    numbers = Numbers(store)
    names = [name for name in dir(numbers) if not name.startswith("_")]
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    try:
        text = environment.from_string(template).render(
            {name: getattr(numbers, name) for name in names} | {"scale": store.scale}
        )
    except (TemplateError, KeyError) as error:
        raise ExperimentError(f"A template of the results cannot be filled: {error}.") from error
    return text.replace(f"{NOT_RUN} %", NOT_RUN)


def write_notes(store: Store) -> None:
    """Fill ``README.md`` of a scale's results from the template beside it, if there is one."""
    template = store.results / NOTES
    if template.exists():
        text = render(template.read_text("utf-8"), store)
        # The template beside it says that the page is ours.
        files.write(store.results / "README.md", text, replace=True, raises=ExperimentError)


def check_summary(store: Store, page: Path) -> tuple[str, str]:
    """What lies before and behind the part of a page that the summary fills; an error if there is none."""
    template = store.results.parent / SUMMARY
    text = page.read_text("utf-8") if page.is_file() else ""
    if not template.exists() or text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ExperimentError(
            f"{page} needs one line {BEGIN} and one line {END} with the results between them, and "
            f"{template} must say what goes there."
        )
    before, rest = text.split(BEGIN)
    return before, rest.split(END)[1]


def write_summary(store: Store, page: Path) -> None:
    """Fill the part of a page between the two marks with the summary of a scale's results."""
    before, after = check_summary(store, page)
    filled = render((store.results.parent / SUMMARY).read_text("utf-8"), store).strip()
    files.write(page, f"{before}{BEGIN}\n{filled}\n{END}{after}", replace=True, raises=ExperimentError)
