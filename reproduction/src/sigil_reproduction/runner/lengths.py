"""Numbers of bits that several experiments try: those of the paper's table, and those that may be proof."""

from __future__ import annotations

from typing import Any

from sigil_reproduction.runner.scales import PerScale, Scale

LENGTHS = PerScale((50, 500, 1_000, 2_000, 3_000), cpu=(50, 500, 1_000, 2_000), smoke=(50, 100))
PROOF = PerScale((50, 128, 160, 256), smoke=(50, 100))
# A bit for every 16 dimensions of the cut, as a new key has, so that a plain key could be proof at all.
NEW_KEY = PerScale(512, desk=256, cpu=128, smoke=32)


def shares(scale: Scale) -> dict[str, Any]:
    """Watermark settings of the scheme that a new training takes, with as many bits as a new key has."""
    return {"scheme": "shares", "strength": 0.3, "bits": NEW_KEY.at(scale)}
