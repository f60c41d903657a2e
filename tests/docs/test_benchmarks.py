"""What benchmarks write, and the page that shows it."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest

import common
import page

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_files_give() -> None:
    """After a new file: `python benchmarks/page.py`."""
    assert (ROOT / "benchmarks" / "results" / "README.md").read_text("utf-8") == page.render()


@pytest.mark.parametrize(
    ("name", "heading"), [("peers", "Peers"), ("scale", "Scale"), ("links", "Slow links")]
)
def test_the_page_says_on_what_and_how_busy_a_machine_it_was_measured(name: str, heading: str) -> None:
    section = page.render().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = page.data(name)
    assert found["machine"]["processor"] in section
    assert f"{found['load_average'][0]:.1f}" in section


def test_a_result_tells_where_it_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claims = common.print_claims([("one", 1.5, "<= 2"), ("several", [1.0, 4.0, 2.0], "report")])
    assert "| several | 2 (1 to 4) | report |" in capsys.readouterr().out
    common.write_result(None, {})
    common.write_result(tmp_path / "result.json", {"claims": claims})
    written = json.loads((tmp_path / "result.json").read_text())
    assert written["claims"][1] == {"claim": "several", "measured": 2.0, "target": "report", "all": [1, 4, 2]}
    assert written["machine"]["processor"]
    assert written["versions"]["torch"] == version("torch")
    assert len(written["load_average"]) == 3
