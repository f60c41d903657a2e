"""What is left of both proofs after every attack: the mark under both schemes, and the origin.

This is not in the paper. Rows are attacks, from the paper's to those that were found by attacking. The thief
is client 0 with its own images and, where an attack needs them, the gradients that it was sent. Each row says
what the attack costs in accuracy and what every reading still shows: the mark on noise, the mark on test
images, the origin of the weights. log10 p is that of the exact tests before any allowance; the last columns
say whether the best reading of the mark, and the origin, are proof after the allowance for keys that could
have been drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sigil import attacks
from sigil.attacks.halves import Halves
from sigil.federation.run import Run
from sigil.pages.tables import NOT_RUN, Answer, Entry, Number, Page, Table, Words
from sigil.rules import PLAIN_ALLOWANCE_LOG2, STAMPED_ALLOWANCE_LOG2, Price
from sigil_reproduction.beyond.thief import Thief
from sigil_reproduction.runner.experiment import Experiment, Finding, Measured, check_claim
from sigil_reproduction.runner.scales import NEW_KEY, Scale, shares
from sigil_reproduction.runner.store import Cell, Store

# Name of the scheme, and its strength.
SCHEMES = {"paper": 0.1, "shares": 0.3}
NOISE = "noise in training, 1/100"
SNR = 0.01


ATTACKS: dict[str, Callable[[Thief], Halves]] = {
    "none": lambda thief: thief.halves,
    "fine-tuning": lambda thief: thief.reverse(0.0, gamma=0.0),
    "averaging": lambda thief: thief.reverse(0.0),
    "reversal": lambda thief: thief.reverse(0.5),
    "reading": lambda thief: thief.read(),
    "flattening": lambda thief: thief.read(way="flatten", gamma=1.0),
    "overwriting": Thief.overwrite,
    "adaptive": lambda thief: thief.remove_subspace(centre=False),
    "adaptive, centred": lambda thief: thief.remove_subspace(centre=True),
    "pruning 60 %": lambda thief: attacks.prune(thief.halves, 0.6),
    "pruning 80 %": lambda thief: attacks.prune(thief.halves, 0.8),
    NOISE: lambda thief: thief.halves,
    "dodging": lambda thief: thief.dodge(0.1),
    "orthogonalising": lambda thief: thief.orthogonalise(thief.halves, keep=True),
    "turning signs": lambda thief: thief.orthogonalise(thief.halves, way="turn"),
    "reading, then orthogonalising": lambda thief: thief.orthogonalise(thief.read(), keep=True),
    "reversal, then turning signs": lambda thief: thief.orthogonalise(thief.reverse(0.5), way="turn"),
}


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Every attack on the models of both schemes; the first seed of everything comes first."""
    return [
        Cell(
            "schemes",
            name_of(scheme, attack),
            seed,
            (
                scale.settings(
                    seed=seed,
                    variation=attack == NOISE,
                    watermark=watermark_of(scale, scheme),
                    **({"behaviour": {"noise_snr": SNR}} if attack == NOISE else {"record": scale.recording}),
                ),
            ),
            {"scheme": scheme, "attack": attack},
        )
        for seed in seeds
        for scheme in SCHEMES
        for attack in ATTACKS
    ]


def watermark_of(scale: Scale, scheme: str) -> dict[str, Any]:
    """Watermark settings of a scheme, both with as many bits where trainings are short enough for that.

    Where they take hours the paper's mark is the one of all other tables, with the paper's bits.
    """
    if scheme == "shares":
        return shares(scale)
    strength = {"strength": SCHEMES[scheme]}
    return strength if scale.keeps_models else {**strength, "bits": NEW_KEY.at(scale)}


