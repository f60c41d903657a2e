"""Evidence: the facts of a verification as a page for people and as a signed file for checking."""

from __future__ import annotations

from sigil.evidence.facts import Facts, gather
from sigil.evidence.page import SignedRecord, render
from sigil.evidence.signed import Checked, check, sign

__all__ = ["Checked", "Facts", "SignedRecord", "check", "gather", "render", "sign"]
