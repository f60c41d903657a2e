"""Records of version 1, as releases before stamped keys wrote them: read and checked for ever.

They hold one reading, on noise whose seed the examiner chose, and their p-value is corrected for the tries
declared and for nothing else: not for keys that could have been drawn beforehand.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from sigil import statistics
from sigil.evidence import statement as statements
from sigil.evidence.contradictions import contradiction
from sigil.evidence.forms import (
    MAX_BITS,
    MAX_COUNT,
    AlignmentFacts,
    Bits,
    Command,
    Hash,
    Level,
    Line,
    Log10,
    Moment,
    Name,
    Seed,
    Shape,
    Share,
    Software,
    Strict,
    SuspectFacts,
    Tries,
)
from sigil.keys.length import PLAIN_ALLOWANCE_LOG2, TESTS
from sigil.statistics import PAPER_THRESHOLD

# Sums of logarithms may differ in their last digits between machines; verdicts may not.
_TOLERANCE = 1e-6


class FirstVerdict(Strict):
    """The outcome of the test and the numbers that it follows from."""

    owned: bool
    wsr: Share
    log10_p: Log10
    exact: bool
    alpha: Level
    threshold: Share | None
    tries: Tries
    bits: Bits
    probes: Annotated[int, Field(ge=1, le=MAX_COUNT)]
    probe_seed: Seed
    agreements: Annotated[tuple[int, ...], Field(min_length=1, max_length=MAX_BITS)]
    paper_rule: bool

    @property
    def log10_p_today(self) -> float:
        """The p-value multiplied by what a plain key's verdict is multiplied by today."""
        price = math.log10(TESTS) + PLAIN_ALLOWANCE_LOG2 * math.log10(2)
        return min(0.0, self.log10_p + price)


class FirstKeyFacts(Strict):
    """What may be known of the owner's key."""

    owner: Name
    commitment: Hash
    statement: Line
    shape: Shape


class FirstFacts(Strict):
    """All that one run of `sigil verify` found, before keys were stamped."""

    format: Literal["sigil-evidence"] = "sigil-evidence"
    version: Literal[1] = 1
    created: Moment
    command: Command
    verdict: FirstVerdict
    alignment: AlignmentFacts | None
    key: FirstKeyFacts
    suspect: SuspectFacts
    software: Software


def recompute(facts: FirstFacts) -> None:
    """Raise `EvidenceError` unless every number follows from the recorded agreements."""
    verdict = facts.verdict
    agreements, probes = verdict.agreements, verdict.probes
    if len(agreements) != verdict.bits or not all(0 <= count <= probes for count in agreements):
        raise contradiction("its agreements do not fit its numbers of bits and probes")
    if list(agreements) != sorted(agreements, reverse=True):
        raise contradiction("its agreements are not sorted")
    if not math.isclose(verdict.wsr, sum(agreements) / (probes * verdict.bits), abs_tol=1e-12):
        raise contradiction("its success rate does not follow from its agreements")

    weights = [abs(2 * count - probes) for count in agreements]
    tail = statistics.tail(weights, sum(2 * count - probes for count in agreements))
    log10_p = statistics.correct(tail.log10_p, verdict.tries)
    close = math.isclose(verdict.log10_p, log10_p, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    # A bound stays true when a later version computes the exact value below it.
    safe_bound = tail.exact and not verdict.exact and verdict.log10_p >= log10_p
    if not (close and tail.exact == verdict.exact) and not safe_bound:
        raise contradiction("its p-value does not follow from its agreements")
    needed = statistics.threshold(weights, probes=probes, alpha=verdict.alpha / verdict.tries)
    recorded = math.inf if verdict.threshold is None else verdict.threshold
    if not (math.isclose(recorded, needed, abs_tol=1e-9) or (safe_bound and recorded > needed)):
        raise contradiction("its threshold does not follow from its agreements")
    if verdict.owned != (verdict.log10_p <= math.log10(verdict.alpha)):
        raise contradiction("its verdict does not follow from its p-value")
    if verdict.paper_rule != (verdict.wsr > PAPER_THRESHOLD):
        raise contradiction("the paper's rule does not follow from its success rate")
    own = statements.parse(facts.key.statement)
    if own.fields is not None:
        raise contradiction(
            "a record of version 1 cannot be about a key of version 2, whose rules are stricter"
        )
    if (own.owner, own.shape, own.bits, own.commitment) != (
        facts.key.owner,
        facts.key.shape,
        verdict.bits,
        facts.key.commitment,
    ):
        raise contradiction("its key statement does not describe the key that it reports")
