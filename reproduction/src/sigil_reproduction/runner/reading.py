"""Readings as experiments make them, on noise from a seed, which keys and models share; what is proof."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from sigil.data import Dataset, Inputs
from sigil.keys.key import Key
from sigil.models import Model
from sigil.probing import Suspect, noise
from sigil.rules import PLAIN_ALLOWANCE_LOG2, STAMPED_ALLOWANCE_LOG2, Price
from sigil.verdict.readings import read
from sigil.verdict.report import Reading
from sigil.verdict.verification import read_mark

# What a log10 p must reach to be proof, by the kind of key.
KEYS = {"plain": Price(PLAIN_ALLOWANCE_LOG2), "stamped": Price(STAMPED_ALLOWANCE_LOG2)}
_BATCH = 64


def on_noise(
    suspect: Suspect, key: Key, shape: Sequence[int], *, probes: int = 512, seed: int = 0
) -> Reading:
    """Read a key's mark on the noise of a seed; the same seed gives every key and model the same inputs."""

    def batches() -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        for start in range(0, probes, _BATCH):
            yield noise(shape, min(_BATCH, probes - start), generator=generator)

    return read(suspect, key, batches, kind="noise", count=probes)


def of_mark(half: Model, key: Key, dataset: Dataset) -> tuple[Reading, ...]:
    """The mark on the key's noise and, if there are enough, on the test images: how a verdict begins."""
    return read_mark(half, key, Inputs.of_test(dataset), input_shape=dataset.shape)


def counts(readings: Iterable[Reading]) -> dict[str, Any]:
    """The raw counts of readings of a mark, so that a verdict can be computed again without measuring again.

    ``answers`` are those to noise, ``answers_inputs`` those to images: the number of probes, and for each bit
    how many of them answer as the key asks.
    """
    return {
        "answers" if reading.kind == "noise" else f"answers_{reading.kind}": {
            "count": reading.count,
            "right": [round(reading.count * share) for share in reading.bit_shares],
        }
        for reading in readings
        if reading.bit_shares and not reading.aligned
    }
