"""What may be written to a terminal and into a record, and how."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Sequence
from typing import TextIO

# Options that name a file with a secret, and what stands in the place of its name.
_SECRET_FILES = {
    "--key": "KEY",
    "-k": "KEY",
    "--passphrase-file": "FILE",
    "--sign-with": "PEM",
}


def printable(text: str) -> str:
    """Return the text with every control or invisible character replaced by its escape.

    Names of files and owners come from others: a terminal would obey the escape sequences and the
    direction marks in them.

    >>> printable("model\\x1b[2J.pt")
    'model\\\\x1b[2J.pt'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def show_log(quiet: bool) -> None:
    """Write what a long-running command notes, one plain line each, to standard error; warnings if quiet."""
    handler = _Lines()
    handler.setLevel(logging.WARNING if quiet else logging.INFO)
    logger = logging.getLogger("sigil")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logging.getLogger("flwr").setLevel(logging.ERROR)


class _Lines(logging.StreamHandler[TextIO]):
    """Writes to what standard error is at the moment: a bar that is being drawn puts lines above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def recorded(arguments: Sequence[str]) -> str:
    """The `sigil` command with these arguments, ready for a shell, without the paths of keys.

    >>> recorded(["verify", "model.pt", "--key", "/home/ada/owner.key"])
    'sigil verify model.pt --key KEY'
    """
    shown = ["sigil"]
    for argument in arguments:
        option, equals, _ = argument.partition("=")
        if shown[-1] in _SECRET_FILES:
            shown.append(_SECRET_FILES[shown[-1]])
        elif equals and option in _SECRET_FILES:
            shown.append(f"{option}={_SECRET_FILES[option]}")
        elif argument.startswith("-k") and argument != "-k":
            shown += ["-k", _SECRET_FILES["-k"]]
        else:
            shown.append(argument)
    return shlex.join(shown)
