"""Trainings that are watched live: honest, marked and hijacking servers at both cuts, nothing recorded.

SplitGuard needs them, since it sends batches of its own; the other detectors take the hijackers from here.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sigil.attacks.fsha import FSHA, PenaltyOver
from sigil.data import Dataset
from sigil.detectors import Detector, SplitGuard
from sigil.federation.federation import Federation
from sigil.federation.from_settings import build_halves
from sigil.federation.precision import choose
from sigil.federation.settings import Settings
from sigil_reproduction.runner import stealth
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.scales import Scale
from sigil_reproduction.runner.store import Cell, Store

SERVERS = (*stealth.SERVERS, *stealth.ATTACKERS)
CLIENTS = 2
SEEN = 256  # images that an attacker reconstructs


def name_of(cut: str, server: str) -> str:
    """Name of a cell: unlike those of the recorded trainings, beside which it is shown."""
    return f"live {cut} {server}"


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Every server at both cuts."""
    return [
        Cell(
            "splitguard",
            name_of(cut, server),
            seed,
            (),
            {"cut": cut, "server": server},
            live=_settings(scale, seed, cut, server),
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


def watch(
    settings: Settings, store: Store, *, attacker: FSHA | None = None
) -> tuple[Federation, list[Detector]]:
    """Train with all detectors at client 0; SplitGuard's fake batches are hidden from the others."""
    dataset = store.dataset(settings)
    count = stealth.steps(settings, dataset)
    # In trainings that are too short for 20 fake batches at the usual rate, every other batch may be fake.
    earlier = stealth.earlier_forms(store.scale)
    guard = SplitGuard(
        dataset.classes,
        probability=min(0.5, max(0.1, 20 / count)),
        warmup=min(20 if earlier else 21, count // 10),
        by_count=earlier,
        seed=settings.run.seed,
        client=stealth.CLIENT,
    )
    detectors: list[Detector] = [guard, *stealth.scrutinizers(settings, dataset, inclusive=earlier)]
    detectors += [
        make(settings, dataset, amsgrad=not earlier) for make in (stealth.splitout, stealth.splitout_by_batch)
    ]
    federation = Federation(
        settings,
        dataset,
        key=store.new_key(settings),
        client_observers=detectors,
        server_factory=None if attacker is None else attacker.server,
    )
    for _ in range(settings.federation.rounds):
        federation.run_round()
    federation.close()
    return federation, detectors


def watched(cell: Cell, store: Store) -> tuple[dict[str, Any], tuple[npt.NDArray[np.int64], Tensor] | None]:
    """What a cell keeps of a training watched live.

    Of an attacker also how well it sees the first images of client 0, and these images: their places among
    the training images, and what it sees of them.
    """
    settings, server, attacker = cell.live, cell.options["server"], None
    assert settings is not None
    dataset = store.dataset(settings)
    if server in stealth.ATTACKERS:
        over: PenaltyOver = "all" if stealth.earlier_forms(store.scale) else "channel"
        attacker = make_attacker(settings, dataset, strength=stealth.ATTACKERS[server], penalty_over=over)
    federation, detectors = watch(settings, store, attacker=attacker)
    numbers: dict[str, Any] = {
        "accuracy": 100 * federation.accuracy(),
        **{detector.name: stealth.summary(detector) for detector in detectors},
    }
    if attacker is None:
        return numbers, None
    own = federation.training.parts[stealth.CLIENT][:SEEN]
    images = stealth.normalised(dataset, dataset.train.images[own])
    seen = reconstruct(attacker, federation.halves()[0], images)
    return numbers | quality(attacker, seen, images), (own, seen)


def make_attacker(
    settings: Settings,
    dataset: Dataset,
    *,
    strength: float | None,
    width: int = 16,
    penalty_over: PenaltyOver = "channel",
) -> FSHA:
    """FSHA for a training; its public images are test images, which no client has."""
    shape = build_halves(settings, classes=dataset.classes, input_shape=dataset.shape).shape
    place = choose(settings.run.device, settings.run.precision).device
    return FSHA(
        stealth.normalised(dataset, dataset.test.images[: stealth.PUBLIC_IMAGES]).to(place),
        shape,
        width=width,
        lr=3e-3,
        discriminator_lr=3e-3,
        penalty_over=penalty_over,
        strength=strength,
        seed=settings.run.seed,
    )


@torch.no_grad()
def reconstruct(attacker: FSHA, client_half: nn.Module, images: Tensor) -> Tensor:
    """What the attacker sees of a batch (n, C, H, W) as clients send it: in training mode."""
    half = copy.deepcopy(client_half).train()
    return attacker.decode(half(images.to(attacker.public.device))).cpu()


def quality(attacker: FSHA, seen: Tensor, images: Tensor) -> dict[str, float]:
    """How well a batch is seen.

    ``error`` is the mean square distance in units of that to the mean public image (1: nothing but the
    average). ``nearest`` is the share (%) of reconstructions that are nearer to their own image than to all
    others of the batch, and ``chance`` what guessing would give.
    """
    average = attacker.public.mean(0).cpu()
    nearest = torch.cdist(seen.flatten(1), images.flatten(1)).argmin(1)
    return {
        "error": float((seen - images).square().mean() / (average - images).square().mean()),
        "nearest": 100 * float((nearest == torch.arange(len(images))).float().mean()),
        "chance": 100 / len(images),
    }
