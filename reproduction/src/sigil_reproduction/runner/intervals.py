"""How far a mean over seeds can be trusted: Student's t interval, and what it says about a limit.

Trainings of one seed begin with the same weights and take the same images, marked or not, so that what a mark
costs is the mean of the differences of each seed, with *their* scatter.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

LEVEL = 0.95
MARGIN = 1.0
"""Points of accuracy within which two trainings are called the same."""

AGREES, DIFFERS, UNTESTABLE, NOT_RUN = "agrees", "differs", "cannot be tested here", "not run"


@dataclass(frozen=True)
class Interval:
    """A mean, and the half width of its interval; None where there is one seed, which has no scatter."""

    mean: float
    half: float | None
    count: int

    @property
    def ends(self) -> tuple[float, float]:
        """The lower and the upper end; both the mean itself where there is one seed."""
        half = self.half or 0.0
        return self.mean - half, self.mean + half

    def text(self, form: str = ".1f", unit: str = "") -> str:
        """The mean with its interval in words.

        >>> Interval(-0.4, 1.2, 3).text("+.1f")
        '-0.4 [-1.6, +0.8], 3 seeds'
        >>> Interval(99.5, None, 1).text(unit="%")
        '99.5 %, one seed'

        A percentage stays between 0 and 100:

        >>> Interval(99.5, 0.8, 3).text(unit="%")
        '99.5 % [98.7, 100.0], 3 seeds'
        """
        after = f" {unit}" if unit else ""
        if self.half is None:
            return f"{self.mean:{form}}{after}, one seed"
        low, high = self.ends
        if unit.startswith("%"):
            low, high = max(0.0, low), min(100.0, high)
        return f"{self.mean:{form}}{after} [{low:{form}}, {high:{form}}], {self.count} seeds"


def interval(values: Sequence[float]) -> Interval | None:
    """The mean of these values and its two-sided t interval; None without values.

    >>> interval([1.0, 2.0, 3.0])
    Interval(mean=2.0, half=2.4841377118437524, count=3)
    """
    if not values:
        return None
    if len(values) == 1:
        return Interval(values[0], None, 1)
    from scipy.stats import t

    quantile = float(t.ppf((1 + LEVEL) / 2, len(values) - 1))
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(statistics.fmean(values), half, len(values))


def paired(after: Mapping[int, float], before: Mapping[int, float]) -> Interval | None:
    """What became more, over the seeds that have both."""
    return interval([after[seed] - before[seed] for seed in sorted(set(after) & set(before))])


def equivalence(found: Interval | None) -> float | None:
    """The larger p-value of two one-sided t-tests that the mean is above -MARGIN and below +MARGIN.

    None without an interval. A p-value of at most 0.05 shows that the two differ by less than the margin;
    that no difference was seen would not.

    >>> round(equivalence(Interval(0.1, 0.4, 3)), 4), round(equivalence(Interval(-0.2, 2.6, 2)), 4)
    (0.0052, 0.0794)
    """
    if found is None or found.half is None:
        return None
    from scipy.stats import t

    freedom = found.count - 1
    error = found.half / float(t.ppf((1 + LEVEL) / 2, freedom))
    nearest = MARGIN - abs(found.mean)
    return float(t.sf(nearest / error, freedom)) if error else float(nearest <= 0)


def judge_equivalence(found: Interval | None) -> str:
    """Whether two are the same within the margin, are not, or cannot be told apart."""
    p = equivalence(found)
    if found is None or p is None:
        return NOT_RUN if found is None else UNTESTABLE
    if p <= 1 - LEVEL:
        return AGREES
    low, high = found.ends
    return DIFFERS if low > MARGIN or high < -MARGIN else UNTESTABLE


def judge(found: Interval | None, holds: Callable[[float], bool]) -> str:
    """Whether a claim holds over a whole interval, over none of it, or cannot be told apart.

    `holds` is a limit: one side of it agrees.

    >>> judge(Interval(-0.4, 1.2, 3), lambda cost: cost >= -2)
    'agrees'
    >>> judge(Interval(-0.4, 5.0, 2), lambda cost: cost >= -2)
    'cannot be tested here'
    """
    if found is None:
        return NOT_RUN
    held = {holds(value) for value in (*found.ends, found.mean)}
    return UNTESTABLE if len(held) > 1 else AGREES if True in held else DIFFERS
