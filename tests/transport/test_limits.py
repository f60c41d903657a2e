"""Limits are above zero, and the docs tell them."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from sigil.errors import ConfigError
from sigil.transport import Limits, Metrics, Reason


@pytest.mark.parametrize("name", [entry.name for entry in fields(Limits)])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_limit_is_above_zero(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        Limits(**{name: value})


def table(heading: str) -> dict[str, str]:
    """The first two columns of a table in the docs."""
    page = (Path(__file__).parents[2] / "docs" / "network-threats.md").read_text("utf-8")
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", section, re.MULTILINE))


def test_the_docs_list_every_limit_with_its_default() -> None:
    documented = table("Limits")
    defaults = {entry.name: entry.default for entry in fields(Limits)}
    assert documented.pop("samples_per_batch") == "batch size + 1"
    assert defaults.pop("samples_per_batch") is None
    assert {name: None if value == "none" else float(value) for name, value in documented.items()} == defaults


def test_the_docs_list_every_reason() -> None:
    assert list(table("Reasons")) == [reason.value for reason in Reason]


def test_the_docs_name_every_metric() -> None:
    page = (Path(__file__).parents[2] / "docs" / "network-threats.md").read_text("utf-8")
    samples = {
        family.name if family.type in ("gauge", "histogram") else f"{family.name}_total"
        for family in Metrics().registry.collect()
    }
    assert samples == set(re.findall(r"`(sigil_\w+)`", page.split("\n## Metrics\n")[1]))
