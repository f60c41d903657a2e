"""The learning rate of each round: linear warm-up, then cosine (paper, appendix B)."""

from __future__ import annotations

import math

from sigil.federation.settings import Settings


def learning_rate(
    round_number: int, *, rounds: int, base: float, minimum: float, warmup_rounds: int
) -> float:
    """Learning rate of round 1, 2, …, `rounds`.

    Rises linearly to `base` at round `warmup_rounds`, then falls as a half cosine to `minimum` at the last.

    >>> [round(learning_rate(r, rounds=80, base=0.1, minimum=1e-4, warmup_rounds=5), 4) for r in (1, 5, 80)]
    [0.02, 0.1, 0.0001]
    """
    if round_number <= warmup_rounds:
        return base * round_number / warmup_rounds
    progress = (round_number - max(warmup_rounds, 1)) / max(1, rounds - max(warmup_rounds, 1))
    return minimum + 0.5 * (base - minimum) * (1 + math.cos(math.pi * progress))


def scheduled_rate(settings: Settings, round_number: int) -> float:
    """Learning rate of a round of a training with these settings."""
    optimizer = settings.optimizer
    return learning_rate(
        round_number,
        rounds=settings.federation.rounds,
        base=optimizer.lr,
        minimum=optimizer.lr_min,
        warmup_rounds=optimizer.warmup_rounds,
    )
