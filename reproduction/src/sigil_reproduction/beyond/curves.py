"""What each attack leaves over the accuracy that it costs: one curve per attack, both proofs.

This is not in the paper. A single setting of an attack can be too weak to hurt the mark or so strong that the
model is worth nothing. Here each attack is tried at several strengths, and at the strongest for longer; every
point of its curve is a model that the thief could have. The thief is client 0 with its own images, the
gradients that it was sent and the initial weights. Attacked are the paper's mark (λ = 0.1, 50 bits) and the
scheme that a new training takes (`shares`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from sigil.attacks.halves import Halves
from sigil.federation.run import Run
from sigil.pages import figures
from sigil.pages.tables import NOT_RUN, Number, Page, Picture, Row, Table, Words
from sigil.rules import Price
from sigil_reproduction.beyond.thief import READINGS, Thief
from sigil_reproduction.runner.experiment import Experiment, Finding, Measured
from sigil_reproduction.runner.reading import KEYS
from sigil_reproduction.runner.scales import PerScale, Scale, shares
from sigil_reproduction.runner.store import Cell, Store


@dataclass(frozen=True)
class Sweep:
    """An attack as a function of its strength, and the strengths that are tried, the weakest first."""

    attack: Callable[[Thief, float], Halves]
    quantity: str
    strengths: tuple[float, ...]


# A hundredth of reading's usual weight: the network has time to follow.
SOFTLY = 0.1
SWEEPS = {
    "averaging": Sweep(lambda thief, x: thief.reverse(0.0, gamma=x), "γ", (1.0, 10.0, 100.0)),
    "reversal": Sweep(lambda thief, x: thief.reverse(x), "r", (0.25, 0.5, 1.0)),
    "reading": Sweep(lambda thief, x: thief.read(reversal=x), "r", (0.0, 0.5, 1.0)),
    "soft reading": Sweep(lambda thief, x: thief.read(reversal=x, gamma=SOFTLY), "r", (0.0, 0.25, 0.5)),
    "flattening": Sweep(lambda thief, x: thief.read(way="flatten", gamma=x), "γ", (0.1, 0.3, 1.0)),
    "dodging": Sweep(lambda thief, x: thief.dodge(x), "γ", (0.01, 0.1, 1.0)),
    "orthogonalising": Sweep(
        lambda thief, x: thief.orthogonalise(thief.halves, keep=True, strength=x),
        "share",
        (0.5, 0.75, 1.0),
    ),
    "turning signs": Sweep(
        lambda thief, x: thief.orthogonalise(thief.halves, way="turn", strength=x),
        "share",
        (0.5, 0.75, 1.0),
    ),
}
NOTHING, FINETUNING = "none", "fine-tuning"
# Epochs of the fine-tuning (Adam at 5e-4 in batches of 32): all strengths, then the strongest once more.
EPOCHS = PerScale((1, 4), cpu=(4, 16), smoke=(1, 2))
# The same epochs at a fifth of the rate: a network that has learned much loses less by them. Every attack, at
# these strengths.
GENTLY: PerScale[Mapping[str, tuple[float, ...]]] = PerScale(
    {
        FINETUNING: (0.0,),
        "averaging": (10.0,),
        "reversal": (1.0,),
        "reading": (0.5,),
        "soft reading": (0.0, 0.25),
        "flattening": (1.0, 10.0),
        "dodging": (1.0,),
        "orthogonalising": (1.0,),
        "turning signs": (1.0,),
    },
    smoke={"flattening": (1.0,)},
)
GENTLE_RATE = 1e-4
# The strengths that are tried: all of them, or at scales that prove nothing the strongest.
TRIED = PerScale(3, smoke=1)
SCHEMES = {"paper": "the paper's mark, λ = 0.1", "shares": "shares, λ = 0.3"}
# One colour per attack, as in every other figure Okabe and Ito's, and two more.
COLOURS = dict(zip((FINETUNING, *SWEEPS), ("#000000", *figures.SERIES, "#999999", "#8b5a2b"), strict=True))


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """The models as they are, after fine-tuning alone, and after each attack at each strength."""
    return [
        Cell(
            "curves",
            name_of(scheme, attack, strength, epochs, gently=gently),
            seed,
            (scale.settings(seed=seed, watermark=watermark, record=scale.recording),),
            {"scheme": scheme, "attack": attack, "strength": strength, "epochs": epochs}
            | ({"rate": GENTLE_RATE} if gently else {}),
        )
        for seed in seeds
        for scheme, watermark in (("paper", {"strength": 0.1}), ("shares", shares(scale)))
        for attack, strength, epochs, gently in points(scale)
    ]


def points(scale: Scale) -> Iterator[tuple[str, float, int, bool]]:
    """Attack, strength and epochs of every point, and whether it is made gently."""
    short, long = EPOCHS.at(scale)
    yield NOTHING, 0.0, 0, False
    yield FINETUNING, 0.0, short, False
    yield FINETUNING, 0.0, long, False
    for attack, sweep in SWEEPS.items():
        tried = sweep.strengths[-TRIED.at(scale) :]
        for strength in tried:
            yield attack, strength, short, False
        yield attack, tried[-1], long, False
    for attack, strengths in GENTLY.at(scale).items():
        for strength in strengths:
            yield attack, strength, long, True


def name_of(scheme: str, attack: str, strength: float, epochs: int, *, gently: bool = False) -> str:
    """Name of a cell."""
    if attack == NOTHING:
        return f"{scheme} {NOTHING}"
    power = f" {SWEEPS[attack].quantity} {strength:g}" if attack in SWEEPS else ""
    return (
        f"{scheme} {attack}{power}, {epochs} epoch{'s' if epochs > 1 else ''}{', gently' if gently else ''}"
    )


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Attack the run, then measure accuracy, the mark on noise and on images, and the origin."""
    (run,) = runs
    attack, strength = cell.options["attack"], cell.options["strength"]
    thief = Thief.of(run, store, epochs=cell.options["epochs"], rate=cell.options.get("rate"))
    if attack == NOTHING:
        return thief.left(thief.halves)
    if attack == FINETUNING:
        return thief.left(thief.reverse(0.0, gamma=0.0))
    return thief.left(SWEEPS[attack].attack(thief, strength))


