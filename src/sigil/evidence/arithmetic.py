"""Whether a record's numbers follow from each other, and from its statement and time stamp.

Everything is computed again from the recorded counts: each reading's p-value, which of them is the best, the
correction, the verdict. What the record cannot show by itself are the counts.
"""

from __future__ import annotations

import base64
import binascii
import math

from sigil import statistics
from sigil.data.inputs import LEAST_INPUTS
from sigil.errors import EvidenceError, SealError
from sigil.evidence import published
from sigil.keys import seal
from sigil.keys.seal import Seal
from sigil.keys.statement import Statement
from sigil.origin import OCTILES, weighted_share
from sigil.origin import log10_p as origin_log10_p
from sigil.rules import ALPHA, PLAIN_ALLOWANCE_LOG2, STAMPED_ALLOWANCE_LOG2
from sigil.tracing import Coalition, Recipient, Trace, log10_level
from sigil.verdict.choices import least_cuts
from sigil.verdict.report import KeyFacts, Reading, Report, moment_text

# Sums of logarithms may differ in their last digits between machines; verdicts may not.
TOLERANCE = 1e-6


def recompute(report: Report) -> Seal | None:
    """Raise `EvidenceError` unless everything fits together; return the key's time stamp, if it has one."""
    own = published.parse(report.key.statement)
    stamp = check_key(report.key, own, report.bits)
    kinds = [(reading.kind, reading.aligned) for reading in report.readings]
    origins = sum(kind == "origin" for kind, _ in kinds)
    if len(set(kinds)) != len(kinds) or origins > 1 or ("noise", False) not in kinds:
        raise contradiction("it does not hold each kind of reading once, noise among them")
    for reading in report.readings:
        _check_reading(reading, report.bits, own)
    least = least_cuts(own.fields)
    if report.cuts < least:
        raise contradiction(
            f"its key leaves at least {least} cuts and input shapes open, and it counts {report.cuts}"
        )
    if report.tries % len(report.suspect.entries):
        raise contradiction("it did not count each model in the file as a try")
    _check_verdict(report, stamped=stamp is not None)
    if not report.experiment:
        _check_nothing_chosen(report, own)
    return stamp


def recompute_trace(found: Trace) -> Seal | None:
    """Raise `EvidenceError` unless everything fits together; return the key's time stamp, if it has one.

    The p-values before correction are the claimant's: they follow from copies that no record shows.
    """
    own = published.parse(found.key.statement)
    stamp = check_key(found.key, own, own.fields.bits)
    if found.log10_level > log10_level(own.fields) + TOLERANCE or found.tries % len(found.entries):
        raise contradiction("its level is too mild, or it did not count each model in the file as a try")
    # At least that: a recipient of several copies, and each way to put a group together, is paid for as well.
    price = found.paid_log10 + math.log10(len(found.recipients))
    every: list[Recipient | Coalition] = [*found.recipients]
    every += [] if found.coalition is None else [found.coalition]
    for one in every:
        least = price if isinstance(one, Recipient) else found.paid_log10
        if one.contained != (one.log10_p <= found.log10_level):
            raise contradiction("a copy is not contained by the p-value that stands beside it")
        if one.log10_p < min(0.0, one.log10_p_before + least) - TOLERANCE:
            raise contradiction("a p-value was multiplied by less than what was tried")
    return stamp


def check_key(key: KeyFacts, own: Statement, bits: int) -> Seal | None:
    """Raise unless the statement and the time stamp say what is written beside them; return the stamp."""
    stated = (own.fields.owner, own.fields.shape, own.fields.bits, own.commitment)
    if stated != (key.owner, key.shape, bits, key.commitment):
        raise contradiction("its key statement does not describe the key that it reports")
    stamp = None if key.token is None else _read_token(key.token, own)
    shown = (None, None) if stamp is None else (moment_text(stamp.time), stamp.authority)
    if (key.stamped_at, key.authority) != shown or (key.kind == "stamped") != (stamp is not None):
        raise contradiction("its time stamp does not say what is written beside it")
    return stamp


def _read_token(token: str, own: Statement) -> Seal:
    if own.fields.seal == "none":
        raise contradiction("it holds a time stamp for a key that states none")
    try:
        return seal.read(base64.b64decode(token, validate=True), own.digest)
    except (binascii.Error, SealError) as error:
        raise EvidenceError(f"The time stamp in the evidence is not sound. {error}") from None


def _check_reading(reading: Reading, bits: int, own: Statement) -> None:
    if reading.kind == "origin":
        _check_origin(reading)
        return _check_source(reading, own)
    agreements = reading.agreements
    expected = bits if reading.readable else 0
    fits = len(agreements) == expected and 0 <= reading.incomplete <= reading.count
    if not fits or not all(0 <= count <= reading.count for count in agreements):
        raise contradiction("its agreements do not fit its numbers of bits and answers")
    if list(agreements) != sorted(agreements, reverse=True):
        raise contradiction("its agreements are not sorted")
    answers = reading.count * len(agreements)
    wsr = sum(agreements) / answers if answers else 0.5
    if not math.isclose(reading.wsr, wsr, abs_tol=1e-12):
        raise contradiction("a success rate does not follow from its agreements")
    _check_source(reading, own)
    if not reading.readable:
        log10_p, exact = 0.0, True
    else:
        tail = statistics.tail(reading.weights, reading.statistic)
        log10_p, exact = tail.log10_p, tail.exact
    # A bound stays true when a later version computes the exact value below it.
    safe_bound = exact and not reading.exact and reading.log10_p_before >= log10_p
    if not (_close(reading.log10_p_before, log10_p) and exact == reading.exact) and not safe_bound:
        raise contradiction("a p-value does not follow from its agreements")


