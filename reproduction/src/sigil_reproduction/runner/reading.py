"""Readings as experiments make them: on noise from a seed, which many keys and models can share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from sigil.keys.key import Key
from sigil.probing import Suspect, noise
from sigil.verdict.readings import Reading, read

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
