"""Stealth against SplitGuard, and the positive control of all detectors: trainings watched live.

Client 0 sends a fake batch now and then and compares what comes back (paper, section 2, names SplitGuard but
does not measure it). The same trainings, honest and hijacked, are watched by the other two detectors as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sigil.detectors import GradientScrutinizer, SplitGuard, SplitOut
from sigil.experiments.lab import stealth
from sigil.experiments.lab.experiment import Experiment, Finding, Measured, judge
from sigil.experiments.lab.scales import Scale
from sigil.experiments.lab.store import Cell, Store
from sigil.experiments.pages import figures
from sigil.experiments.pages.tables import Page, Picture, Table
from sigil.federation.run import Run
from sigil.federation.settings import Settings, make

SERVERS = (*stealth.SERVERS, *stealth.ATTACKERS)
CLIENTS = 2
NAMES = tuple(
    kind.name
    for kind in (
        SplitGuard,
        GradientScrutinizer,
        stealth.PooledScrutinizer,
        SplitOut,
        stealth.SplitOutByBatch,
    )
)


def name_of(cut: str, server: str) -> str:
    """Name of a cell: unlike those of the recorded trainings, beside which it is shown."""
    return f"live {cut} {server}"


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Every server at both cuts."""
    return [
        Cell(
            experiment="splitguard",
            name=name_of(cut, server),
            seed=seed,
            # Nothing is left on the disk of these trainings; their settings stand in the cell.
            trainings=(),
            options={
                "cut": cut,
                "server": server,
                "settings": _settings(scale, seed, cut, server).model_dump(
                    mode="json", exclude_defaults=True
                ),
            },
        )
        for seed in seeds
        for cut in stealth.CUTS
        for server in SERVERS
    ]


def _settings(scale: Scale, seed: int, cut: str, server: str) -> Settings:
    """A small training; where the scale limits the images, with two clients, each holding as many as ever.

    Client 0 is watched, and the other is there to be averaged with. The test images are those that a hijacker
    takes for its own.
    """
    sections: dict[str, Any] = {
        "watermark": stealth.SERVERS.get(server, {"strength": 0.0}),
        **stealth.changes(scale, cut),
    }
    settings = scale.settings(seed=seed, variation=True, **sections)
    limit, clients = settings.data.train_limit, settings.federation.clients
    if limit is None or clients <= CLIENTS:
        return settings
    sections["data"] = {"train_limit": limit * CLIENTS // clients, "test_limit": stealth.PUBLIC_IMAGES}
    sections["federation"] = {"clients": CLIENTS}
    return scale.settings(seed=seed, variation=True, **sections)


def controls(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """The positive control of the other detectors' pages, and the honest training to compare it with."""
    wanted = (stealth.HONEST, *stealth.ATTACKERS)
    return [cell for cell in cells(scale, seeds) if cell.options["server"] in wanted]


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Train with the detectors at work; for the hijacker also how well it sees the client's images."""
    settings = make(cell.options["settings"])
    dataset = store.dataset(settings)
    numbers, _ = stealth.watched(settings, store, dataset, cell.options["server"])
    return numbers


def with_attackers(measured: Measured, cut: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and numbers of every recorded server at a cut, and of the attackers, which are watched live."""
    for server in SERVERS:
        live = server in stealth.ATTACKERS
        numbers = measured.first(name_of(cut, server) if live else f"{cut} {server}")
        if numbers is not None:
            yield server, numbers


def show(measured: Measured, folder: Path) -> Page:
    """SplitGuard's score over training, then what each detector says of each server."""
    figure, axes = figures.panels(len(stealth.CUTS))
    rows = []
    for axis, cut in zip(axes, stealth.CUTS, strict=True):
        for server in SERVERS:
            numbers = measured.first(name_of(cut, server))
            if numbers is not None:
                curves = numbers["splitguard"]["curves"]
                figures.curve(axis, curves["scored_step"], curves["score"], **stealth.style(server))
            said = (stealth.said(numbers, name) for name in NAMES)
            rows.append([cut, stealth.label(server), *said, _seen(numbers)])
        axis.axhline(0.5, color="0.5", linewidth=1, linestyle="--")
        axis.set(title=f"cut at {cut}", xlabel="step of the client", ylabel="score", ylim=(-0.03, 1.03))
    figures.legend(axes[0], {"loc": "center right", "bbox_to_anchor": (1, 0.72), "ncols": 2})
    figures.save(figure, folder / "splitguard.png")
    return [
        Picture("SplitGuard's score over training", "splitguard.png"),
        Table(
            ["cut", "server", *NAMES, "reconstruction"],
            rows,
            notes="Each entry: alarm and the client's step at which it was first raised, share of suspicious "
            "scores, last score. Reconstruction: share that is nearer to its own image than to 255 others, "
            "and mean square error in units of the mean image's. SplitGuard's one vector per batch is the "
            f"class-wise sum of the gradients at the cut. These trainings have {CLIENTS} clients at scales "
            "that limit the images, each with as many images as otherwise.",
        ),
    ]


def _seen(numbers: dict[str, Any] | None) -> str:
    if numbers is None or "nearest" not in numbers:
        return ""
    return "{nearest:.1f} % (chance {chance:.1f} %), error {error:.2f}".format(**numbers)


def verdict(measured: Measured) -> list[Finding]:
    """Does SplitGuard clear the honest server and the mark, and catch the hijacker?"""

    def finding(claim: str, servers: Sequence[str], rule: Callable[[float], bool]) -> Finding:
        names = {
            f"{cut} {stealth.label(server)}": name_of(cut, server)
            for cut in stealth.CUTS
            for server in servers
        }
        return judge(claim, stealth.suspicious(measured, names, "splitguard"), rule, ".0f")

    return [
        finding("No score of an honest server is suspicious (%)", [stealth.HONEST], lambda share: share == 0),
        finding("Scores of FSHA are suspicious (%)", list(stealth.ATTACKERS), lambda share: share > 0),
        finding("No score of Sigil is suspicious (%)", list(stealth.MARKED), lambda share: share == 0),
    ]


CAPTION = (
    "Trainings watched live by client 0: SplitGuard's fake batches against honest, marked and hijacking "
    "servers, with the other two detectors beside it (ResNet-18)."
)
EXPERIMENT = Experiment("splitguard", CAPTION, cells, show, measure, verdict)
