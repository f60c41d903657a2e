"""Differences from the paper that may be the reduced scale's: each checked once with one reduction undone.

Every check trains twice: as the scale has it, and with the one thing changed that is held responsible.

- *The four cuts*: a network of an eighth of the width gets an eighth of the bits.
- *256 bits*: a network of twice the width gets the bits that the narrow one cannot hold.
- *Noise*: a mark that has as many steps to be set as the paper's.
- *Many clients*: as many steps a client as few clients take.
- *The weakest mark*: both, an eighth of the bits and as many steps as the paper's.
- *The adaptive attack*: on an eighth of the bits.
- *Averaging*, the strongest attack: on 128 bits, and on twice as many in a network of twice the width.
- *All images*: the largest trainings of all. Every client has as many images and steps as the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sigil.experiments.beyond.proof import LEVEL
from sigil.experiments.lab import published as paper
from sigil.experiments.lab import stealth
from sigil.experiments.lab.ablations import OUTLIERS
from sigil.experiments.lab.experiment import Experiment, Finding, Results, final_numbers, judge
from sigil.experiments.lab.scales import Scale
from sigil.experiments.lab.store import Cell, Store
from sigil.experiments.pages.tables import difference, markdown, mean, spread, values
from sigil.experiments.paper import figure6_splitout as splitout
from sigil.experiments.paper import table5_adaptive as adaptive
from sigil.experiments.paper.table4_removal import entry
from sigil.experiments.paper.table6_split_point import CUTS
from sigil.federation.run import Run
from sigil.federation.settings import Settings

BITS = 256  # too many for ResNet-18 at an eighth of its width
NOISE = {"noise 1/10": 1 / 10, "noise 1/100": 1 / 100}
LENGTH, CLIENTS, WEAKEST, ATTACK = f"{BITS} bits", "many clients", "λ = 0.01", "R_wm 10"
ATTACKS = (ATTACK, adaptive.HARDER)
CLEAN, MARKED, NOISIEST = "clean", "λ = 0.1", "noise 1/100"
# Before the name of what is checked with them.
LARGER = "all images, "
FEW = LARGER + "few bits, "
SMALL, UNDONE = "as the scale", "undone"


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Two cells a check."""
    return [
        Cell(
            experiment="scaling",
            name=f"{check} {variant}",
            seed=seed,
            trainings=(settings,),
            options={"check": check, "variant": variant},
        )
        for seed in seeds
        for check, pair in _trainings(scale, seed).items()
        for variant, settings in zip((SMALL, UNDONE), pair, strict=True)
    ]


