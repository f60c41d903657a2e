"""The paper's claims in one table: its number, ours with an interval over seeds, and what follows.

A claim is a limit that one number of a cell must keep. It *agrees* where the whole interval does, *differs*
where none of it does, and *cannot be tested here* where the interval reaches past the limit. That a mark
costs nothing takes two one-sided tests, which must show that accuracy is the same within a point.
What keeps the paper's limit is not proof yet, so each rate stands beside what the rules of proof make of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sigil.pages.tables import Page, Row, Table, Words
from sigil.rules import PLAIN_ALLOWANCE_LOG2, STAMPED_ALLOWANCE_LOG2, Price
from sigil_reproduction import registry
from sigil_reproduction.paper import figure5_scrutinizer as scrutinizer
from sigil_reproduction.runner import intervals, scales
from sigil_reproduction.runner import published as paper
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.intervals import Interval
from sigil_reproduction.runner.stealth import OUTLIERS
from sigil_reproduction.runner.store import Cell, Store

PLAIN, STAMPED = Price(PLAIN_ALLOWANCE_LOG2), Price(STAMPED_ALLOWANCE_LOG2)
KEYS = {"plain": PLAIN, "stamped": STAMPED}
# Over batches taken together, and over a sample of the whole training where not all of it was recorded.
SCRUTINIZER = f"{scrutinizer.NAME}.suspicious|{scrutinizer.SPARSE}.suspicious"


@dataclass(frozen=True)
class Claim:
    """One claim: what the paper says and its number, and the cell and number that it is held against.

    `number` is a name among the cell's numbers; with a stop in it, one inside another ("detector.share");
    of several between bars the largest.
    `instead_of` is a cell of the same experiment: the claim is then about the difference, paired by seed.
    """

    text: str
    paper: str
    experiment: str
    cell: str
    holds: Callable[[float], bool]
    number: str = "wsr"
    instead_of: str = ""
    form: str = ".1f"
    unit: str = "%"
    counted: bool = False  # the same for every seed


@dataclass(frozen=True)
class Held:
    """A claim held against the cells of a scale."""

    claim: Claim
    found: Interval | None
    verdict: str
    planned: bool = True  # whether the scale has the cell at all
    log10_p: float | None = None  # of a rate, before correction: the largest of the seeds

    @property
    def ours(self) -> str:
        """Our number in words."""
        if not self.planned:
            return "no such cell"
        if self.found is None:
            return intervals.NOT_RUN
        p = intervals.equivalence(self.found) if self.claim.instead_of else None
        text = self.found.text(self.claim.form, self.claim.unit)
        if self.claim.counted:
            return text.removesuffix(", one seed")
        return text if p is None else f"{text}; same: p = {p:.2g}"

    @property
    def word(self) -> str:
        """The verdict in words; one seed is said to be one."""
        alone = self.found is not None and self.found.half is None and not self.claim.counted
        word = f"{self.verdict}, one seed" if alone else self.verdict
        return f"**{word}**" if self.verdict in (intervals.DIFFERS, intervals.UNTESTABLE) else word

    @property
    def proof(self) -> str:
        """What the rules of proof make of the reading: the largest p-value of the seeds, corrected."""
        if self.log10_p is None:
            return ""
        if PLAIN.proves(self.log10_p):
            return f"yes (10^{self.log10_p:.1f})"
        if STAMPED.proves(self.log10_p):
            return f"with a stamped key (10^{self.log10_p:.1f})"
        return f"no (10^{self.log10_p:.1f})"


def at_least(limit: float) -> Callable[[float], bool]:
    """A number may not be smaller."""
    return lambda value: value >= limit


def at_most(limit: float) -> Callable[[float], bool]:
    """A number may not be larger."""
    return lambda value: value <= limit


def claims() -> list[Claim]:
    """The paper's claims, in its order; ResNet-18, λ = 0.1 and 50 bits unless they say otherwise."""
    numbers = paper.numbers()
    removed = {
        (row["attack"], row.get("steps", row.get("ratio", row.get("format")))): row["sigil"]["0.1"][1]
        for row in numbers["removal"]
    }
    adaptive = {strength: numbers["adaptive"][strength]["10"][1] for strength in ("0.1", "1.0")}

    def cost(model: str, name: str) -> Claim:
        marked, clean = (paper.fidelity(model, each) or {} for each in (0.1, 0.0))
        return Claim(
            f"Marking leaves accuracy as it is, {name} (within {intervals.MARGIN:g} point)",
            f"{marked['accuracy'] - clean['accuracy']:+.1f}",
            "fidelity",
            f"{model} strength 0.1",
            lambda points: abs(points) <= intervals.MARGIN,
            "accuracy",
            instead_of=f"{model} clean",
            form="+.1f",
            unit="points",
        )

    def embedded(strength: float) -> Claim:
        theirs = (paper.fidelity("resnet18", strength) or {})["wsr"]
        return Claim(
            f"The mark embeds at λ = {strength:g} (WSR ≥ 95 %)",
            f"{theirs:.1f} %",
            "fidelity",
            f"resnet18 strength {strength:g}",
            at_least(95),
        )

    def left(attack: str, cell: str, theirs: float, limit: float) -> Claim:
        text = f"{attack} leaves the mark (WSR ≥ {limit:g} %)"
        return Claim(text, f"{theirs:.1f} %", "removal", f"λ = 0.1 {cell}", at_least(limit))

    def after_adaptive(what: str, cell: str, strength: str = "0.1", *, stays: bool = True) -> Claim:
        words, sign = ("leaves", "≥") if stays else ("removes", "<")
        return Claim(
            f"The adaptive attack, {what}, {words} λ = {float(strength):g} (WSR {sign} 70 %)",
            f"{adaptive[strength]:.1f} %",
            "adaptive",
            cell,
            at_least(70) if stays else lambda wsr: wsr < 70,
        )

    def varied(text: str, experiment: str, table: str, row: str) -> Claim:
        theirs = (paper.pair(table, row, 0.1) or {})["wsr"]
        return Claim(
            f"{text} (WSR ≥ 95 %)", f"{theirs:.1f} %", experiment, f"{row} strength 0.1", at_least(95)
        )

    return [
        cost("resnet18", "ResNet-18"),
        cost("vgg11", "VGG11"),
        *(embedded(strength) for strength in (1.0, 0.1, 0.01)),
        Claim(
            "Watermark and task gradient are orthogonal (cosine within ±0.01)",
            f"{(paper.fidelity('resnet18', 0.1) or {})['cosine']:.0e}",
            "fidelity",
            "resnet18 strength 0.1",
            lambda cosine: abs(cosine) < 0.01,
            "cosine",
            form=".0e",
            unit="",
        ),
        Claim(
            "Gradient Scrutinizer at layer4 never calls it an attack (0 % of scores)",
            "0 %",
            "scrutinizer",
            "layer4 strength 0.1",
            at_most(0),
            SCRUTINIZER,
        ),
        Claim(
            "Gradient Scrutinizer at layer3 calls an honest server an attack",
            "yes",
            "scrutinizer",
            "layer3 honest",
            lambda share: share > 0,
            SCRUTINIZER,
            unit="% of scores",
        ),
        Claim(
            "SplitOut at layer3 counts as few outliers as for an honest server (≤ 15 in 256)",
            f"{numbers['ablation_length']['50']['splitout']:.0f}",
            "splitout",
            "layer3 strength 0.1",
            at_most(15),
            OUTLIERS,
            unit="",
        ),
        Claim(
            "Noise of 100 times the gradient's power leaves the mark (WSR ≥ 95 %)",
            f"{numbers['noise']['points_given_in_text']['wsr']['0.1']['1/100']:.1f} %",
            "noise",
            "SNR 1/100 strength 0.1",
            at_least(95),
        ),
        left("Fine-tuning (100 steps)", "finetune 100", removed["finetune", 100], 95),
        left("INT4", "INT4", removed["quantize", "int4"], 95),
        left("Pruning 80 %", "prune 80 %", removed["prune", 0.8], 70),
        after_adaptive("textbook PCA", "strength 0.1 centred PCA, paper, Adam"),
        after_adaptive("textbook PCA, our fine-tuning", "strength 0.1 centred PCA, ours"),
        after_adaptive("uncentred", "strength 0.1 R_wm 10"),
        after_adaptive("uncentred", "strength 1 R_wm 10", "1.0", stays=False),
        Claim(
            "The mark embeds at every cut: layer1 (WSR ≥ 95 %)",
            f"{numbers['ablation_split']['layer1']['none'][1]:.1f} %",
            "split-point",
            "layer1 none",
            at_least(95),
        ),
        varied("50 clients carry it", "clients", "clients", "50"),
        varied("Skewed classes carry it (Dirichlet 0.1)", "non-iid", "noniid_dirichlet", "0.1"),
        varied("Unequal clients carry it (log-normal 2)", "unbalanced", "unbalanced_lognormal", "2.0"),
        Claim(
            "Distillation into a fresh model removes it (WSR < 70 %)",
            "no number",
            "extraction",
            "strength 0.1 own share",
            lambda wsr: wsr < 70,
        ),
        Claim(
            "The server's extra arithmetic with 50 bits (at most 0.2 %), of the client half's step",
            f"{numbers['efficiency']['50']['extra_compute_percent']} %",
            "efficiency",
            "k = 50",
            at_most(0.2),
            "of_client",
            form=".2f",
            counted=True,
        ),
        Claim(
            "The same of the server half's own step (at most 0.2 %)",
            f"{numbers['efficiency']['50']['extra_compute_percent']} %",
            "efficiency",
            "k = 50",
            at_most(0.2),
            "of_server",
            form=".2f",
            counted=True,
        ),
    ]


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
    """Every claim against the cells of a scale."""
    found, read = [], cache(measured_of)
    for claim in claims():
        measured = read(store, claim.experiment)
        number = _interval(claim, measured)
        verdict = (
            intervals.judge_equivalence(number) if claim.instead_of else intervals.judge(number, claim.holds)
        )
        planned = claim.cell in {cell.name for cell in measured.cells}
        exponents = measured.values(claim.cell, "log10_p") if claim.number == "wsr" else []
        largest = max(exponents, default=None)
        found.append(Held(claim, number, verdict if planned else intervals.UNTESTABLE, planned, largest))
    return found


