"""Stealth against SplitGuard, and the positive control of all detectors: trainings watched live.

Client 0 sends a fake batch now and then and compares what comes back (paper, section 2, names SplitGuard but
does not measure it). The same trainings, honest and hijacked, are watched by the other two detectors as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sigil.detectors import GradientScrutinizer, SplitGuard, SplitOut
from sigil.experiments.lab import stealth
from sigil.experiments.lab.experiment import Experiment, Finding, Results, judge
from sigil.experiments.lab.scales import Scale
from sigil.experiments.lab.store import Cell, Result, Store
from sigil.experiments.pages import figures
from sigil.experiments.pages.tables import MISSING, markdown
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
    server = cell.options["server"]
    attacker = None
    if server in stealth.ATTACKERS:
        attacker = stealth.make_attacker(settings, dataset, strength=stealth.ATTACKERS[server])
    federation, detectors = stealth.watch(settings, store, attacker=attacker)
    numbers: dict[str, Any] = {
        "accuracy": 100 * federation.accuracy(),
        **{detector.name: stealth.summary(detector) for detector in detectors},
    }
    if attacker is not None:
        own = stealth.normalised(dataset, dataset.train.images[federation.parts[stealth.CLIENT][:256]])
        seen = stealth.reconstruct(attacker, federation.halves()[0], own)
        numbers |= stealth.quality(attacker, seen, own)
    return numbers


def show(cells: list[Cell], results: Results, folder: Path) -> str:
    """SplitGuard's score over training, then what each detector says of each server."""
    figure, axes = figures.panels(len(stealth.CUTS))
    first = min((cell.seed for cell in cells), default=0)
    for axis, cut in zip(axes, stealth.CUTS, strict=True):
        for server in SERVERS:
            result = results.get((name_of(cut, server), first))
            if result is not None:
                rows = result.numbers["splitguard"]["curves"]
                style = {"color": stealth.COLOURS[server], "label": stealth.label(server)}
                figures.curve(axis, rows["scored_step"], rows["score"], **style)
        axis.axhline(0.5, color="0.5", linewidth=1, linestyle="--")
        axis.set(title=f"cut at {cut}", xlabel="step of the client", ylabel="score", ylim=(-0.03, 1.03))
    figures.legend(axes[0], {"loc": "center right", "bbox_to_anchor": (1, 0.72), "ncols": 2})
    figures.save(figure, folder / "splitguard.png")
    lines = [
        [
            cut,
            stealth.label(server),
            *(said(results.get((name_of(cut, server), first)), name) for name in NAMES),
            _seen(results.get((name_of(cut, server), first))),
        ]
        for cut in stealth.CUTS
        for server in SERVERS
    ]
    table = markdown(["cut", "server", *NAMES, "reconstruction"], lines)
    return (
        f"![SplitGuard's score over training](splitguard.png)\n\n{table}\n"
        "Each entry: alarm and the client's step at which it was first raised, share of suspicious scores, "
        "last score. Reconstruction: share that is nearer to its own image than to 255 others, and mean "
        "square error in units of the mean image's. One vector a batch for "
        "SplitGuard is the class-wise sum of the gradients at the cut. These trainings have "
        f"{CLIENTS} clients at scales that limit the images, each with as many images as otherwise.\n"
    )


def said(result: Result | None, name: str) -> str:
    """A detector's verdict in a few words."""
    if result is None:
        return MISSING
    found = result.numbers[name]
    if found["score"] is None:
        return "no score"
    verdict = f"**alarm at {found['first_alarm']}**" if found["alarm"] else "no alarm"
    return f"{verdict}, {found['suspicious']:.0f} % suspicious, last {found['score']:.2f}"


def _seen(result: Result | None) -> str:
    if result is None or "nearest" not in result.numbers:
        return ""
    found = result.numbers
    return f"{found['nearest']:.1f} % (chance {found['chance']:.1f} %), error {found['error']:.2f}"


def verdict(cells: list[Cell], results: Results) -> list[Finding]:
    """Does SplitGuard clear the honest server and the mark, and catch the hijacker?"""

    def finding(claim: str, servers: Sequence[str], rule: Callable[[float], bool]) -> Finding:
        names = {
            f"{cut} {stealth.label(server)}": name_of(cut, server)
            for cut in stealth.CUTS
            for server in servers
        }
        return judge(claim, stealth.suspicious(results, names, "splitguard"), rule, ".0f")

    return [
        finding("No score of an honest server is suspicious (%)", [stealth.HONEST], lambda share: share == 0),
        finding("Scores of FSHA are suspicious (%)", list(stealth.ATTACKERS), lambda share: share > 0),
        finding("No score of Sigil is suspicious (%)", list(stealth.MARKED), lambda share: share == 0),
    ]


EXPERIMENT = Experiment(
    name="splitguard",
    caption=(
        "Trainings watched live by client 0: SplitGuard's fake batches against honest, marked and hijacking "
        "servers, with the other two detectors beside it (ResNet-18)."
    ),
    cells=cells,
    measure=measure,
    show=show,
    verdict=verdict,
)
