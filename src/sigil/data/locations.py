"""Where data sets and their decoded caches live on disk."""

from __future__ import annotations

import os
from pathlib import Path

from sigil.errors import DataError


def data_directory(data_dir: str | os.PathLike[str] | None, *, name: str) -> Path:
    """Give the directory that holds the data sets: the argument, or else `SIGIL_DATA`.

    `name` is the data set that is wanted, for the error message only.
    """
    chosen = data_dir if data_dir is not None else os.environ.get("SIGIL_DATA")
    if not chosen:
        raise DataError(
            f"No data directory was given for '{name}': give --data-dir or set SIGIL_DATA to a "
            f"directory, and fill it with `sigil data fetch {name}`."
        )
    return Path(chosen).expanduser()


def cache_roots(beside: Path | None) -> list[Path]:
    """List the directories that may hold decoded images, best first.

    `SIGIL_CACHE` when it is set and nothing else; otherwise `.sigil-cache` beside the data (`beside`
    is the data directory, None for a set that has none), then `~/.cache/sigil` for data directories
    that cannot be written.
    """
    chosen = os.environ.get("SIGIL_CACHE")
    if chosen:
        return [Path(chosen).expanduser()]
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "sigil"
    return [home] if beside is None else [beside / ".sigil-cache", home]
