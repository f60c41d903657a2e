"""Data sets by their names: is there anything under this name? Asked before anything heavy is imported."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from sigil.cli.outputs import there
from sigil.errors import DataError

EMBEDDED = ("digits", "digits32")
# A test compares this list with `sigil.data.names()`, which it costs seconds to ask.
NAMES = (*EMBEDDED, "cifar10", "tiny-imagenet", "fashion-mnist")


def check_data(option: str, name: str | None, data_dir: Path | None = None) -> None:
    """Raise if a data set is a folder, or in a directory, that does not exist."""
    if name is None:
        return
    kind, _, rest = name.partition(":")
    if kind == "folder" and rest and not there(Path(rest).expanduser()):
        raise DataError(f"{rest} cannot be read: it does not exist; check {option}.")
    directory = str(data_dir) if data_dir is not None else os.environ.get("SIGIL_DATA")
    if kind in NAMES and kind not in EMBEDDED and directory and not there(Path(directory).expanduser()):
        raise DataError(
            f"{directory} does not exist, where {kind} was looked for; check --data-dir, or download it with "
            f"`sigil data fetch {kind} --data-dir {directory}`."
        )


def check_inputs(source: str | None, data_dir: Path | None = None) -> None:
    """Raise if inputs to read a mark on are neither a file nor a folder nor a data set."""
    if source is None or there(Path(source).expanduser()):
        return
    kind = source.partition(":")[0]
    if kind in (*NAMES, "folder", "hub"):
        check_data("--inputs", source, data_dir)
    elif os.sep in source or Path(source).suffix:
        raise DataError(f"{source} cannot be read: it does not exist; check --inputs.")


def check_changes(changes: Sequence[str], data_dir: Path | None) -> None:
    """Raise if settings given one by one name a data set that is not there."""
    for change in changes:
        name, equals, value = change.partition("=")
        if equals and name.strip() == "data.name":
            check_data("--set data.name", value.strip().strip("\"'"), data_dir)
