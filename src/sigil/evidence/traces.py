"""Records of a trace: what can be checked of them without the owner's copies, and with them."""

from __future__ import annotations

import math
import os

from torch import nn

from sigil.errors import EvidenceError
from sigil.evidence import published
from sigil.evidence.arithmetic import TOLERANCE, check_key, contradiction
from sigil.keys.key import Key
from sigil.keys.seal import Seal
from sigil.suspect import Suspect
from sigil.tracing import Coalition, Recipient, Trace, in_sentences, log10_level, trace


def recompute(found: Trace) -> Seal | None:
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


def repeat(
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


def claims(found: Trace) -> list[tuple[str, str]]:
    """What the record says, as its signer's word."""
    said = [("it claims", line) for line in in_sentences(found).split("\n")]
    file = ("file", f"{found.file}, SHA-256 {found.sha256}")
    return [*said, file, ("commitment", found.key.commitment), ("made on", found.created)]