def _trainings(scale: Scale, seed: int) -> dict[str, tuple[Settings, Settings]]:
    """Of every check, the training as at this scale and the one in which a reduction is undone."""
    clean, weak, mark = ({"strength": strength} for strength in (0.0, 0.01, 0.1))
    fewest = {**weak, "bits": scale.scaled_bits}
    few, many = {**mark, "bits": scale.scaled_bits}, {**mark, "bits": BITS}
    clients = {"clients": scale.client_counts[-2]}
    found = {
        cut: (stealth.recorded(scale, seed, cut, mark), stealth.recorded(scale, seed, cut, few))
        for cut in CUTS
    }
    found[LENGTH] = (
        stealth.recorded(scale, seed, "layer3", many),
        scale.settings(seed=seed, watermark=many, record=scale.recording, model=scale.wider),
    )
    for check, ratio in NOISE.items():
        noise = {"noise_snr": ratio}
        found[check] = (
            scale.settings(seed=seed, variation=True, watermark=mark, behaviour=noise),
            scale.settings(seed=seed, watermark=mark, behaviour=noise, federation=scale.longer),
        )
    found[CLIENTS] = (
        scale.settings(seed=seed, variation=True, watermark=mark, federation=clients),
        scale.settings(seed=seed, watermark=mark, federation={**clients, **scale.patient}),
    )
    found[WEAKEST] = (
        stealth.recorded(scale, seed, "layer3", weak),
        scale.settings(seed=seed, watermark=fewest, federation=scale.longer, record=scale.recording),
    )
    found[ATTACK] = found["layer3"]
    half = {**mark, "bits": BITS // 2}
    found[adaptive.HARDER] = (stealth.recorded(scale, seed, "layer3", half), found[LENGTH][1])
    for check, small, undone in (
        (LARGER + CLEAN, clean, clean),
        (LARGER + MARKED, mark, mark),
        (LARGER + WEAKEST, weak, weak),
        (FEW + MARKED, mark, few),
        (FEW + WEAKEST, weak, fewest),
    ):
        found[check] = (
            stealth.recorded(scale, seed, "layer3", small),
            scale.settings(
                seed=seed, variation=False, watermark=undone, record=scale.recording, **scale.larger
            ),
        )
    for group in (LARGER, FEW):
        found[group + ATTACK] = found[group + MARKED]
    noisy = {"noise_snr": NOISE[NOISIEST]}
    found[LARGER + NOISIEST] = (
        found[NOISIEST][0],
        scale.settings(seed=seed, variation=False, watermark=mark, behaviour=noisy, **scale.larger),
    )
    return found


def _plain(check: str) -> str:
    return check.removeprefix(FEW).removeprefix(LARGER)


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Accuracy and the mark at the end, and SplitOut's outliers where gradients were recorded."""
    (run,) = runs
    check = _plain(cell.options["check"])
    if check in ATTACKS:
        return adaptive.after_attack(run, check, store)
    numbers = final_numbers(cell, runs, store)
    if cell.trainings[0].record.clients:
        detector = stealth.splitout(run.settings, store.dataset(run.settings))
        numbers[OUTLIERS] = splitout.in_256(stealth.summary(detector.replay(stealth.recording_of(run))))
    return numbers


def show(cells: list[Cell], results: Results, folder: Path) -> str:
    """A row a check: the paper's numbers, ours at this scale, and ours where the reduction is undone."""
    lines = []
    for check in dict.fromkeys(cell.options["check"] for cell in cells):
        published = _published(_plain(check)).items()
        theirs = "<br>".join(f"{name} {number:.4g}" for name, number in published)
        marked = check != LARGER + CLEAN
        ours = (_text(cells, results, f"{check} {variant}", marked=marked) for variant in (SMALL, UNDONE))
        lines.append([check, theirs, *ours])
    return (
        markdown(["check", "the paper", SMALL, UNDONE], lines)
        + "\nλ = 0.1. *Outliers*: SplitOut's mean in 256 gradients. The four cuts: 50 bits, and as many bits "
        f"a channel as in the paper, so few that p can say little. *{BITS} bits*: a network of twice the "
        "width, where they are as 1,000 in the paper's. *Noise*: with the steps of `longer`. *Many clients*: "
        "as many steps a client as ten of them take. *λ = 0.01*: the bits of the cuts and the steps of "
        f"`longer`. *{ATTACK}*: the adaptive attack on the trainings of layer3. *{adaptive.HARDER}*: on 128 "
        f"bits, and on the training of *{LENGTH}* in twice the width. *All images*: 50 bits, and a client "
        "has as many images and takes as many steps as the paper's; the width is still the scale's. *Few "
        "bits*: as many a channel as the paper's besides. Their recordings end at 512 MB, seven of ten "
        "rounds at the scale `cpu`; the attack takes the last two of those for late ones.\n"
    )


def _text(cells: list[Cell], results: Results, name: str, *, marked: bool) -> str:
    outliers = values(cells, results, name, OUTLIERS)
    return entry(cells, results, name, marked=marked) + (
        f"<br>outliers {spread(outliers)}" if outliers else ""
    )


def _published(check: str) -> dict[str, float]:
    numbers = paper.numbers()
    if check in NOISE:
        known = numbers["noise"]["points_given_in_text"]["wsr"]["0.1"].get(check.removeprefix("noise "))
        return {} if known is None else {"WSR": known}
    if check == CLIENTS:
        return dict(zip(("acc", "WSR"), numbers["clients"]["50"]["0.1"], strict=True))
    if check in (CLEAN, WEAKEST, MARKED):
        strength = 0.0 if check == CLEAN else float(check.removeprefix("λ = "))
        found = paper.fidelity("resnet18", strength) or {}
        return {short: found[name] for short, name in (("acc", "accuracy"), ("WSR", "wsr")) if name in found}
    if check == ATTACK:
        return dict(zip(("acc", "WSR"), numbers["adaptive"]["0.1"]["10"], strict=True))
    if check == adaptive.HARDER:
        return {}
    row = numbers["ablation_length"]["1000"] if check == LENGTH else numbers["ablation_split"][check]
    return dict(zip(("acc", "WSR"), row["none"], strict=True)) | {"outliers": row["splitout"]}


def verdict(cells: list[Cell], results: Results) -> list[Finding]:
    """Whether undoing a reduction brings the paper's shape back."""

    def numbers(number: str, *checks: str) -> dict[str, float | None]:
        return {check: mean(cells, results, f"{check} {UNDONE}", number) for check in checks}

    def with_all(*checks: str) -> list[str]:
        return [group + check for group in (LARGER, FEW) for check in checks]

    clean = mean(cells, results, f"{LARGER}{CLEAN} {UNDONE}", "accuracy")
    return [
        judge(
            "With as many bits a channel as in the paper the mark embeds at every cut (WSR of at least 95 %)",
            numbers("wsr", *CUTS),
            lambda x: x >= 95,
        ),
        judge("and SplitOut counts at most 25 outliers in 256", numbers(OUTLIERS, *CUTS), lambda x: x <= 25),
        judge(
            f"Twice the width holds {BITS} bits (WSR of at least 95 %)",
            numbers("wsr", LENGTH),
            lambda x: x >= 95,
        ),
        judge(
            "With the paper's number of steps noise leaves the mark (WSR of at least 95 %)",
            numbers("wsr", *NOISE),
            lambda x: x >= 95,
        ),
        judge(
            "Many clients that take as many steps as few do carry the mark (95 %)",
            numbers("wsr", CLIENTS),
            lambda x: x >= 95,
        ),
        judge("λ = 0.01 embeds (WSR of at least 95 %)", numbers("wsr", WEAKEST), lambda x: x >= 95),
        judge("The adaptive attack leaves λ = 0.1 above 70 %", numbers("wsr", ATTACK), lambda x: x > 70),
        judge(
            f"{BITS} bits in twice the width are proof after {adaptive.HARDER} (log10 p)",
            numbers("log10_p", adaptive.HARDER),
            lambda x: x <= LEVEL,
        ),
        judge(
            "With all images and the paper's number of steps marking costs at most 1 point of accuracy",
            {
                check: difference(marked, clean)
                for check, marked in numbers("accuracy", *with_all(MARKED, WEAKEST)).items()
            },
            lambda x: x >= -1,
            "+.1f",
        ),
        judge("λ = 0.1 embeds (WSR of at least 95 %)", numbers("wsr", *with_all(MARKED)), lambda x: x >= 95),
        judge(
            "The adaptive attack leaves it above 70 %", numbers("wsr", *with_all(ATTACK)), lambda x: x > 70
        ),
        judge("λ = 0.01 embeds (95 %)", numbers("wsr", *with_all(WEAKEST)), lambda x: x >= 95),
        judge("Noise of 1/100 leaves λ = 0.1 (95 %)", numbers("wsr", LARGER + NOISIEST), lambda x: x >= 95),
        judge(
            "SplitOut counts at most 25 outliers in 256",
            numbers(OUTLIERS, *with_all(MARKED, WEAKEST)),
            lambda x: x <= 25,
        ),
    ]


EXPERIMENT = Experiment(
    name="scaling",
    caption="Differences from the paper, as at this scale and with one reduction undone, or several.",
    cells=cells,
    measure=measure,
    show=show,
    verdict=verdict,
)