def _interval(claim: Claim, measured: Measured) -> Interval | None:
    if claim.instead_of:
        cells = claim.cell, claim.instead_of
        after, before = (measured.by_seed(cell, claim.number) for cell in cells)
        return intervals.paired(after, before)
    rows: list[Any] = measured.every(claim.cell)
    found = (_largest(row, claim.number.split("|")) for row in rows)
    return intervals.interval([value for value in found if value is not None])


def _largest(row: Mapping[str, Any], names: Sequence[str]) -> float | None:
    """The largest of the numbers with these names that there are."""
    values: list[float] = []
    for name in names:
        *inside, number = name.split(".")
        place: Any = row
        for each in inside:
            place = place.get(each, {})
        if place.get(number) is not None:
            values.append(float(place[number]))
    return max(values, default=None)


def page(store: Store) -> Page:
    """The table that opens the report; a sentence where the scale says nothing about the claims."""
    if not scales.get(store.scale).judged:
        return [scales.NOT_JUDGED]
    home = home_of(store)
    known = {one.claim.text for one in held(home) if one.found is not None} if home is not None else set()
    here = [one for one in held(store) if one.claim.text not in known]
    rows: list[Row] = [
        [one.claim.text, *map(Words, (one.claim.paper, one.ours, one.word, one.proof))]
        for one in here
        if one.found is not None
    ]
    missing = [one.claim.text for one in here if one.found is None]
    parts: list[str | Table] = []
    if rows:
        parts.append(Table(["claim", "paper", "ours", "verdict", "proof (p)"], rows, notes=NOTES))
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
