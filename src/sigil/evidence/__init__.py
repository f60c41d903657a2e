"""Evidence: what a check finds of the signed records that :meth:`sigil.Report.save_evidence` writes."""

from __future__ import annotations

from sigil.evidence.examination import Checked, Findings, check, examine

__all__ = ["Checked", "Findings", "check", "examine"]
