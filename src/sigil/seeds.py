"""One seed, many independent random streams: each is named by what it is for.

A stream depends on nothing but the run's seed and its own name, so that a round can be repeated, resumed or
computed on another machine without replaying what came before it.
"""

from __future__ import annotations

import hashlib

import torch


def derive(seed: int, *name: str | int) -> int:
    """A 63-bit seed for the stream with this name.

    >>> derive(0, "batches", 3, 1) == derive(0, "batches", 3, 1) != derive(0, "batches", 1, 3)
    True
    """
    text = "\x1f".join([str(seed), *map(str, name)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *name: str | int) -> torch.Generator:
    """A CPU generator for the stream with this name."""
    return torch.Generator().manual_seed(derive(seed, *name))
