"""Would a client notice that knows Sigil? Two simple statistics of recorded gradients (not in the paper).

The watermark gradient is nearly the same for all samples and all batches until the mark is learned, while the
task's gradients cancel: behind a batch norm, a shift that is common to all samples changes nothing. With g_i
the gradients of a batch, averaged over the positions of each channel, and G_r the sum of all gradients of
round r::

    common      = ‖Σ_i g_i‖ / Σ_i ‖g_i‖          one number per batch
    persistence = cos(G_r, G_r+1)                 one number per pair of rounds

`common` is compared with an honest training of the same seed (AUC: the probability that a marked batch has a
larger value than an honest one; 50 % is chance), and with what the client can know by itself: the largest
value in an honest epoch on its own data with a server half of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy  # loads scipy.stats, which takes a second, only where it is used

from sigil.detectors import local_gradients_of_run
from sigil.federation.run import Run
from sigil.pages import figures
from sigil.pages.tables import NOT_RUN, Entry, Number, Page, Picture, Table, Words
from sigil_reproduction.runner import stealth
from sigil_reproduction.runner.experiment import Experiment, Finding, Measured, check_claim
from sigil_reproduction.runner.scales import Scale
from sigil_reproduction.runner.store import Cell, Store

Vector = npt.NDArray[np.float64]


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Every recorded server, each beside the honest one."""
    return [
        Cell(
            experiment="informed",
            name=f"{setting} {server}",
            seed=seed,
            trainings=tuple(
                stealth.recorded(scale, seed, setting, stealth.watermark_of(scale, name))
                for name in dict.fromkeys((stealth.HONEST, server))
            ),
            options={"setting": setting, "server": server},
        )
        for seed in seeds
        for setting in stealth.settings_names(scale)
        for server in stealth.servers(setting)
    ]


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Both statistics of the run, compared with the honest one and with the client's own training."""
    honest, run = runs[0], runs[-1]
    settings = run.settings
    size = settings.federation.batch_size
    found = Statistics(run, size)
    baseline = found if run is honest else Statistics(honest, size)
    local = local_gradients_of_run(
        settings,
        store.dataset(settings),
        client=stealth.CLIENT,
        share=1.0,
        batch_size=size,
        amsgrad=not stealth.earlier_forms(store.scale),
    )
    own = [common(batch.numpy()) for batch in local if len(batch) == size]
    limit = max(own, default=1.0)
    rounds = sorted(found.by_round)
    return {
        "common": _mean(found.all),
        "auc": auc(found.all, baseline.all),
        "limit": limit,
        "above_limit": _mean([100.0 * (value > limit) for value in found.all]),
        "persistence": _mean(found.persistence),
        "final": {
            name: run.final.get(f"{name}_before", run.final[name])
            for name in ("accuracy", "wsr", "log10_p")
            if name in run.final
        },
        "curves": {
            "round": rounds,
            "common": [float(np.mean(found.by_round[number])) for number in rounds],
            "auc": [auc(found.by_round[number], baseline.by_round.get(number, ())) for number in rounds],
            "persistence": found.persistence,
        },
    }


class Statistics:
    """`common` of every full batch of client 0 in a run, by round, and `persistence` of each next round."""

    def __init__(self, run: Run, size: int) -> None:
        recording = stealth.recording_of(run)
        self.by_round: dict[int, list[float]] = {}
        sums: dict[int, Vector] = {}
        for step in recording.steps(client=stealth.CLIENT):
            number, gradients = step.at.round, step.gradients.astype(np.float64)
            sums[number] = sums.get(number, 0.0) + gradients.sum(0)
            # Few samples have much in common by chance: the last batch of an epoch may be smaller.
            if len(gradients) == size:
                maps = gradients.reshape(len(gradients), *recording.shape)
                self.by_round.setdefault(number, []).append(common(maps))
        ordered = [sums[number] for number in sorted(sums)]
        self.persistence = [cosine(one, other) for one, other in pairwise(ordered)]

    @property
    def all(self) -> list[float]:
        return [value for values in self.by_round.values() for value in values]


def common(gradients: npt.NDArray[Any]) -> float:
    """‖Σ g_i‖ / Σ ‖g_i‖ of a batch (n, C, H, W) or (n, d), maps averaged over their positions.

    1 if all gradients point the same way, 0 if they cancel.

    >>> common(np.array([[1.0, 0.0], [1.0, 0.0]])), common(np.array([[1.0, 0.0], [-1.0, 0.0]]))
    (1.0, 0.0)
    """
    rows = gradients.reshape(*gradients.shape[:2], -1).mean(2, dtype=np.float64)
    lengths = float(np.linalg.norm(rows, axis=1).sum())
    return float(np.linalg.norm(rows.sum(0))) / lengths if lengths > 0 else 0.0


