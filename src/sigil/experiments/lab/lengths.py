"""Numbers of bits that several experiments try: those of the paper's table, and those that may be proof."""

from __future__ import annotations

from sigil.experiments.lab.scales import PerScale

LENGTHS = PerScale((50, 500, 1_000, 2_000, 3_000), cpu=(50, 500, 1_000, 2_000), smoke=(50, 100))
PROOF = PerScale((50, 128, 160, 256), smoke=(50, 100))
