"""Read the line that an owner publishes: the statement of a key."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from sigil.errors import EvidenceError

_STATEMENT = re.compile(
    r'sigil-commitment v(?P<version>[0-9]{1,4}) owner=(?P<owner>"(?:[^"\\]|\\.)*")'
    r" shape=(?P<shape>[0-9]{1,10}(?:x[0-9]{1,10}){0,15}) bits=(?P<bits>[0-9]{1,10})"
    r" commitment=(?P<commitment>[0-9a-f]{64}) evidence-key=(?P<evidence_key>[0-9a-f]{64})"
)
MAX_STATEMENT = 2_000


@dataclass(frozen=True)
class Statement:
    """What a published statement pins: the key and the signer of the owner's evidence."""

    owner: str
    shape: tuple[int, ...]
    bits: int
    commitment: str
    evidence_key: str


def parse(line: str) -> Statement:
    """Take a statement apart; anything but exactly one well-formed statement is refused."""
    text = line.strip()
    found = _STATEMENT.fullmatch(text) if len(text) <= MAX_STATEMENT else None
    try:
        owner = json.loads(found["owner"]) if found else None
    except ValueError:
        owner = None
    if found is None or owner is None:
        raise EvidenceError(
            "This is not the statement of a key: give the one published line that begins with "
            "'sigil-commitment', as `sigil key commit` prints it."
        )
    return Statement(
        owner=owner,
        shape=tuple(int(size) for size in found["shape"].split("x")),
        bits=int(found["bits"]),
        commitment=found["commitment"],
        evidence_key=found["evidence_key"],
    )
