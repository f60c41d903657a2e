from __future__ import annotations

from itertools import pairwise

import pytest

from sigil.federation.from_settings import learning_rate


def rates(rounds: int, warmup: int) -> list[float]:
    return [
        learning_rate(r, rounds=rounds, base=0.1, minimum=1e-4, warmup_rounds=warmup)
        for r in range(1, rounds + 1)
    ]


def test_the_papers_schedule() -> None:
    got = rates(80, 5)
    assert got[:5] == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1])
    assert got[-1] == pytest.approx(1e-4)
    assert all(later < earlier for earlier, later in pairwise(got[4:]))
    # Half way through the cosine the rate is half way between its ends.
    assert learning_rate(42, rounds=79, base=0.1, minimum=1e-4, warmup_rounds=5) == pytest.approx(
        (0.1 + 1e-4) / 2
    )


@pytest.mark.parametrize(("rounds", "warmup"), [(1, 0), (1, 5), (2, 0), (3, 3), (5, 10)])
def test_short_runs_have_positive_finite_rates(rounds: int, warmup: int) -> None:
    assert all(0 < rate <= 0.1 + 1e-12 for rate in rates(rounds, warmup))


def test_without_warmup_the_first_round_has_the_full_rate() -> None:
    assert rates(10, 0)[0] == pytest.approx(0.1)
