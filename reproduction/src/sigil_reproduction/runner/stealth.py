"""What the stealth experiments share: servers, cuts, recorded trainings, and trainings watched live.

A client's detectors judge an honest server, Sigil's at three strengths, one that does not clip its mark, and
the positive control, a server that steals images (FSHA). Gradient Scrutinizer and SplitOut look at recorded
gradients of client 0. SplitGuard must send fake batches while the training runs, and FSHA needs a server of
its own: these trainings are watched live, by all three detectors, and are smaller.

SplitOut's "1 % of its data" is 50 images of a client's 5,000 in the paper. Clients of reduced scales hold
fewer, so the share is chosen such that there are 50 local gradients again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from sigil.data import Dataset, Split, evaluate_batches
from sigil.detectors import Detector, GradientScrutinizer, SplitOut, local_gradients_of_run
from sigil.detectors.splitout import MINIMUM
from sigil.federation.from_settings import client_parts
from sigil.federation.recording import Recording
from sigil.federation.run import Run
from sigil.federation.settings import Settings
from sigil.pages import figures
from sigil.pages.tables import NOT_RUN, Entry, Words
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.scales import STRENGTHS, Scale, shares
from sigil_reproduction.runner.store import Store

CLIENT = 0
HONEST, UNCLIPPED, SHARES = "honest", "unclipped", "shares"
# Names of servers: their watermark settings.
MARKED: dict[str, dict[str, Any]] = {
    f"strength {strength:g}": {"strength": strength} for strength in STRENGTHS
}
SERVERS: dict[str, dict[str, Any]] = {
    HONEST: {"strength": 0.0},
    **MARKED,
    UNCLIPPED: {"strength": 0.1, "clip": False},
    SHARES: {"scheme": "shares", "strength": 0.3},  # with the bits of a new key, see `watermark_of`
}
# Positive controls: the published attack, and one that hides the length of its gradients.
FSHA_AS_PUBLISHED, FSHA_SCALED = "FSHA", "FSHA scaled"
ATTACKERS: dict[str, float | None] = {FSHA_AS_PUBLISHED: None, FSHA_SCALED: 1.0}
CUTS = ("layer3", "layer4")
PAPER_STEPS = "layer3 longer"
HONEST_SEEDS = 3
LOCAL_GRADIENTS = 50
BATCH = 256  # of the paper
PUBLIC_IMAGES = 2_000  # images that an attacker has
OUTLIERS = "outliers_256"  # the number in a cell: SplitOut's mean in 256 gradients
USUAL = "{suspicious:.0f} % suspicious, last {score:.2f}"
_POINTS = 64  # of a curve in a cell


def changes(scale: Scale, setting: str) -> dict[str, Any]:
    """The sections in which a cut (or a training of the paper's steps) differs from the scale's own."""
    if setting == PAPER_STEPS:
        return {"federation": scale.paper_steps}
    # The default is left out, so that other experiments' training is this one.
    return {} if setting == "layer3" else {"model": {"cut": setting}}


def settings_names(scale: Scale) -> tuple[str, ...]:
    """Both cuts, and the training with as many steps as the paper's where the scale has one."""
    return (*CUTS, PAPER_STEPS) if scale.paper_steps else CUTS


def servers(setting: str) -> list[str]:
    """The servers that are recorded: the training of the paper's steps is for the strengths only."""
    return [name for name in SERVERS if setting != PAPER_STEPS or name not in (UNCLIPPED, SHARES)]


def asked(scale: Scale, seeds: Sequence[int]) -> list[tuple[int, str, str]]:
    """Seed, setting and server of every recorded training.

    An honest server is recorded at both cuts with three seeds at least: how far they lie apart is what a
    marked one is compared with.
    """
    everything = [
        (seed, setting, server)
        for seed in seeds
        for setting in settings_names(scale)
        for server in servers(setting)
    ]
    more = [(min(seeds) + number, cut, HONEST) for number in range(HONEST_SEEDS) for cut in CUTS]
    return list(dict.fromkeys([*everything, *more]))


def watermark_of(scale: Scale, server: str) -> dict[str, Any]:
    """Watermark settings of a server at a scale."""
    return shares(scale) if server == SHARES else SERVERS.get(server, {"strength": 0.0})


def recorded(scale: Scale, seed: int, setting: str, watermark: Mapping[str, Any]) -> Settings:
    """A training in which client 0 records its gradients."""
    return scale.settings(seed=seed, watermark=watermark, record=scale.recording, **changes(scale, setting))


# One colour per server in all figures; strengths as everywhere else.
COLOURS = {
    **{name: figures.COLOURS[float(SERVERS[name]["strength"])] for name in (HONEST, *MARKED)},
    UNCLIPPED: "#cc79a7",
    SHARES: "#999999",
    FSHA_AS_PUBLISHED: "#e69f00",
    FSHA_SCALED: "#0072b2",
}


def label(server: str) -> str:
    """How a server is named in tables and legends."""
    return figures.label(MARKED[server]["strength"]) if server in MARKED else server


def style(server: str) -> dict[str, str]:
    """Colour and name of a server's curve."""
    return {"color": COLOURS[server], "label": label(server)}


def honest_band(axis: Axes, measured: Measured, cut: str, detector: str, *, times: float = 1.0) -> None:
    """Shade where an honest server's scores lie with all of its seeds, if there are several."""
    every = measured.every(f"{cut} {HONEST}")
    curves = [numbers[detector]["curves"] for numbers in every if detector in numbers]
    if len(curves) < 2:
        return
    length = min(len(rows["score"]) for rows in curves)
    scores = times * np.array([rows["score"][:length] for rows in curves])
    axis.fill_between(
        curves[0]["scored_step"][:length],
        scores.min(0),
        scores.max(0),
        color=COLOURS[HONEST],
        alpha=0.15,
        linewidth=0,
        label=f"honest, {len(curves)} seeds",
    )


class PooledScrutinizer(GradientScrutinizer):
    """Gradient Scrutinizer that takes consecutive batches together until they hold 256 samples.

    A small batch has few pairs with the same label (about 12 in a batch of 16 from ten classes), so that
    its mean similarity scatters; the score takes that for an attack. Taken together they are what a client
    with the paper's batch would see.
    """

    name = "pooled scrutinizer"

    def __init__(self, *, every: int = 50, inclusive: bool = False, client: int = 0) -> None:
        super().__init__(every=every, inclusive=inclusive, client=client)
        self._held: list[tuple[Tensor, Tensor]] = []

    def look(self, rows: Tensor, labels: Tensor) -> float | None:
        self._held.append((rows, labels))
        if sum(len(own) for _, own in self._held) < BATCH:
            return None
        gradients, own = (torch.cat(parts) for parts in zip(*self._held, strict=True))
        self._held = []
        return super().look(gradients, own)


def earlier_forms(scale: str) -> bool:
    """Whether a scale's cells were measured with detectors as they were before they followed the published.

    The differences are in docs/attacks.md: one batch in Gradient Scrutinizer, one batch and the weights of
    two groups in SplitGuard, AMSGrad in SplitOut's local training, the norm in FSHA's penalty.
    """
    return scale == "cpu"


EARLIER_FORMS = (
    "Cells of the scale `cpu` have the detectors and FSHA as they were before they followed the published "
    "code in every step; [detectors](../../../../docs/attacks.md) lists the differences."
)


def scrutinizers(settings: Settings, dataset: Dataset, *, inclusive: bool) -> list[GradientScrutinizer]:
    """Gradient Scrutinizer batch by batch and pooled.

    Both have a score after every 50 batches or, in very short trainings, ten of them.
    """
    every = max(1, min(50, steps(settings, dataset) // 10))
    pooled = max(1, every * settings.federation.batch_size // BATCH)
    return [
        GradientScrutinizer(every=every, inclusive=inclusive, client=CLIENT),
        PooledScrutinizer(every=pooled, inclusive=inclusive, client=CLIENT),
    ]


class SplitOutByBatch(SplitOut):
    """SplitOut with one vector per batch over ten batches, which is closest to the published detector."""

    name = "splitout by batch"


def splitout(settings: Settings, dataset: Dataset, *, amsgrad: bool) -> SplitOut:
    """SplitOut of client 0, sample by sample, with at least 50 local gradients if it has 50 images.

    The window is as many batches as hold 256 samples, of which the paper's alarm needs more than 128.
    """
    held = len(client_parts(settings, dataset)[CLIENT])
    share = min(1.0, max(0.01, LOCAL_GRADIENTS / held))
    local = local_gradients_of_run(settings, dataset, client=CLIENT, share=share, amsgrad=amsgrad)
    window = max(1, BATCH // settings.federation.batch_size)
    # A training of fewer batches than that still gets a verdict.
    return SplitOut(local, window=min(window, steps(settings, dataset)), client=CLIENT)


def splitout_by_batch(settings: Settings, dataset: Dataset, *, amsgrad: bool) -> SplitOut:
    """SplitOut of client 0, batch by batch: its local training goes over all of its images once.

    Where these are fewer than ten batches, it goes over them until there are ten. Only full batches are
    kept: with n − 1 neighbours the farthest local gradient sets the scale, and the few images at the end of
    an epoch would be that one.
    """
    held = len(client_parts(settings, dataset)[CLIENT])
    size = min(settings.federation.batch_size, held)
    local = local_gradients_of_run(
        settings,
        dataset,
        client=CLIENT,
        share=1.0,
        batch_size=size,
        epochs=-(-MINIMUM // (held // size)),
        amsgrad=amsgrad,
    )
    full = [batch for batch in local if len(batch) == size]
    return SplitOutByBatch(full, unit="batch", window=min(10, steps(settings, dataset)), client=CLIENT)


def outliers_per_batch(run: Run, store: Store, *, batch: int = BATCH) -> float:
    """SplitOut's mean number of outliers in a batch of 256, as in the paper's split and length tables.

    The run must have recorded client 0. Batches of another size are counted in proportion.
    """
    detector = splitout(
        run.settings, store.dataset(run.settings), amsgrad=not earlier_forms(store.scale)
    ).replay(recording_of(run))
    return batch * outlier_share(detector)


def outlier_share(detector: SplitOut) -> float:
    """Which share of all gradients were outliers."""
    return sum(detector.curves["outliers"]) / max(1.0, sum(detector.curves["judged"]))


def recording_of(run: Run) -> Recording:
    """The gradients that a run recorded."""
    return Recording(run.folder / "recording")


def steps(settings: Settings, dataset: Dataset) -> int:
    """How many batches client 0 trains on."""
    federation = settings.federation
    batches = -(-len(client_parts(settings, dataset)[CLIENT]) // federation.batch_size)
    return federation.rounds * federation.local_epochs * batches


def normalised(dataset: Dataset, images: Any) -> Tensor:
    """uint8 (n, C, H, W) as float32, like the inputs of the clients."""
    some = Split(images, np.zeros(len(images), np.int64))
    batches = evaluate_batches(some, dataset, batch_size=max(1, len(images)))
    return torch.cat([batch.contiguous() for batch, _ in batches])


def replayed(detector: Detector, run: Run, store: Store, *, whole: bool = False) -> dict[str, Any]:
    """What a cell keeps of a detector that looks at what a run recorded, at the client's own steps.

    A recording may hold one step in twenty, so that its tenth batch is the client's two hundredth. With
    `whole` the detector sees only the rounds without such gaps.
    """
    recording = recording_of(run)
    rounds = recording.whole if whole else None
    in_a_round = steps(run.settings, store.dataset(run.settings)) // run.settings.federation.rounds
    places = [
        (step.at.round - 1) * in_a_round + step.at.step
        for step in recording.steps(client=CLIENT, rounds=rounds, whole=whole)
    ]
    return summary(detector.replay(recording, rounds=rounds), places)


def summary(detector: Detector, places: Sequence[int] | None = None) -> dict[str, Any]:
    """What a cell keeps of a detector: its verdict, and its curves with at most 64 points each.

    `places` are the client's steps at which there was a batch to look at, if these are not all of them.
    """
    scores = detector.curves["score"]

    def at(step: float) -> int:
        return int(step) if places is None else places[int(step) - 1]

    curves = {
        name: [at(step) for step in values] if name in ("step", "scored_step") else values
        for name, values in detector.curves.items()
    }
    found: dict[str, Any] = {
        "steps": detector.step,
        "scores": len(scores),
        "score": detector.score,
        "mean": float(np.mean(scores)) if scores else None,
        "lowest": min(scores, default=None),
        "highest": max(scores, default=None),
        "alarm": detector.alarm,
        "first_alarm": None if detector.first_alarm is None else at(detector.first_alarm),
        "suspicious": 100 * detector.alarm_share,
        "curves": {name: binned(values) for name, values in curves.items()},
    }
    if isinstance(detector, SplitOut):
        found["outliers"] = 100 * outlier_share(detector)
    return found


def suspicious(measured: Measured, names: Mapping[str, str], detector: str) -> dict[str, float | None]:
    """The share (%) of suspicious scores in the first seed's cells of these names, by what each is."""
    found = {text: (measured.first(name) or {}).get(detector, {}) for text, name in names.items()}
    return {text: float(one["suspicious"]) if one.get("scores") else None for text, one in found.items()}


def said(numbers: Mapping[str, Any] | None, detector: str, form: str = USUAL) -> Entry:
    """A detector's verdict in a few words, of all numbers of a cell."""
    if numbers is None:
        return NOT_RUN
    found = numbers.get(detector)
    if found is None:
        return Words("")
    if found["score"] is None:
        return Words("no score")
    alarm = f"**alarm at {found['first_alarm']}**" if found["alarm"] else "no alarm"
    return Words(f"{alarm}, {form.format(**found)}")


def binned(values: Sequence[float], points: int = _POINTS) -> list[float]:
    """A curve with at most `points` points, each the mean of neighbouring ones, to four digits."""
    if not values:
        return []
    parts = np.array_split(np.asarray(values, np.float64), min(points, len(values)))
    return [float(f"{part.mean():.4g}") for part in parts]
