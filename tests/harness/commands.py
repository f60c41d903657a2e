"""Command lines in tests: the fixtures `succeed` and `refused` run them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

Command = Callable[..., str]
"""Runs a command line, which must end as the fixture's name says; returns what it printed."""


def contents() -> dict[str, str]:
    """All files of the current folder, the locks of runs aside, by their names and hashes."""
    files = [path for path in Path().rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
