"""Proof, not only WSR: how long must a key be to survive the worst attacks? Strength 0.1, ResNet-18.

The exact test turns a success rate into a probability, and the length of the key decides what a rate is
worth. This table looks for the smallest number of bits that are still proof, as a plain key after all
corrections, when 80 % were pruned and after the adaptive attack.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sigil import attacks
from sigil.federation.run import Run
from sigil.pages.tables import NOT_RUN, Number, Page, Row, Table
from sigil_reproduction.paper import figure6_splitout as splitout
from sigil_reproduction.paper import table5_adaptive as adaptive
from sigil_reproduction.paper.ablations import PROOF_ATTACKS as ATTACKS
from sigil_reproduction.paper.ablations import PRUNING, attacked_lengths
from sigil_reproduction.runner.attacked import entries, marks
from sigil_reproduction.runner.experiment import Experiment, Finding, Measured, check_claim
from sigil_reproduction.runner.reading import KEYS
from sigil_reproduction.runner.scales import PROOF, Scale
from sigil_reproduction.runner.stealth import OUTLIERS
from sigil_reproduction.runner.store import Cell, Store

# The keys of experiments are plain.
PLAIN = KEYS["plain"]


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Every attack on every length, and what SplitOut sees of each."""
    lengths = PROOF.at(scale)
    watched = {splitout.name_of_length(bits) for bits in lengths}
    seen = [cell for cell in splitout.cells(scale, seeds) if cell.name in watched]
    return seen + attacked_lengths(scale, seeds, lengths)


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Attack the run and measure accuracy and the mark."""
    (run,) = runs
    attack = cell.options["attack"]
    if attack != PRUNING:
        return adaptive.after_attack(run, attack, store)
    pruned = attacks.prune(run.halves(), 0.8)
    return marks(pruned, run, store)


def show(measured: Measured, folder: Path) -> Page:
    """One row per length, one column per attack, and which lengths are proof after each."""
    lengths = sorted(measured.options("bits"))
    rows: list[Row] = [
        [
            str(bits),
            *(entries(measured, f"{bits} bits {attack}") for attack in ATTACKS),
            measured.number(splitout.name_of_length(bits), OUTLIERS),
        ]
        for bits in lengths
    ]
    proven = [[attack, _proving(measured, attack, lengths)] for attack in ATTACKS]
    return [
        Table(["bits", *ATTACKS, "SplitOut's outliers in 256"], rows),
        Table(["after", f"lengths that are proof (log10 p ≤ {PLAIN.log10_level():.1f})"], proven),
    ]


def _proving(measured: Measured, attack: str, lengths: list[int]) -> str | Number:
    found = {bits: measured.values(f"{bits} bits {attack}", "log10_p") for bits in lengths}
    if not any(found.values()):
        return NOT_RUN
    proven = [str(bits) for bits, p in found.items() if p and PLAIN.proves(max(p))]
    # One length alone is a number.
    return Number(int(proven[0]), form="d") if len(proven) == 1 else ", ".join(proven) or "none of them"


def verdict(measured: Measured) -> list[Finding]:
    """Which lengths are proof to begin with, and after every attack; and that they all embed."""

    def worst(bits: int, *attacks: str) -> float | None:
        found = [measured.values(f"{bits} bits {attack}", "log10_p") for attack in attacks]
        return max(map(max, found)) if all(found) else None

    lengths = sorted(measured.options("bits"))
    return [
        check_claim(
            "Every length is proof before an attack (largest log10 p)",
            {f"{bits} bits": worst(bits, "none") for bits in lengths},
            PLAIN.proves,
        ),
        *(
            check_claim(
                f"{bits} bits are proof after every attack (largest log10 p)",
                {"worst": worst(bits, *ATTACKS)},
                PLAIN.proves,
            )
            for bits in lengths
        ),
    ]


CAPTION = "What remains of keys of several lengths after pruning and the adaptive attack, strength 0.1."
EXPERIMENT = Experiment("proof", CAPTION, cells, show, measure, verdict)
