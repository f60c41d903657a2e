"""What an experiment is: cells to measure, how to measure one, and how to show them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sigil.experiments.lab.scales import Scale
from sigil.experiments.lab.store import Cell, Result, Store
from sigil.federation.run import Run

Results = dict[tuple[str, int], Result]
Measure = Callable[[Cell, list[Run], Store], dict[str, Any]]


@dataclass(frozen=True)
class Finding:
    """One claim held against the cells: does it hold here? `agrees` is None where it was not measured."""

    text: str
    agrees: bool | None


def judge(
    claim: str, measured: Mapping[str, float | None], rule: Callable[[float], bool], form: str = ".1f"
) -> Finding:
    """A claim that must hold for each of these numbers, as far as they were measured.

    >>> judge("WSR of at least 95 %", {"λ = 0.1": 99.5, "λ = 1": None}, lambda wsr: wsr >= 95)
    Finding(text='WSR of at least 95 %: 99.5 (λ = 0.1); 1 not measured.', agrees=True)
    """
    known = {name: number for name, number in measured.items() if number is not None}
    if not known:
        return Finding(f"{claim}: not measured.", None)
    named = ", ".join(f"{number:{form}} ({name})" for name, number in known.items())
    missing = len(measured) - len(known)
    gap = f"; {missing} not measured" if missing else ""
    return Finding(f"{claim}: {named}{gap}.", all(rule(number) for number in known.values()))


def listed(findings: Sequence[Finding]) -> str:
    """Findings as a Markdown list."""
    words = {True: "agrees", False: "**differs**", None: "unknown"}
    return "\n".join(f"- {words[finding.agrees]}: {finding.text}" for finding in findings)


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper.

    `cells` lists what must be measured at a scale, `measure` turns the trainings of a cell into numbers,
    and `show` returns the table as Markdown and may draw figures into the given folder. `verdict` holds the
    paper's claims against the cells: agreement in shape, since reduced scales cannot agree in size.
    """

    name: str
    caption: str
    cells: Callable[[Scale, Sequence[int]], list[Cell]]
    measure: Measure
    show: Callable[[list[Cell], Results, Path], str]
    verdict: Callable[[list[Cell], Results], list[Finding]] = lambda cells, results: []


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
        numbers["log10_p"] = final["log10_p"]
        numbers["cosine"] = sum(cosines) / len(cosines) if cosines else None
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
