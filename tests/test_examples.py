"""The examples do what they say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.slow
def test_an_own_server_marks_and_proves(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "own_server.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.startswith("This cut can carry a provable mark")
    assert "marked: The suspect carries the mark" in printed
    assert "clean:  The suspect is not shown to carry the mark" in printed


def test_an_own_server_needs_nothing_but_torch_and_sigil() -> None:
    lines = (EXAMPLES / "own_server.py").read_text().splitlines()
    imported = {line.split()[1] for line in lines if line.startswith(("import ", "from "))}
    assert imported == {"__future__", "sigil", "torch"}
