"""What one verification found: readings, corrections and the verdict."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from sigil import statistics
from sigil.alignment import Alignment
from sigil.keys.seal import Root
from sigil.rules import TESTS, Price
from sigil.verdict import wording
from sigil.verdict.readings import Reading

PAPER_THRESHOLD: Final = statistics.PAPER_THRESHOLD
"""The paper's fixed rule, ``WSR > 0.70``: reported beside the verdict, never instead of it."""


@dataclass(frozen=True)
class Entry:
    """Which model of a file was read: the ``name`` of its entry, empty if the file holds it as such.

    ``names`` are those of all models in the file that were counted as tries, and ``unread`` is the number of
    further ones, and of tensors that there was no room to look at.
    """

    name: str
    description: str
    names: tuple[str, ...]
    unread: int


@dataclass(frozen=True)
class Report:
    """What one verification found.

    ``owned`` is the verdict on the mark: the best reading's p-value, corrected for everything that could
    have been chosen, is at most ``alpha``. ``descends`` is that on the origin of the weights, corrected
    likewise. Neither is ever true of an experiment: ``reasons`` says what was chosen by the person who
    ran the test.

    ``readings`` holds every reading, before correction. ``wsr``, ``bit_shares``, ``margins`` and
    ``bit_error`` are those of the best one, ``log10_p`` and ``p_value`` its p-value after correction by the
    ``price`` (:mod:`sigil.rules`), ``log10_p_before`` the one before.
    ``threshold`` is the smallest WSR at which this suspect would have been found owned by that reading
    (infinite if none would do: the key is too short). ``alignment`` says what channels were compared with,
    if they were. ``entry`` says which model in a file this is about.
    """

    owned: bool
    descends: bool
    readings: tuple[Reading, ...]
    log10_p: float
    log10_p_origin: float
    alpha: float
    tries: int
    cuts: int
    allowance_log2: float
    bits: int
    commitment: str
    owner: str
    kind: Literal["plain", "stamped"]
    threshold: float
    register: int | None = None
    authority: Root | None = None
    seed: int | None = None
    alignment: Alignment | None = None
    reasons: tuple[str, ...] = ()
    entry: Entry | None = field(default=None, compare=False)
    best: Reading = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "best", best_of(self.readings))

    @property
    def experiment(self) -> bool:
        """Whether something was chosen that nobody may choose, so that nothing is proven either way."""
        return bool(self.reasons)

    @property
    def p_value(self) -> float:
        """The corrected p-value; 0.0 if it is too small for a float, where ``log10_p`` still holds."""
        return float(10.0**self.log10_p)

    @property
    def price(self) -> Price:
        """What p was multiplied by."""
        return Price(self.allowance_log2, cuts=self.cuts, tries=self.tries)

    @property
    def log10_p_before(self) -> float:
        """The best reading's p-value before correction."""
        return self.best.log10_p_before

    @property
    def exact(self) -> bool:
        """Whether the best reading's p-value is exact; otherwise it is a proven upper bound."""
        return self.best.exact

    @property
    def wsr(self) -> float:
        """The watermark success rate of the best reading."""
        return self.best.wsr

    @property
    def probes(self) -> int:
        """The number of inputs of the best reading."""
        return self.best.count

    @property
    def bit_error(self) -> float:
        """The share of bits that the best reading's majority gets wrong."""
        return self.best.bit_error

    @property
    def bit_shares(self) -> tuple[float, ...]:
        """Per bit, the share of the best reading's answers that are right."""
        return self.best.bit_shares

    @property
    def margins(self) -> tuple[float, ...]:
        """Per bit, how far on the right side of zero the best reading lies."""
        return self.best.margins

    @property
    def weights(self) -> tuple[int, ...]:
        """The numbers whose random signs make up the null distribution of the best reading."""
        return self.best.weights

    @property
    def paper_rule(self) -> bool:
        """Whether the paper's fixed rule is met by the best reading."""
        return self.wsr > PAPER_THRESHOLD

    @property
    def aligned(self) -> bool:
        """Whether the suspect's channels were put back in order for the best reading."""
        return self.best.aligned

    def reading(self, kind: str, *, aligned: bool = False) -> Reading | None:
        """The reading of a kind, or None if it was not made."""
        found = (one for one in self.readings if one.kind == kind and one.aligned == aligned)
        return next(found, None)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON values; an infinite threshold becomes ``None``."""
        order = self.alignment
        return {
            "owned": self.owned,
            "descends": self.descends,
            "experiment": self.experiment,
            "reasons": list(self.reasons),
            "wsr": self.wsr,
            "p_value": self.p_value,
            "log10_p": self.log10_p,
            "log10_p_before": self.log10_p_before,
            "log10_p_origin": self.log10_p_origin,
            "exact": self.exact,
            "threshold": self.threshold if math.isfinite(self.threshold) else None,
            "alpha": self.alpha,
            "tests": TESTS,
            "tries": self.tries,
            "cuts": self.cuts,
            "allowance_log2": self.allowance_log2,
            "register": self.register,
            "authority": None if self.authority is None else dataclasses.asdict(self.authority),
            "kind": self.kind,
            "bits": self.bits,
            "probes": self.probes,
            "seed": self.seed,
            "bit_error": self.bit_error,
            "bit_shares": list(self.bit_shares),
            "margins": list(self.margins),
            "paper_rule": self.paper_rule,
            "commitment": self.commitment,
            "owner": self.owner,
            "readings": [reading.to_dict() for reading in self.readings],
            "aligned": self.aligned,
            "alignment": None if order is None else order.source,
            "reference": None if order is None else order.fingerprint,
            "sure_channels": None if order is None else order.sure,
            "agreement": None if order is None else order.agreement,
            "entry": None if self.entry is None else self.entry.name,
            "entries": [] if self.entry is None else list(self.entry.names),
            "unread": 0 if self.entry is None else self.entry.unread,
        }

    def sentence(self) -> str:
        """The verdict in one sentence for people."""
        return wording.sentence(self, owner=self.owner, aligned=self.aligned)

    def __str__(self) -> str:
        return self.sentence()


def best_of(readings: Sequence[Reading]) -> Reading:
    """The reading of the mark that says most: those that count come first, then the smallest p-value."""
    marks = [reading for reading in readings if reading.kind != "origin"]
    return min(marks, key=lambda reading: (not reading.counts, reading.log10_p_before, -reading.wsr))