def name_of(scheme: str, attack: str) -> str:
    """Name of a cell."""
    return f"{scheme} {attack}"


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Attack the run, then measure accuracy, the mark on noise and on images, and the origin."""
    (run,) = runs
    thief = Thief.of(run, store)
    return thief.left(ATTACKS[cell.options["attack"]](thief))


READINGS = {"noise": "", "images": "_inputs", "origin": "_origin"}
KEYS = {"plain": PLAIN_ALLOWANCE_LOG2, "stamped": STAMPED_ALLOWANCE_LOG2}


def limit(allowance_log2: int) -> float:
    """The largest log10 p that is proof after the allowance for tests and drawn keys."""
    return Price(allowance_log2).log10_level()


def proven(log10_p: float, allowance_log2: int) -> bool:
    """Whether a reading is proof after the allowance for tests and drawn keys."""
    return log10_p <= limit(allowance_log2)


def show(measured: Measured, folder: Path) -> Page:
    """One table per scheme: one row per attack."""
    return [
        part
        for scheme in SCHEMES
        for part in (
            f"## {scheme}, λ = {SCHEMES[scheme]:g}",
            Table(
                [
                    "attack",
                    "accuracy",
                    *READINGS,
                    "owned, plain key",
                    "owned, stamped",
                    "descends, plain key",
                ],
                [[attack, *_row(measured, name_of(scheme, attack))] for attack in ATTACKS],
                notes=NOTES,
            ),
        )
    ]


NOTES = (
    "WSR in %, or for the origin the share of signs that agree, counted by octile; log10 p before any "
    "allowance, the largest of the seeds. *Owned*: the better reading of the mark is proof at 3e-7 after the "
    "allowance, in this number of the seeds; *descends*: so is the origin. Noise in training takes a "
    "training of its own, on fewer images where the scale says so."
)


def _row(measured: Measured, name: str) -> list[Entry | list[Entry]]:
    rows = measured.every(name)
    readings: list[Entry | list[Entry]] = []
    for end in READINGS.values():
        exponents = measured.values(name, f"log10_p{end}")
        if rows and not exponents:
            readings.append(Words("too few images"))
        else:
            largest = Number(max(exponents), "log10 p") if exponents else NOT_RUN
            readings.append([measured.number(name, f"wsr{end}"), largest])
    return [
        measured.number(name, "accuracy"),
        *readings,
        *(_count([_mark(row) for row in rows], allowance) for allowance in KEYS.values()),
        _count([row["log10_p_origin"] for row in rows], PLAIN_ALLOWANCE_LOG2),
    ]


def _mark(row: dict[str, Any]) -> float:
    """The better reading of the mark."""
    return min(float(row["log10_p"]), float(row.get("log10_p_inputs", 0.0)))


def _count(exponents: Sequence[float], allowance: int) -> Entry:
    if not exponents:
        return NOT_RUN
    return Answer(f"{sum(proven(one, allowance) for one in exponents)} of {len(exponents)}")


def verdict(measured: Measured) -> list[Finding]:
    """What the schemes are for, held against the cells."""

    def worst(scheme: str, attack: str) -> float | None:
        rows = measured.every(name_of(scheme, attack))
        return max(map(_mark, rows)) if rows else None

    stamped = KEYS["stamped"]
    return [
        check_claim(
            f"Under the scheme {scheme} a stamped key's mark is proven after {attack} (largest log10 p)",
            {attack: worst(scheme, attack)},
            lambda x: proven(x, stamped),
        )
        for scheme in SCHEMES
        for attack in ("none", "fine-tuning", "reversal", "reading")
    ] + [
        check_claim(
            "Attacks on the mark leave the origin proven with a plain key (largest log10 p)",
            {
                f"{scheme}, {attack}": max(found)
                for scheme in SCHEMES
                for attack in ("fine-tuning", "reversal", "reading", "flattening", "adaptive", "pruning 80 %")
                if (found := measured.values(name_of(scheme, attack), "log10_p_origin"))
            },
            lambda x: proven(x, KEYS["plain"]),
        )
    ]


CAPTION = (
    "Both schemes and both proofs after every attack: accuracy, what each reading shows, and whether that is "
    "proof with a plain and with a stamped key (ResNet-18)."
)
EXPERIMENT = Experiment("schemes", CAPTION, cells, show, measure, verdict)