def _check_origin(reading: Reading) -> None:
    """The counts per octile, and what follows from them."""
    agreeing, tested = reading.octiles
    if (
        len(reading.agreements) != 2 * OCTILES
        or sum(tested) != reading.count
        or not all(0 <= agreed <= count for agreed, count in zip(agreeing, tested, strict=True))
    ):
        raise contradiction("its agreements do not fit its numbers of weights")
    if not math.isclose(reading.wsr, weighted_share(agreeing, tested), abs_tol=1e-12):
        raise contradiction("a success rate does not follow from its agreements")
    found = origin_log10_p(agreeing, tested)
    if not (_close(reading.log10_p_before, found) and reading.exact and reading.readable):
        raise contradiction("a p-value does not follow from its agreements")


def _check_source(reading: Reading, own: Statement) -> None:
    """Only inputs are chosen by anybody; noise and weights follow from the key."""
    if reading.kind != "inputs":
        fits = reading.source == "key" and reading.digest is None
    elif reading.source == "statement":
        fits = reading.digest is not None and reading.digest == own.fields.inputs_digest
    else:
        fits = reading.source != "key" and reading.digest is not None
    if not fits:
        raise contradiction("who chose the inputs of a reading does not fit its statement")


def _check_verdict(verdict: Report, *, stamped: bool) -> None:
    allowances: tuple[float, ...] = (PLAIN_ALLOWANCE_LOG2,)
    if stamped:  # counted as a plain one where the examiner named no root
        allowances = (STAMPED_ALLOWANCE_LOG2, PLAIN_ALLOWANCE_LOG2)
    if verdict.register_count is not None:
        allowances = (math.log2(verdict.register_count),)
    if not any(_close(verdict.allowance_log2, one) for one in allowances):
        raise contradiction("its allowance is not that of its kind of key")
    best, origin, price, level = verdict.best, verdict.origin, verdict.price, math.log10(verdict.alpha)
    corrected = price.corrected(best.log10_p_before)
    if not _close(verdict.log10_p, corrected if best.counts or verdict.experiment else 0.0):
        raise contradiction("its corrected p-value does not follow from its readings")
    descent = 0.0 if origin is None else price.corrected(origin.log10_p_before)
    if not _close(verdict.log10_p_origin, descent):
        raise contradiction("its corrected p-value of the origin does not follow from its readings")
    needed = best.threshold(price.level(verdict.alpha))
    recorded = math.inf if verdict.threshold is None else verdict.threshold
    needed = needed if needed <= 1.0 else math.inf
    if not (math.isclose(recorded, needed, abs_tol=1e-9) or (not best.exact and recorded > needed)):
        raise contradiction("its threshold does not follow from its agreements")
    sound = not verdict.experiment and verdict.alpha <= ALPHA
    if verdict.owned != (sound and best.counts and verdict.log10_p <= level):
        raise contradiction("its verdict does not follow from its p-value")
    if verdict.descends != (sound and origin is not None and verdict.log10_p_origin <= level):
        raise contradiction("its verdict on the origin does not follow from its p-value")


def _check_nothing_chosen(report: Report, own: Statement) -> None:
    """What the statement settles must have been done so, or it is an experiment and has to say so."""
    verdict, fields = report, own.fields
    asked, shape = fields.probes, fields.input_shape
    for wrong, words in (
        (verdict.seed is not None, "the seed of its noise was chosen"),
        (verdict.alpha > ALPHA, f"its level is above {ALPHA:g}"),
        (verdict.alpha > float(fields.alpha), "its level is above the stated one"),
        (
            any(one.kind == "noise" and one.count != asked for one in verdict.readings),
            f"its key asks for {asked} probes",
        ),
        (
            any(one.kind == "inputs" and one.count != LEAST_INPUTS for one in verdict.readings),
            f"a mark is read on {LEAST_INPUTS} inputs",
        ),
        (shape is not None and shape != report.suspect.input_shape, "its key states another input shape"),
        (
            fields.seal != "none" and report.key.token is None,
            "its key awaits a time stamp",
        ),
        (
            # The origin's order is found by the signs that the key did not hold out.
            any(one.aligned for one in verdict.readings if one.kind != "origin")
            and not (report.alignment is not None and report.alignment.used),
            "it does not say what channels were put in order by",
        ),
        (
            report.alignment is not None
            and report.alignment.used
            and (report.alignment.compared != "initial weights" or fields.initialiser is None),
            "its channels were put in order by something that its key did not draw",
        ),
    ):
        if wrong:
            raise contradiction(f"{words}, so that it is an experiment, and it does not say so")


def _close(recorded: float, computed: float) -> bool:
    return math.isclose(recorded, computed, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def contradiction(what: str) -> EvidenceError:
    """The refusal of a record whose numbers do not fit together: `what` is wrong, in words."""
    return EvidenceError(f"The evidence contradicts itself: {what}; do not rely on it.")
