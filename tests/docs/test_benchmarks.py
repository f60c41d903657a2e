"""The page of the benchmarks shows what their files hold."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_files_give() -> None:
    """After a new file: `python benchmarks/page.py`."""
    spec = importlib.util.spec_from_file_location("benchmarks_page", ROOT / "benchmarks" / "page.py")
    assert spec is not None
    assert spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    assert (ROOT / "benchmarks" / "results" / "README.md").read_text("utf-8") == page.render()
