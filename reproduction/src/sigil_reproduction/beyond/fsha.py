"""The positive control at work: FSHA reconstructs a client's images, and all three detectors look on.

A detector that does not catch this attack says nothing about stealth. Two clients with handwritten digits,
ResNet-18 cut at layer1, Adam as in the published attack; 1,438 private images, the test images are the
attacker's. The honest server trains in exactly the same setting.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sigil.data import Dataset
from sigil.federation.run import Run
from sigil.federation.settings import Settings, make
from sigil.pages import figures
from sigil.pages.tables import Page, Picture, Table
from sigil_reproduction.beyond import splitguard
from sigil_reproduction.runner import stealth, watched_live
from sigil_reproduction.runner.experiment import Experiment, Finding, Measured, check_claim
from sigil_reproduction.runner.scales import PerScale, Scale
from sigil_reproduction.runner.store import Cell, Store

SERVERS = (stealth.HONEST, stealth.FSHA_AS_PUBLISHED)
SHOWN = 12
ROUNDS = PerScale(12, smoke=1)  # the same small training at the other scales


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """The hijacked training and the honest one."""
    return [
        Cell(
            "fsha",
            f"digits {server}",
            seed,
            (),
            {"server": server},
            live=_settings(seed, ROUNDS.at(scale)),
        )
        for seed in seeds
        for server in SERVERS
    ]


def _settings(seed: int, rounds: int) -> Settings:
    return make(
        {
            "model": {"name": "resnet18", "width": 8, "cut": "layer1"},
            "data": {"name": "digits"},
            "federation": {
                "clients": 2,
                "rounds": rounds,
                "local_epochs": 10 if rounds > 1 else 1,
                "batch_size": 64,
            },
            "optimizer": {
                "name": "adam",
                "lr": 1e-3,
                "lr_min": 1e-3,
                "warmup_rounds": 0,
                "weight_decay": 0.0,
            },
            "watermark": {"strength": 0.0},
            "run": {"seed": seed, "precision": "float32", "threads": 1, "workers": 1},
        }
    )


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Train with the detectors at work; then what the attacker sees of client 0's images."""
    numbers, found = watched_live.watched(cell, store)
    if found is not None:
        own, seen = found
        assert cell.live is not None
        dataset = store.dataset(cell.live)
        numbers["pictures"] = {
            "shape": [SHOWN, *dataset.shape],
            "original": _packed(dataset.train.images[own[:SHOWN]]),
            "seen": _packed(pixels(dataset, seen[:SHOWN])),
        }
    return numbers


def pixels(dataset: Dataset, images: Tensor) -> npt.NDArray[np.uint8]:
    """Normalised float images (n, C, H, W) back on the scale 0 to 255."""
    mean, std = (np.array(values).reshape(-1, 1, 1) for values in (dataset.mean, dataset.std))
    return np.rint(255 * np.clip(images.numpy() * std + mean, 0, 1)).astype(np.uint8)


def _packed(images: npt.NDArray[np.uint8]) -> str:
    return base64.b64encode(np.ascontiguousarray(images).tobytes()).decode("ascii")


def show(measured: Measured, folder: Path) -> Page:
    """Originals above reconstructions, and what each detector says."""
    names = splitguard.NAMES
    found = {server: measured.first(f"digits {server}") for server in SERVERS}
    rows = [
        [stealth.label(server), *(stealth.said(numbers, name) for name in names)]
        for server, numbers in found.items()
    ]
    table = Table(["server", *names], rows)
    hijacked = found[stealth.FSHA_AS_PUBLISHED]
    if hijacked is None:
        return [table]
    _draw(hijacked["pictures"], folder / "fsha.png")
    return [
        Picture("Originals above reconstructions", "fsha.png"),
        f"Above, the first {SHOWN} images of client 0; below, what the attacker sees of them. "
        f"{hijacked['nearest']:.1f} % of {watched_live.SEEN} reconstructions are nearer to their own image "
        f"than to the others (by chance {hijacked['chance']:.1f} %); the mean square error is "
        f"{hijacked['error']:.2f} of the mean image's. How little it sees through deeper cuts is in "
        "[splitguard](../splitguard/).",
        table,
        stealth.EARLIER_FORMS,
    ]


def _draw(pictures: dict[str, Any], path: Path) -> None:
    rows = [
        np.frombuffer(base64.b64decode(pictures[name]), np.uint8).reshape(pictures["shape"])
        for name in ("original", "seen")
    ]
    figure, axes = figures.panels(2 * SHOWN, columns=SHOWN)
    figure.set_size_inches(SHOWN * 0.8, 1.8)
    for axis, image in zip(axes, [image for row in rows for image in row], strict=True):
        axis.imshow(image.transpose(1, 2, 0).squeeze(), cmap="gray", vmin=0, vmax=255)
        axis.set_axis_off()
    figures.save(figure, path)


def verdict(measured: Measured) -> list[Finding]:
    """The attack works, each detector catches it, and none suspects the honest server."""
    hijacked = measured.first(f"digits {stealth.FSHA_AS_PUBLISHED}")
    nearest = None if hijacked is None else hijacked["nearest"]

    def suspicious(server: str) -> dict[str, float | None]:
        return {
            name: share
            for name in splitguard.NAMES
            for share in stealth.suspicious(measured, {name: f"digits {server}"}, name).values()
        }

    return [
        check_claim(
            "Most reconstructions are recognised (%)", {"nearest": nearest}, lambda share: share > 50
        ),
        check_claim(
            "Each detector suspects FSHA (% of scores)",
            suspicious(stealth.FSHA_AS_PUBLISHED),
            lambda share: share > 0,
            ".0f",
        ),
        check_claim(
            "and clears an honest server",
            suspicious(stealth.HONEST),
            lambda share: share == 0,
            ".0f",
        ),
    ]


CAPTION = "Feature-space hijacking of a small federation on digits: reconstructed images and detectors."
EXPERIMENT = Experiment("fsha", CAPTION, cells, show, measure, verdict)
