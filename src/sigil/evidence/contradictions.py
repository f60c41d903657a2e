"""The one sentence about evidence that contradicts itself."""

from __future__ import annotations

from sigil.errors import EvidenceError


def contradiction(what: str) -> EvidenceError:
    """The error to raise for a record of which `what` is wrong, in words."""
    return EvidenceError(f"The evidence contradicts itself: {what}; do not rely on it.")
