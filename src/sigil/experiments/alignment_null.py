"""Does alignment leave the null hypothesis alone? Clean models, aligned by force, against keys.

Alignment is only used where a suspect resembles the owner's model. Here it is used on models that have nothing
to do with it, which is the hardest case for the test: whatever the reference carries of the mark would show.

Two kinds of keys. *Random keys* have nothing to do with the reference, so they test the arithmetic. *Real keys*
are those that shaped the reference: each is embedded by a short training of its own, at the highest strength,
whose reference then aligns clean models.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sigil import statistics
from sigil.alignment import Alignment, Reference, align
from sigil.experiments.store import OWNER, Store
from sigil.federation.initial import initial_half
from sigil.federation.run import Run
from sigil.key import Key
from sigil.models import Model
from sigil.probing import noise

PROBES = 512
IMAGES = 200
# Clean models that each reference aligns beside the one of its own number.
SHIFTS = (0, 1, 2)

Floats = npt.NDArray[np.float64]


def random_keys(owner: Run, clean: Run, *, keys: int, images: Tensor) -> dict[str, Any]:
    """p-values of random keys on one clean model, as it is and aligned to the owner's by force."""
    half = clean.halves()[0].eval()
    answers = _answers(half)
    ways = {
        name: answers if alignment is None else alignment(answers)
        for name, alignment in _alignments(half, owner, images).items()
    }
    p: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(keys):
        text = f"sigil alignment key {number} of {clean.settings.run.seed}"
        key = Key.generate(
            OWNER, shape=answers.shape[1:], bits=50, seed=hashlib.sha256(text.encode()).digest()
        )
        for name, values in ways.items():
            p[name].append(judge(values, key)[0])
    return {"p_values": {name: _short(sorted(values)) for name, values in p.items()}}


def real_keys(
    owner: Run, clean: list[Run], marked: list[Run], *, images: Tensor, store: Store
) -> dict[str, Any]:
    """p-values and z-scores of the very keys that shaped the references, on clean models.

    ``marked`` references each align the clean models of their own number and the next two; ``owner`` aligns
    them all. Per pair: the p-value, and z = T/√(Σ w²), which under the null hypothesis has mean 0 and
    deviation 1.
    """
    rows = []
    for number, run in enumerate(clean):
        half = run.halves()[0].eval()
        answers = _answers(half)
        pairs = [("owner", owner)]
        pairs += [
            (str((number + shift) % len(marked)), marked[(number + shift) % len(marked)]) for shift in SHIFTS
        ]
        for name, reference in dict(pairs).items():
            key = store.key(reference.settings)
            assert key is not None
            row: dict[str, Any] = {"reference": name, "clean": number, "p": {}, "z": {}, "sure": {}}
            for way, alignment in _alignments(half, reference, images).items():
                values = answers if alignment is None else alignment(answers)
                row["p"][way], row["z"][way] = _short(judge(values, key))
                if alignment is not None:
                    row["sure"][way] = alignment.sure
                if way == "images":
                    recorded = _recorded(alignment, answers, reference)
                    row["p"]["recorded scales"], row["z"]["recorded scales"] = _short(judge(recorded, key))
            rows.append(row)
    return {"pairs": rows}


def judge(values: Tensor, key: Key) -> tuple[float, float]:
    """The exact p-value of activations (n, *key.shape), and z = T/√(Σ w²)."""
    projection = values.flatten(1) @ key.matrix
    ones = (projection >= 0).sum(0)
    weights = (2 * ones - len(values)).double()
    statistic = ((2 * key.target.double() - 1) * weights).sum()
    found = statistics.p_value(ones.numpy(), key.target.to(torch.int64).numpy(), len(values))
    return 10.0**found.log10_p, float(statistic / weights.square().sum().sqrt().clamp_min(1e-12))


def _answers(half: Model) -> Tensor:
    """What a model says to the probes of the test."""
    assert half.input_shape is not None
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        batches = [half(batch) for batch in noise(half.input_shape, PROBES, generator=generator).split(128)]
    return torch.cat(batches)


def _alignments(half: Model, owner: Run, images: Tensor) -> dict[str, Alignment | None]:
    """Every way to align a model to the owner's, whether it is believed or not."""
    reference = Reference.load(owner.folder / "reference.safetensors")
    return {
        "as it is": None,
        "images": align(half, reference, images),
        "noise": align(half, reference),
        "initial weights": align(half, initial_half(owner.folder)),
    }


def _recorded(alignment: Alignment | None, answers: Tensor, owner: Run) -> Tensor:
    """The same order, but at the scales that the server recorded: what must not be done."""
    assert alignment is not None
    reference = Reference.load(owner.folder / "reference.safetensors")
    wanted = (reference.squares / reference.count).sqrt().float()
    aligned = alignment(answers)
    own = aligned.transpose(0, 1).flatten(1).square().mean(1).sqrt().clamp_min(1e-12)
    return aligned * (wanted / own).view(-1, *[1] * (aligned.ndim - 2))


def _short(values: Any) -> list[float]:
    return [float(f"{value:.4g}") for value in values]
