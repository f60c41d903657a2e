"""Stealth against SplitGuard, and the positive control of all detectors: trainings watched live.

Client 0 sends a fake batch now and then and compares what comes back (paper, section 2, names SplitGuard but
does not measure it). The same trainings, honest and hijacked, are watched by the other two detectors as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sigil.detectors import GradientScrutinizer, SplitGuard, SplitOut
from sigil.federation.run import Run
from sigil.pages import figures
from sigil.pages.tables import Page, Picture, Table
from sigil_reproduction.runner import stealth, watched_live
from sigil_reproduction.runner.experiment import Experiment, Finding, Measured, check_claim
from sigil_reproduction.runner.store import Cell, Store
from sigil_reproduction.runner.watched_live import CLIENTS, SERVERS, cells, name_of

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


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Train with the detectors at work; for the hijacker also how well it sees the client's images."""
    return watched_live.watched(cell, store)[0]


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
            names=2,
            notes="Each entry: alarm and the client's step at which it was first raised, share of suspicious "
            "scores, last score. Reconstruction: share that is nearer to its own image than to 255 others, "
            "and mean square error in units of the mean image's. SplitGuard's one vector per batch is the "
            f"class-wise sum of the gradients at the cut. These trainings have {CLIENTS} clients at scales "
            f"that limit the images, each with as many images as otherwise. {stealth.EARLIER_FORMS}",
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
        return check_claim(claim, stealth.suspicious(measured, names, "splitguard"), rule, ".0f")

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
