"""What the verification of a baseline mark finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BaselineReport:
    """The success rate of a mark, 0 to 1, and of how many trials (images or bits) it is."""

    wsr: float
    trials: int
