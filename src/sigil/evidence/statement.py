"""The lines that an owner publishes: the statement of a key, and the references of a training with it.

A reference decides which channel of a suspect is which, and anybody who chooses it afterwards can choose the
order that suits a key. So its fingerprint is published as well, when the training is done:

    sigil-reference v1 commitment=<64 hex digits> initial-weights=<64 hex digits> correlations=<64 hex digits>

Either of the last two may be missing.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from sigil.errors import ConfigError, EvidenceError
from sigil.keys import statement as statements

_STATEMENT = re.compile(
    r'sigil-commitment v1 owner=(?P<owner>"(?:[^"\\]|\\.)*")'
    r" shape=(?P<shape>[0-9]{1,10}(?:x[0-9]{1,10}){0,15}) bits=(?P<bits>[0-9]{1,10})"
    r" commitment=(?P<commitment>[0-9a-f]{64}) evidence-key=(?P<evidence_key>[0-9a-f]{64})"
)
_REFERENCES = re.compile(
    r"sigil-reference v1 commitment=(?P<commitment>[0-9a-f]{64})"
    r"(?: initial-weights=(?P<initial>[0-9a-f]{64}))?(?: correlations=(?P<correlations>[0-9a-f]{64}))?"
)
MAX_STATEMENT = 2_000


@dataclass(frozen=True)
class Statement:
    """What a published statement pins: the key and the signer of the owner's evidence.

    `fields` is all that a key of version 2 states, None for a key of version 1; `digest` is what a time stamp
    over it is a stamp of.
    """

    owner: str
    shape: tuple[int, ...]
    bits: int
    commitment: str
    evidence_key: str
    fields: statements.KeyFields | None = None
    digest: bytes = b""


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
    text = line.strip()
    if (known := statements.parse(text)) is not None:
        fields = known.fields
        return Statement(
            fields.owner,
            fields.shape,
            fields.bits,
            known.commitment,
            known.evidence_key,
            fields,
            known.digest,
        )
    found = _STATEMENT.fullmatch(text) if len(text) <= MAX_STATEMENT else None
    first = None if found is None else _first(found, text)
    if first is None:
        raise EvidenceError(
            "This is not the statement of a key: give the one published line, byte for byte as "
            "`sigil key commit` prints it."
        )
    fields = first.fields
    return Statement(fields.owner, fields.shape, fields.bits, first.commitment, first.evidence_key)


def _first(found: re.Match[str], text: str) -> statements.Statement | None:
    """A statement of version 1, or None if it is not in its one spelling."""
    try:
        fields = statements.KeyFields(
            owner=json.loads(found["owner"]),
            shape=tuple(int(size) for size in found["shape"].split("x")),
            bits=int(found["bits"]),
            version=1,
        )
    except (ValueError, ConfigError):
        return None
    known = statements.Statement(fields, found["commitment"], found["evidence_key"])
    return known if known.text == text else None


def parse_references(line: str) -> References:
    """Take a line of references apart; anything but exactly one well-formed line is refused."""
    found = _REFERENCES.fullmatch(line.strip()) if len(line) <= MAX_STATEMENT else None
    if found is None or not (found["initial"] or found["correlations"]):
        raise EvidenceError(
            "This is not a line of references: give the one published line that begins with "
            "'sigil-reference', as `sigil key reference` prints it."
        )
    return References(found["commitment"], found["initial"], found["correlations"])
