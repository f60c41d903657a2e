"""Evidence: what a check finds of the signed records that :meth:`sigil.Report.save_evidence` writes."""

from __future__ import annotations

from sigil.evidence.examination import Findings, examine

__all__ = ["Findings", "examine"]
