"""The lines that an owner publishes: the statement of a key, and the references of a training with it.

A reference decides which channel of a suspect is which, and anybody who chooses it afterwards can choose the
order that suits a key. So its fingerprint is published as well, when the training is done:

    sigil-reference v1 commitment=<64 hex digits> initial-weights=<64 hex digits> correlations=<64 hex digits>

Either of the last two may be missing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sigil.errors import EvidenceError
from sigil.keys import statement as statements
from sigil.keys.statement import MAX_STATEMENT, Statement

_REFERENCES = re.compile(
    r"sigil-reference v1 commitment=(?P<commitment>[0-9a-f]{64})"
    r"(?: initial-weights=(?P<initial>[0-9a-f]{64}))?(?: correlations=(?P<correlations>[0-9a-f]{64}))?"
)


@dataclass(frozen=True)
class References:
    """What an owner may show to put channels in order: fingerprints, by `sigil.alignment.fingerprint`."""

    commitment: str
    initial_weights: str | None
    correlations: str | None

    def __contains__(self, fingerprint: str) -> bool:
        return fingerprint in (self.initial_weights, self.correlations)

    def line(self) -> str:
        """One line to publish or timestamp when the training is done."""
        known = {"initial-weights": self.initial_weights, "correlations": self.correlations}
        parts = [f"{name}={value}" for name, value in known.items() if value is not None]
        return " ".join([f"sigil-reference v1 commitment={self.commitment}", *parts])


def parse(line: str) -> Statement:
    """Take a statement apart; anything but exactly one well-formed statement is refused."""
    found = statements.parse(line.strip())
    if found is None:
        raise EvidenceError(
            "This is not the statement of a key: give the one published line, byte for byte as "
            "`sigil key commit` prints it."
        )
    return found


def parse_references(line: str) -> References:
    """Take a line of references apart; anything but exactly one well-formed line is refused."""
    found = _REFERENCES.fullmatch(line.strip()) if len(line) <= MAX_STATEMENT else None
    if found is None or not (found["initial"] or found["correlations"]):
        raise EvidenceError(
            "This is not a line of references: give the one published line that begins with "
            "'sigil-reference', as `sigil key reference` prints it."
        )
    return References(found["commitment"], found["initial"], found["correlations"])
