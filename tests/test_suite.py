"""The suite watches over itself: patterns that name tests, and processes that outlive them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from harness.waiting import until

ROOT = Path(__file__).parents[1]
# A child that starts a child of its own and leaves it alone. The latter says when it runs: while its program
# is being loaded, a process has no environment to be known by.
ORPHAN = """
import subprocess, sys
command = [sys.executable, "-c", "print(flush=True); input()"]
child = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
child.returncode = 0
sys.stdin.read()
"""


def test_the_patterns_of_the_markers_name_files_that_exist(patterns: tuple[str, ...]) -> None:
    files = [pattern.partition("::")[0] for pattern in patterns]
    places = [name.replace("reproduction/", "reproduction/tests/", 1) for name in files]
    places = [place if place.startswith("reproduction/") else f"tests/{place}" for place in places]
    gone = [place for place in places if not list(ROOT.glob(place))]
    assert gone == []


def test_a_childs_child_is_found_until_it_ends(leftovers: Callable[[], list[str]]) -> None:
    assert leftovers() == []
    command = [sys.executable, "-c", ORPHAN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        assert sorted(line.rsplit(" ")[-1] == "input()" for line in leftovers()) == [False, True]
    # The child read the end of its input when its parent had gone; nothing else ended it.
    until(lambda: leftovers() == [])