@dataclass(frozen=True)
class Point:
    """A model that a thief could have: what it cost, and what the readings still show of it (log10 p)."""

    name: str
    options: Mapping[str, Any]
    lost: float
    numbers: Mapping[str, float]

    def log10_p(self, reading: str) -> float | None:
        """The exponent of one reading, if it was made."""
        return self.numbers.get(f"log10_p{READINGS[reading]}")

    @property
    def mark(self) -> float:
        """That of the better reading of the mark."""
        return min(found for name in ("noise", "images") if (found := self.log10_p(name)) is not None)


def curve(measured: Measured, scheme: str, attack: str) -> list[Point]:
    """The points of an attack that were measured, means over seeds, exponents the largest of them."""
    found = []
    before = measured.by_seed(f"{scheme} {NOTHING}", "accuracy")
    for cell in measured.of_first_seed:
        options = cell.options
        if (options["scheme"], options["attack"]) != (scheme, attack):
            continue
        known = {seed: measured.results.get((cell.name, seed)) for seed in before}
        rows = {seed: result.numbers for seed, result in known.items() if result is not None}
        if rows:
            lost = statistics.fmean(before[seed] - row["accuracy"] for seed, row in rows.items())
            found.append(Point(cell.name, options, lost, _summary(list(rows.values()))))
    return found


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Means over seeds; of exponents the largest, which proves least."""
    return {
        name: (max if name.startswith("log10") else statistics.fmean)([float(row[name]) for row in rows])
        for name in rows[0]
        if all(isinstance(row.get(name), int | float) for row in rows)
    }


def show(measured: Measured, folder: Path) -> Page:
    """The figure, what it costs to be rid of each proof, and one table per scheme with every point."""
    draw(measured, folder / "curves.png")
    found: list[str | Table | Picture] = [
        Picture("What each attack leaves of both proofs, over the accuracy that it costs", "curves.png"),
        Table(
            ["attack", *(f"{scheme}, {proof}" for scheme in SCHEMES for proof in PROOFS)],
            [[attack, *_prices(measured, attack)] for attack in (FINETUNING, *SWEEPS)],
            caption="Points of accuracy lost where a proof is first gone: the mark's with a stamped key, the "
            "origin's with a plain one.",
        ),
    ]
    for scheme, words in SCHEMES.items():
        found += [
            f"## {scheme}: {words}",
            Table(
                ["attack", "accuracy", "lost", *READINGS],
                [
                    _row(measured, scheme, cell.name)
                    for cell in measured.of_first_seed
                    if cell.options["scheme"] == scheme
                ],
                notes=NOTES,
            ),
        ]
    return found


# Name of the proof, the exponent of a point that speaks for it, and what it must reach.
PROOFS: dict[str, tuple[Callable[[Point], float], Price]] = {
    "mark": (lambda point: point.mark, KEYS["stamped"]),
    "origin": (lambda point: point.numbers["log10_p_origin"], KEYS["plain"]),
}
NOTES = (
    "γ: weight of the penalty; r: how far past zero the activations are pushed; share: of the component "
    "along the initial weights, or of the signs, that is taken away; gently: at a fifth of the rate "
    f"({GENTLE_RATE:g}). Each reading: WSR in %, or for the "
    "origin the share of signs that agree, and log10 p before any allowance, the largest of the seeds. A "
    f"mark is proof at {KEYS['plain'].log10_level():.1f} or below with a plain key, at "
    f"{KEYS['stamped'].log10_level():.1f} or below with a stamped one."
)


def price(measured: Measured, scheme: str, attack: str, proof: str) -> float | None:
    """The fewest points of accuracy for which this attack removes a proof, None if it never does."""
    exponent, needed = PROOFS[proof]
    lost = [one.lost for one in curve(measured, scheme, attack) if not needed.proves(exponent(one))]
    return min(lost) if lost else None


def _was_proven(measured: Measured, scheme: str, proof: str) -> bool:
    """Whether the model as it was trained has this proof."""
    exponent, needed = PROOFS[proof]
    return all(needed.proves(exponent(one)) for one in curve(measured, scheme, NOTHING))


def _prices(measured: Measured, attack: str) -> Iterator[Number | Words]:
    for scheme in SCHEMES:
        for proof in PROOFS:
            found = price(measured, scheme, attack, proof)
            if not curve(measured, scheme, attack):
                yield NOT_RUN
            elif not _was_proven(measured, scheme, proof):
                yield Words("never proven")
            else:
                yield Words("still proven") if found is None else Number(found, form="+.1f")


def _row(measured: Measured, scheme: str, name: str) -> Row:
    point = next((one for one in _all(measured, scheme) if one.name == name), None)
    words = name.removeprefix(f"{scheme} ")
    if point is None:
        return [words, *[NOT_RUN] * (2 + len(READINGS))]
    readings: list[Sequence[Number] | Words] = []
    for reading, end in READINGS.items():
        exponent = point.log10_p(reading)
        if exponent is None:
            readings.append(Words("too few images"))
        else:
            readings.append([Number(point.numbers[f"wsr{end}"]), Number(exponent, "log10 p")])
    accuracy = measured.number(name, "accuracy")
    return [words, accuracy, Number(point.lost, form="+.1f"), *readings]


def _all(measured: Measured, scheme: str) -> list[Point]:
    return [one for attack in (NOTHING, FINETUNING, *SWEEPS) for one in curve(measured, scheme, attack)]


def draw(measured: Measured, path: Path, schemes: Sequence[str] = tuple(SCHEMES)) -> None:
    """One row per scheme: WSR on images and log10 p of each reading over the accuracy lost."""
    panels: dict[str, Callable[[Point], float | None]] = {
        "WSR on images (%)": lambda point: point.numbers.get("wsr_inputs"),
        **{f"log10 p before correction, {name}": partial(Point.log10_p, reading=name) for name in READINGS},
    }
    schemes = [scheme for scheme in schemes if curve(measured, scheme, NOTHING)] or schemes[:1]
    figure, axes = figures.panels(len(panels) * len(schemes), columns=len(panels))
    for number, scheme in enumerate(schemes):
        for axis, (title, value) in zip(axes[len(panels) * number :], panels.items(), strict=False):
            _curves(axis, measured, scheme, value)
            axis.set_title(f"{scheme}: {title}", fontsize=11)
            axis.set_xlabel("points of accuracy lost")
            if title.startswith("log10"):
                proof = "origin" if "origin" in title else "mark"
                axis.axhline(
                    PROOFS[proof][1].log10_level(),
                    color="0.6",
                    linewidth=2.5,
                    zorder=0,
                    label="proof below this line",
                )
                if proof == "origin":
                    axis.set_yscale("symlog", linthresh=10.0)
                axis.set_ylim(top=1.0)
    for line, words in LINES.items():
        axes[0].plot([], [], color="0.3", linestyle=line, label=words)
    figures.legend_below(figure, axes)
    figures.save(figure, path)


LINES = {"-": "growing strength", ":": "more epochs", "--": "more epochs, a fifth of the rate"}


def _curves(axis: Axes, measured: Measured, scheme: str, value: Callable[[Point], float | None]) -> None:
    """From the model as it is through the strengths of an attack; LINES says what each style of line is."""
    start = curve(measured, scheme, NOTHING)
    for attack in (FINETUNING, *SWEEPS):
        found = [*start, *curve(measured, scheme, attack)]
        if len(found) < 2:
            continue
        gentle = [one for one in found if "rate" in one.options]
        found = [one for one in found if "rate" not in one.options]
        longest = max(int(one.options["epochs"]) for one in found)
        short = [one for one in found if one.options["epochs"] < longest]
        style = {"color": COLOURS[attack]}
        long = [*short[-1:], *found[len(short) :]]
        for part, line in zip((short, long, [*start, *gentle]), LINES, strict=True):
            look = {**style, "linestyle": line, "label": attack if line == "-" else None}
            figures.curve(axis, [one.lost for one in part], [value(one) for one in part], **look)


def verdict(measured: Measured) -> list[Finding]:
    """What a thief must pay: no attack may remove a proof for less than two points of accuracy."""
    findings = []
    for scheme in SCHEMES:
        for proof in PROOFS:
            costs = {attack: price(measured, scheme, attack, proof) for attack in (FINETUNING, *SWEEPS)}
            known = any(curve(measured, scheme, attack) for attack in SWEEPS)
            if known and not _was_proven(measured, scheme, proof):
                text = f"The {proof} of {SCHEMES[scheme]} was not proven before any attack."
                findings.append(Finding(text, None))
                continue
            paid = {attack: cost for attack, cost in costs.items() if cost is not None}
            cheapest = min(paid.items(), key=lambda pair: pair[1]) if paid else None
            words = f"cheapest {cheapest[0]} at {cheapest[1]:+.1f}" if cheapest else "no attack removes it"
            findings.append(
                Finding(
                    f"Removing the {proof} of {SCHEMES[scheme]} costs at least 2 points of accuracy: "
                    f"{words if known else 'not measured'}.",
                    (cheapest is None or cheapest[1] >= 2) if known else None,
                )
            )
    return findings


CAPTION = (
    "What each attack leaves of the mark and of the origin over the accuracy that it costs, at several "
    "strengths, for the paper's mark and for shares (ResNet-18)."
)
EXPERIMENT = Experiment("curves", CAPTION, cells, show, measure, verdict)
