from __future__ import annotations

from sigil.experiments.lab.experiment import Finding, judge, listed


def test_a_claim_must_hold_for_every_number() -> None:
    def high(wsr: float) -> bool:
        return wsr >= 95

    assert judge("High", {"a": 99.0, "b": 96.0}, high) == Finding("High: 99.0 (a), 96.0 (b).", True)
    assert judge("High", {"a": 99.0, "b": 94.0}, high).agrees is False
    assert judge("High", {"a": 99.0, "b": None}, high) == Finding("High: 99.0 (a); 1 not measured.", True)
    assert judge("High", {"a": None, "b": None}, high) == Finding("High: not measured.", None)


def test_findings_as_a_list() -> None:
    text = listed([Finding("One.", True), Finding("Two.", False), Finding("Three.", None)])
    assert text.splitlines() == ["- agrees: One.", "- **differs**: Two.", "- unknown: Three."]
