"""What the tables of attacks share: the attacker's images, and what is left of accuracy and mark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sigil import attacks
from sigil.attacks.halves import Halves
from sigil.baselines import Backdoor, ParameterMark
from sigil.data import Dataset
from sigil.federation.from_settings import client_parts
from sigil.federation.precision import choose
from sigil.federation.run import Run
from sigil.federation.settings import Settings
from sigil.pages import figures
from sigil.pages.tables import Entry, Place, Power
from sigil.verdict.descent import origin_of
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.reading import KEYS, counts, of_mark
from sigil_reproduction.runner.scales import Scale
from sigil_reproduction.runner.store import Cell, Store

LARGEST = (
    "p is before correction, the largest of the seeds; proof takes "
    f"10^{KEYS['plain'].log10_level():.1f} with a plain key, 10^{KEYS['stamped'].log10_level():.1f} with a "
    "stamped one."
)


def cells(
    experiment: str,
    scale: Scale,
    seeds: Sequence[int],
    plan: Mapping[float, Sequence[str]],
    **sections: Mapping[str, Any],
) -> list[Cell]:
    """One cell for every attack that is planned on the ResNet-18 of a strength."""
    return [
        Cell(
            experiment,
            name_of(strength, attack),
            seed,
            (scale.settings(seed=seed, variation=False, watermark={"strength": strength}, **sections),),
            {"strength": strength, "attack": attack},
        )
        for seed in seeds
        for strength, attacks in plan.items()
        for attack in attacks
    ]


def name_of(strength: float, attack: str) -> str:
    """Name of such a cell."""
    return f"strength {strength:g} {attack}"


def rows(
    measured: Measured,
    plan: Mapping[float, Sequence[str]],
    columns: Sequence[str],
    published: Callable[[float, str], Sequence[float] | None] = lambda strength, attack: None,
) -> list[list[Place]]:
    """One row per strength, one column per attack; empty where the attack is not planned."""
    return [
        [
            figures.label(strength),
            *(
                entries(measured, name_of(strength, attack), published(strength, attack), marked=strength > 0)
                if attack in attacks
                else ""
                for attack in columns
            ),
        ]
        for strength, attacks in plan.items()
    ]


def attackers_share(dataset: Dataset, settings: Settings, client: int = 0) -> Dataset:
    """The training images that one client holds."""
    return attacks.share(dataset, client_parts(settings, dataset)[client])


def marks(halves: Halves, run: Run, store: Store) -> dict[str, Any]:
    """What an attack has left of a run's accuracy (%) and of the mark that it embedded, if it embedded one.

    The raw counts of each reading are among the numbers, for any later rule.
    """
    settings, dataset = run.settings, store.dataset(run.settings)
    precision = choose(settings.run.device, settings.run.precision)
    right = attacks.measure(halves, data=dataset, precision=precision).accuracy
    numbers: dict[str, Any] = {"accuracy": 100 * (right or 0.0)}
    if (key := store.key(run)) is not None:
        readings = of_mark(halves[0], key, dataset)
        numbers |= counts(readings)
        for reading in readings:
            # The names without a kind are those of noise, the paper's probe.
            end = "" if reading.kind == "noise" else f"_{reading.kind}"
            numbers |= {f"wsr{end}": 100 * reading.wsr, f"log10_p{end}": reading.log10_p_before}
        origin = origin_of(halves[0], key, dataset.shape)
        if origin is not None and not origin.restored:
            numbers |= {"wsr_origin": 100 * origin.share, "log10_p_origin": origin.log10_p}
    elif settings.behaviour.mark == "backdoor":
        report = Backdoor.from_settings(settings).verify(*halves, dataset, precision=precision)
        numbers["wsr"] = 100 * report.wsr
    elif settings.behaviour.mark == "parameter":
        numbers["wsr"] = 100 * ParameterMark.from_settings(settings).verify(halves[0]).wsr
    return numbers


def entries(
    measured: Measured, name: str, paper: Sequence[float | None] | None = None, *, marked: bool = True
) -> list[Entry]:
    """One place of an attack's table: accuracy, WSR, p and, after the adaptive attack, the span found.

    `paper` is the paper's accuracy and WSR.
    """
    accuracy, wsr = paper or (None, None)
    found: list[Entry] = [measured.number(name, "accuracy", "acc", paper=accuracy)]
    if not marked:
        return found
    found.append(measured.number(name, "wsr", "WSR", paper=wsr))
    exponents = measured.values(name, "log10_p")
    if exponents:
        found.append(Power(max(exponents)))
    if measured.values(name, "overlap"):
        found.append(measured.number(name, "overlap", "span", unit="%"))
    return found
