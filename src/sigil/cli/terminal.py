"""What may be written to a terminal, and how."""

from __future__ import annotations

import logging


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
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("sigil")
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    logging.getLogger("flwr").setLevel(logging.ERROR)
