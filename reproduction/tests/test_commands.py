"""What this package adds to the command line destroys nothing, and is missing in a sentence."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.commands import Command

PLACES = ("fidelity --results OUT --runs fresh", "fidelity --results fresh --runs OUT")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    Path("words.txt").write_text("by hand")
    os.link("words.txt", "hard.html")
    os.symlink("words.txt", "soft.png")
    return tmp_path


@pytest.mark.parametrize("options", PLACES)
@pytest.mark.parametrize(
    "place", ["words.txt", "./there/../words.txt", "hard.html", "soft.png", "words.txt/below/it"]
)
def test_results_and_runs_replace_no_file(options: str, place: str, unchanged: Command) -> None:
    unchanged(f"reproduce {options.replace('OUT', place)}")


def test_tables_beside_the_page_are_outputs_too(unchanged: Command) -> None:
    Path("results/smoke").mkdir(parents=True)
    for name in ("page.md", "page.csv"):
        assert "are the same file" in unchanged(f"report results/smoke --out {name}")
        Path(name).write_text("by hand")
        for more in ("", " --force"):
            line = f"report results/smoke --out page.html{more}"
            assert "is not a report that Sigil wrote" in unchanged(line)
        Path(name).unlink()


def test_reproduce_leaves_a_page_by_hand_alone(unchanged: Command) -> None:
    page = Path("results/smoke/fidelity/README.md")
    page.parent.mkdir(parents=True)
    page.write_text("# fidelity\n\nBy hand.\n")
    assert "is not a page that Sigil wrote" in unchanged("reproduce fidelity --results results")


def test_both_commands_are_entry_points() -> None:
    found = importlib.metadata.entry_points(group="sigil.commands")
    assert {entry.name: entry.value for entry in found} == {
        "reproduce": "sigil_reproduction.commands:reproduce",
        "report": "sigil_reproduction.commands:report",
    }


def test_the_command_line_loads_nothing_heavy_for_them() -> None:
    code = "import sys, sigil.cli.main; print(sorted({'torch', 'numpy', 'matplotlib'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
