"""Does alignment leave the null hypothesis alone? Clean models, aligned by force, against keys.

Alignment is only used where a suspect resembles the owner's model. Here it is used on models that have
nothing to do with it, which is the hardest case for the test: whatever the reference carries of the mark
would show.

Two kinds of keys. *Random keys* have nothing to do with the reference, so they test the arithmetic. *Real
keys* are those that shaped the reference: the owner's, and others that were each embedded by a short training
of its own, at the highest strength, whose reference then aligns clean models.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy  # loads scipy.optimize, which takes a second, only where it is used
import torch
from torch import Tensor

from sigil import statistics
from sigil.alignment import Alignment, Reference, align, initial_half
from sigil.federation.run import Run
from sigil.keys.key import Key
from sigil.models import Model
from sigil.probing import noise
from sigil_reproduction.runner.keys import OWNER
from sigil_reproduction.runner.store import Store

PROBES = 512
IMAGES = 200
# Probes where many keys are held against many models.
FEW = 128

Floats = npt.NDArray[np.float64]


def random_keys(owner: Run, clean: Run, *, keys: int, images: Tensor, store: Store) -> dict[str, Any]:
    """p-values of random keys on one clean model, as it is and aligned to the owner's by force."""
    half = clean.halves()[0].eval()
    answers = _answers(half)
    alignments = _alignments(half, owner, images, store.key(owner))
    ways = {name: _aligned(alignment, answers) for name, alignment in alignments.items()}
    p: dict[str, list[float]] = {name: [] for name in ways}
    for key in _drawn(keys, tuple(answers.shape[1:]), f"of {clean.settings.run.seed}"):
        for name, values in ways.items():
            p[name].append(p_and_z(values, key)[0])
    return {
        "p_values": {name: _short(sorted(values)) for name, values in p.items()},
        "sure": _sure(alignments),
    }


def real_keys(
    owner: Run, clean: list[Run], marked: list[Run], *, keys: int, images: Tensor, store: Store
) -> dict[str, Any]:
    """p-values and z-scores of the very keys that shaped the references, on clean models.

    ``marked`` references each align the clean model of their own number; ``owner`` aligns them all. Per pair:
    the p-value, and z = T/√(Σ w²), which under the null hypothesis has mean 0 and deviation 1. Activations of
    all clean models point the same way on average, so for one key the scores on different models are much
    alike: the owner's mean is to be held against those of ``keys`` random keys on the same models.
    """
    rows = []
    to_owner: dict[str, list[Tensor]] = {}
    for number, run in enumerate(clean):
        half = run.halves()[0].eval()
        answers = _answers(half)
        for name, reference in (("owner", owner), (str(number), marked[number])):
            key = store.key(reference)
            assert key is not None
            row: dict[str, Any] = {"reference": name, "clean": number, "p": {}, "z": {}}
            alignments = _alignments(half, reference, images, key)
            for way, values in _ways(alignments, answers, reference).items():
                row["p"][way], row["z"][way] = _short(p_and_z(values, key))
                if name == "owner":
                    to_owner.setdefault(way, []).append(values[:FEW])
            rows.append(row | {"sure": _sure(alignments)})
    own = store.key(owner)
    assert own is not None
    return {
        "pairs": rows,
        "owner": {way: _short([_mean_z(values, own)])[0] for way, values in to_owner.items()},
        "random": _random_means(to_owner, keys, own.shape),
    }


def chosen_afterwards(clean: Run, key: Key) -> dict[str, Any]:
    """What a claimant gets out of a clean model who may name any order of channels: WSR (%) and p.

    The order that brings the mean activation closest to Σ_j s_j M_j, one linear assignment.
    """
    half = clean.halves()[0].eval()
    answers = _answers(half)
    maps = answers.mean(0).flatten(1)
    maps = maps / answers.transpose(0, 1).flatten(1).std(1).clamp_min(1e-6)[:, None]
    wanted = (key.matrix @ (2 * key.target - 1)).view(len(maps), -1)
    order = scipy.optimize.linear_sum_assignment((wanted @ maps.T).numpy(), maximize=True)[1]
    chosen = answers[:, order] / answers.transpose(0, 1).flatten(1).std(1).clamp_min(1e-6)[order, None, None]
    found = {}
    for name, values in (("as it is", answers), ("chosen", chosen)):
        projection = values.flatten(1) @ key.matrix
        right = ((projection >= 0) == (key.target == 1)).double().mean()
        found[name] = {"wsr": 100 * float(right), "log10_p": float(np.log10(p_and_z(values, key)[0]))}
    return found