def cosine(one: Vector, other: Vector) -> float:
    """The cosine of two vectors, 0 if one of them is zero."""
    norms = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / norms if norms > 0 else 0.0


def auc(values: Iterable[float], honest: Iterable[float]) -> float | None:
    """The probability (%) that one of `values` is larger than one of `honest`, ties counting half.

    None if there is nothing to compare: a client with fewer images than a batch has no full one.
    """
    one, other = list(values), list(honest)
    if not one or not other:
        return None
    return 100 * float(scipy.stats.mannwhitneyu(one, other).statistic) / (len(one) * len(other))


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def show(measured: Measured, folder: Path) -> Page:
    """Both statistics over the rounds, and a table."""
    _draw(measured, folder / "informed.png")
    rows = [
        [cell.options["setting"], stealth.label(cell.options["server"]), *_row(measured.first(cell.name))]
        for cell in measured.of_first_seed
    ]
    header = ["training", "server", "WSR", "common", "AUC", "AUC, round 1", "above own limit", "persistence"]
    notes = (
        "*AUC*: the probability that a batch of this training has a larger `common` than one of the honest "
        "training, over all rounds, and in the first. *Above own limit*: batches above "
        "the largest value of the client's own honest epoch. *Persistence*: mean over the pairs of rounds. "
        "At the scale `cpu` the local epoch is trained by Adam without AMSGrad, at others as in SplitOut."
    )
    return [Picture("Both statistics over the rounds", "informed.png"), Table(header, rows, notes=notes)]


def _row(found: dict[str, Any] | None) -> list[Entry]:
    if found is None:
        return [NOT_RUN] * 6
    wsr = found["final"].get("wsr")
    return [
        _entry(None if wsr is None else 100 * wsr, ".0f", "%"),
        _entry(found["common"], ".3f"),
        _entry(found["auc"], ".0f", "%"),
        _entry(_in_round_1(found), ".0f", "%"),
        _entry(found["above_limit"], unit="%"),
        _entry(found["persistence"], ".2f"),
    ]


def _entry(value: float | None, form: str = ".1f", unit: str = "") -> Entry:
    return Words("") if value is None else Number(value, form=form, unit=unit)


def _in_round_1(found: dict[str, Any]) -> float | None:
    """The AUC of the first round that has a full batch."""
    return next(iter(found["curves"]["auc"]), None)


def _draw(measured: Measured, path: Path) -> None:
    settings = measured.options("setting")
    figure, axes = figures.panels(2 * len(settings), columns=2)
    for number, setting in enumerate(settings):
        left, right = axes[2 * number : 2 * number + 2]
        for server in stealth.servers(setting):
            numbers = measured.first(f"{setting} {server}")
            if numbers is not None:
                rows, style = numbers["curves"], stealth.style(server)
                figures.curve(left, rows["round"], rows["common"], **style)
                figures.curve(right, range(2, len(rows["persistence"]) + 2), rows["persistence"], **style)
        left.set(title=f"{setting}: common", xlabel="round", ylim=(0, None))
        right.set(title=f"{setting}: persistence", xlabel="round", ylim=(-1.05, 1.05))
    figures.legend(axes[0])
    figures.save(figure, path)


def verdict(measured: Measured) -> list[Finding]:
    """Is the mark as hidden from a client that knows of it as the paper finds it from published detectors?"""

    def separation(server: str) -> dict[str, float | None]:
        found = {setting: measured.first(f"{setting} {server}") for setting in measured.options("setting")}
        return {
            setting: None if numbers is None else _in_round_1(numbers) for setting, numbers in found.items()
        }

    return [
        check_claim(
            f"A client that knows of the mark cannot tell {stealth.label(server)} in round 1 (AUC, %)",
            separation(server),
            lambda value: value < 60,
            ".0f",
        )
        for server in stealth.MARKED
    ]


CAPTION = (
    "A client that knows Sigil and looks for what all gradients have in common: two statistics of its "
    "own, not published detectors (ResNet-18)."
)
EXPERIMENT = Experiment("informed", CAPTION, cells, show, measure, verdict)
