"""Trainings that are watched live: honest, marked and hijacking servers at both cuts, nothing recorded.

SplitGuard needs them, since it sends batches of its own; the other detectors take the hijackers from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sigil.experiments.lab import stealth
from sigil.experiments.lab.experiment import Measured
from sigil.experiments.lab.scales import Scale
from sigil.experiments.lab.store import Cell
from sigil.federation.settings import Settings

SERVERS = (*stealth.SERVERS, *stealth.ATTACKERS)
CLIENTS = 2


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
        "watermark": stealth.watermark_of(scale, server),
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


def with_attackers(measured: Measured, cut: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and numbers of every recorded server at a cut, and of the attackers, which are watched live."""
    for server in SERVERS:
        live = server in stealth.ATTACKERS
        numbers = measured.first(name_of(cut, server) if live else f"{cut} {server}")
        if numbers is not None:
            yield server, numbers