def p_and_z(values: Tensor, key: Key) -> tuple[float, float]:
    """The exact p-value of activations (n, *key.shape), and z = T/√(Σ w²)."""
    ones, z = _scores(values, key)
    found = statistics.p_value(ones.numpy(), key.target.to(torch.int64).numpy(), len(values))
    return 10.0**found.log10_p, z


def _scores(values: Tensor, key: Key) -> tuple[Tensor, float]:
    ones = (values.flatten(1) @ key.matrix >= 0).sum(0)
    weights = (2 * ones - len(values)).double()
    statistic = ((2 * key.target.double() - 1) * weights).sum()
    return ones, float(statistic / weights.square().sum().sqrt().clamp_min(1e-12))


def _mean_z(models: list[Tensor], key: Key) -> float:
    return float(np.mean([_scores(values, key)[1] for values in models]))


def _random_means(
    to_owner: dict[str, list[Tensor]], keys: int, shape: tuple[int, ...]
) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {way: [] for way in to_owner}
    for key in _drawn(keys, shape, "beside the owner's"):
        for way, models in to_owner.items():
            found[way].append(_mean_z(models, key))
    return {way: _short(sorted(values)) for way, values in found.items()}


def _drawn(count: int, shape: tuple[int, ...], purpose: str) -> Iterator[Key]:
    for number in range(count):
        text = f"sigil alignment key {number} {purpose}"
        yield Key.generate(OWNER, shape=shape, bits=50, seed=hashlib.sha256(text.encode()).digest())


def _answers(half: Model) -> Tensor:
    """What a model says to the probes of the test."""
    assert half.input_shape is not None
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        batches = [half(batch) for batch in noise(half.input_shape, PROBES, generator=generator).split(128)]
    return torch.cat(batches)


def _alignments(half: Model, owner: Run, images: Tensor, key: Key | None) -> dict[str, Alignment | None]:
    """Every way to align a model to the owner's, whether it is believed or not."""
    reference = Reference.load(owner.folder / "reference.safetensors")
    return {
        "as it is": None,
        "images": align(half, reference, images),
        "noise": align(half, reference),
        "initial weights": align(half, initial_half(owner.folder, key)),
    }


def _ways(alignments: dict[str, Alignment | None], answers: Tensor, owner: Run) -> dict[str, Tensor]:
    """Answers as they are, aligned, and with the order by images but the scales that the server recorded."""
    found = {way: _aligned(alignment, answers) for way, alignment in alignments.items()}
    reference = Reference.load(owner.folder / "reference.safetensors")
    wanted = (reference.squares / reference.count).sqrt().float()
    values = found["images"]
    own = values.transpose(0, 1).flatten(1).square().mean(1).sqrt().clamp_min(1e-12)
    return found | {"recorded scales": values * (wanted / own).view(-1, *[1] * (values.ndim - 2))}


def _aligned(alignment: Alignment | None, answers: Tensor) -> Tensor:
    return answers if alignment is None else alignment(answers)


def _sure(alignments: dict[str, Alignment | None]) -> dict[str, dict[str, Any]]:
    """How far each alignment was from being believed."""
    return {
        way: {
            "sure": found.sure,
            "partners": int((found.order >= 0).sum()),
            "channels": len(found.order),
            "believed": found.believed,
        }
        for way, found in alignments.items()
        if found is not None
    }


def _short(values: Any) -> list[float]:
    return [float(f"{value:.4g}") for value in values]
