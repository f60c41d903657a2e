"""Repeating an examination in confidence, with the key, and comparing it with what a record says."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Literal

from cryptography.x509 import Certificate
from torch import Tensor, nn

from sigil.data.inputs import Array, Inputs
from sigil.errors import ConfigError, EvidenceError
from sigil.keys.key import Key
from sigil.keys.seal import Seal
from sigil.rules import STAMPED_ALLOWANCE_LOG2
from sigil.suspect import Suspect
from sigil.tracing import Trace, trace
from sigil.verdict.report import AlignmentFacts, Reading, Record, Report
from sigil.verdict.verification import verify

# Answers next to zero may fall on the other side of it on another processor: a few in a million.
_ROUNDING = 1e-3


def open_commitment(report: Record, recorded: Seal | None, key: Key) -> None:
    """Raise `EvidenceError` unless `key` is the one of the record: its statement and its time stamp.

    `recorded` is the time stamp that the record holds.
    """
    if key.statement() != report.key.statement:
        raise EvidenceError(
            "The key does not open the commitment: its statement, with owner, commitment and evidence key, "
            "is not the one in the evidence, which is about another key or under a name that is not the "
            "key's."
        )
    stamp = None if key.stamp is None else key.stamp.sigma
    if stamp != (None if recorded is None else recorded.sigma):
        raise EvidenceError(
            "The key has another time stamp than the evidence, so that it is another key; ask for the "
            "sealed key that the evidence was made with."
        )


def repeat(
    recorded: Report,
    key: Key,
    suspect: Suspect | nn.Module,
    *,
    inputs: Inputs | Array | Tensor | str | os.PathLike[str] | None = None,
    inputs_from: Literal["judge", "defendant"] | None = None,
    reference: nn.Module | str | os.PathLike[str] | None = None,
    roots: Sequence[Certificate] | None = None,
    register: int | None = None,
) -> str:
    """Examine the suspect once more as the record says; one sentence about what came out.

    Raises `EvidenceError` if anything differs.

    What no examination shows, the caller must know: who gave the inputs, which root deserves trust, and how
    many statements a closed register holds. What is missing is a `ConfigError`.
    """
    smaller = recorded.kind == "stamped" and recorded.allowance_of_kind == STAMPED_ALLOWANCE_LOG2
    on_inputs = next((one for one in recorded.readings if one.kind == "inputs"), None)
    used = recorded.alignment
    by_correlations = used is not None and used.compared != "initial weights"
    for missing, words in (
        (
            smaller and roots is None,
            f"The evidence allows for 2^{STAMPED_ALLOWANCE_LOG2} keys because of a time stamp, which holds "
            "under a root that you trust: give its certificate with --tsa-root.",
        ),
        (
            recorded.register_count is not None and register is None,
            f"The evidence says that a judge counted {recorded.register_count or 0:,} statements in a closed "
            "register, and only you can know: confirm it with --register and the number that you counted.",
        ),
        (
            on_inputs is not None and inputs is None,
            "The mark was also read on real inputs: give the same ones with --inputs.",
        ),
        (
            on_inputs is None and inputs is not None,
            "The evidence holds no reading on real inputs: leave --inputs out.",
        ),
        (
            on_inputs is not None and on_inputs.source in ("judge", "defendant") and inputs_from is None,
            f"The evidence says that the {on_inputs and on_inputs.source} gave the inputs, and only you can "
            f"know: confirm it with --inputs-from {on_inputs and on_inputs.source}.",
        ),
        (
            by_correlations and reference is None,
            "Channels were compared with correlations that the training recorded: give them with "
            "--reference-file.",
        ),
    ):
        if missing:
            raise ConfigError(words)
    # Correlations were counted as one more try by the verification itself, and so were models in one file.
    factor = (2 if by_correlations else 1) * len(recorded.suspect.entries)
    found = verify(
        suspect,
        key,
        inputs,
        inputs_from=inputs_from,
        input_shape=recorded.suspect.input_shape,
        probes=next(one for one in recorded.readings if one.kind == "noise").count,
        seed=recorded.seed,
        alpha=recorded.alpha,
        tries=max(1, recorded.tries // factor),
        register=register,
        # An examiner who named no root counted the key as a plain one.
        roots=roots if smaller else None,
        reference=reference,
    )
    counts, differing = _compare(recorded, found)
    _compare_order(used, found.alignment)
    if differing == 0:
        return f"repeated with the key: every number is the same ({counts:,} counts)"
    return (
        f"repeated with the key: the same verdict; {differing:,} answers differ, as rounding on another "
        "processor explains"
    )


def repeat_trace(
    recorded: Trace, key: Key, suspect: Suspect | nn.Module | str | os.PathLike[str], copies: object
) -> str:
    """Trace again, and say in one sentence that it gives what the record says; raise if it does not."""
    tries = recorded.tries // len(recorded.entries)
    again = trace(suspect, key, copies, level=recorded.level, tries=tries, at=recorded.at)  # type: ignore[arg-type]
    ours, theirs = ({each.name: each for each in one.recipients} for one in (again, recorded))
    same = ours.keys() == theirs.keys() and all(
        math.isclose(ours[name].log10_p, theirs[name].log10_p, rel_tol=0.01, abs_tol=0.5) for name in ours
    )
    if not same or again.named != recorded.named:
        raise EvidenceError(
            "Tracing again does not give what the evidence says: other recipients, or other p-values; give "
            "the registers that it was made with."
        )
    return f"repeated with the key and the owner's copies: the same {len(ours):,} recipients and p-values"


def _compare(recorded: Report, found: Report) -> tuple[int, int]:
    """How many counts two reports have, and how many answers differ; raise if by more than rounding."""
    kinds = [[(one.kind, one.aligned) for one in verdict.readings] for verdict in (recorded, found)]
    if sorted(kinds[0]) != sorted(kinds[1]):
        raise _differs("which readings were made")
    counts = differing = 0
    for one in recorded.readings:
        other = next(r for r in found.readings if (r.kind, r.aligned) == (one.kind, one.aligned))
        differing += _differing(one, other)
        counts += len(one.agreements)
    for name in ("owned", "descends", "experiment", "tries", "cuts", "bits", "register_count"):
        if getattr(recorded, name) != getattr(found, name):
            raise _differs(
                f"{name.replace('_', ' ')}, {getattr(found, name)} instead of {getattr(recorded, name)}"
            )
    if not math.isclose(recorded.allowance_log2, found.allowance_log2, abs_tol=1e-9):
        raise _differs("the allowance for keys that could have been drawn")
    return counts, differing


def _compare_order(recorded: AlignmentFacts | None, found: AlignmentFacts | None) -> None:
    if recorded is None or found is None:
        if recorded is not found:
            raise _differs("whether channels were compared with anything")
        return
    for name in ("compared", "reference", "used", "sure_channels"):
        if getattr(recorded, name) != getattr(found, name):
            raise _differs(f"the order of channels, by its {name.replace('_', ' ')}")
    if not math.isclose(recorded.agreement, found.agreement, abs_tol=_ROUNDING):
        raise _differs("the order of channels, by its agreement")


def _differing(recorded: Reading, found: Reading) -> int:
    """How many of the counts differ; raise `EvidenceError` if by more than rounding."""
    for name in ("count", "readable", "source", "digest"):
        if getattr(recorded, name) != getattr(found, name):
            raise _differs(
                f"the {name} of the reading on {recorded.kind}, {getattr(found, name)} instead of "
                f"{getattr(recorded, name)}"
            )
    pairs = list(zip(recorded.agreements, found.agreements, strict=True))
    apart = sum(abs(one - other) for one, other in pairs)
    allowed = 0.0 if recorded.kind == "origin" else _ROUNDING * recorded.count * len(pairs)
    if apart > allowed:
        raise _differs(
            f"the counts of the reading on {recorded.kind}: {100 * found.wsr:.2f} % agree and not "
            f"{100 * recorded.wsr:.2f} %"
        )
    return apart


def _differs(what: str) -> EvidenceError:
    return EvidenceError(f"The examination was repeated and does not give what the evidence says: {what}.")
