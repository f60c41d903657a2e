"""The paper's claims in one table: its number, ours with an interval over seeds, and what follows.

Each claim is its experiment's (:class:`sigil_reproduction.runner.experiment.Claim`); here are those that open
the report. What keeps the paper's limit is not proof yet, so each rate stands beside what the rules of proof
make of it.
"""

from __future__ import annotations

import math

from sigil.pages.tables import Page, Row, Table, Words
from sigil_reproduction import registry
from sigil_reproduction.runner import scales
from sigil_reproduction.runner.experiment import Held, Measured
from sigil_reproduction.runner.reading import KEYS
from sigil_reproduction.runner.store import Cell, Store

PLAIN, STAMPED = KEYS["plain"], KEYS["stamped"]


def cells_of(store: Store, name: str) -> list[Cell]:
    """The cells of an experiment at the store's scale, with all of its seeds."""
    experiment = registry.get(name)
    return experiment.cells(scales.get(store.scale), experiment.seeds(store))


def measured_of(store: Store, name: str) -> Measured:
    """What was measured of them."""
    cells = cells_of(store, name)
    return Measured(cells, store.results_of(cells))


def is_measured(store: Store, name: str) -> bool:
    """Whether anything was measured of an experiment's own cells, or of all if it has none."""
    cells = cells_of(store, name)
    return any(map(store.has, [cell for cell in cells if cell.experiment == name] or cells))


def home_of(store: Store) -> Store | None:
    """Where a reader finds the same results at the scale that counts, if this is the quick one."""
    if store.scale != "cpu":
        return None
    return Store("desk", results=store.results.parent, runs=store.runs.parent)


def held(store: Store) -> list[Held]:
    """Every claim that opens the report against the cells of a scale."""
    found = []
    for name, experiment in registry.EXPERIMENTS.items():
        opening = [claim for claim in experiment.claims if claim.opens]
        measured = measured_of(store, name) if opening else None
        found += [claim.held(measured) for claim in opening if measured is not None]
    return found


def proof(held: Held) -> str:
    """What the rules of proof make of a reading: the largest p-value of the seeds, corrected."""
    if held.log10_p is None:
        return ""
    p = f"(10^{held.log10_p:z.1f})"
    if PLAIN.proves(held.log10_p):
        return f"yes {p}"
    return f"with a stamped key {p}" if STAMPED.proves(held.log10_p) else f"no {p}"


def page(store: Store) -> Page:
    """The table that opens the report; a sentence where the scale says nothing about the claims."""
    if not scales.get(store.scale).judged:
        return [scales.NOT_JUDGED]
    home = home_of(store)
    known = {one.claim.text for one in held(home) if one.found is not None} if home is not None else set()
    here = [one for one in held(store) if one.claim.text not in known]
    rows: list[Row] = [
        [one.claim.text, *map(Words, (one.claim.paper, one.ours, one.word, proof(one)))]
        for one in here
        if one.found is not None
    ]
    missing = [one.claim.text for one in here if one.found is None]
    parts: list[str | Table] = []
    if rows:
        parts.append(
            Table(["claim", "paper", "ours", "verdict", "proof (p before correction)"], rows, notes=NOTES)
        )
    if missing and home is None:
        parts.append(f"Not measured yet: {'; '.join(missing)}. The last line of this page has the command.")
    return parts


def _of_bits() -> str:
    """What the paper's number of bits can prove, by the rules."""
    bits = scales.PAPER_BITS
    return (
        f"**{bits} bits prove nothing with a plain key**: all of them right have p = "
        f"10^{-bits * math.log10(2):.1f}, and after all corrections it needs 10^{PLAIN.log10_level():.1f}, "
        f"at least {PLAIN.shortest_bits()} bits. A stamped key needs 10^{STAMPED.log10_level():.1f}, at "
        f"least {STAMPED.shortest_bits()} bits without a mistake."
    )


NOTES = (
    "Ours: the mean, its 95 % interval by Student's t in square brackets, the number of seeds. A claim "
    "agrees where the whole interval keeps the limit in its brackets and differs where none of it does. What "
    "a mark costs is paired by seed, and agrees where two one-sided tests at 5 % show less than a point. "
    "Gradient Scrutinizer is read in the first rounds and, where the rest was sampled, over the whole "
    "training; the reading with more alarms counts. ResNet-18 on CIFAR-10, λ = 0.1, 50 bits unless a claim "
    f"says otherwise. WSR ≥ 70 % is the paper's rule. Proof is another matter: {_of_bits()}"
)
