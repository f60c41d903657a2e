"""Docstrings as Markdown: what the sources write for Python's own tools, in the reference's language."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_ROLE = re.compile(r":(?:class|func|meth|mod|attr):`~?([^`]+)`")
_LITERAL = re.compile(r"::$", re.MULTILINE)
_SESSION = re.compile(r"(?:^>>> .*\n?(?:^\S.*\n?)*)+", re.MULTILINE)
_TABLE = re.compile(r"^=+ +=+\n(.*?)^=+ +=+\n(.*?)^=+ +=+$", re.MULTILINE | re.DOTALL)


def markdown(text: str) -> str:
    """Rewrite roles, literal blocks, interpreter sessions and simple tables as Markdown.

    >>> print(markdown("See :class:`sigil.Key`::"))
    See `sigil.Key`:
    """
    text = _ROLE.sub(r"`\1`", text)
    text = _LITERAL.sub(":", text)
    text = _SESSION.sub(lambda session: f"```pycon\n{session[0].rstrip()}\n```\n", text)
    return _TABLE.sub(_as_table, text)


def _as_table(match: re.Match[str]) -> str:
    """A two-column table with a heading, as the docstrings draw it."""
    rows = [re.split(r" {2,}", line.strip(), maxsplit=1) for part in match.groups() for line in part.splitlines()]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "| --- | --- |", *lines[1:]])


class Docstrings(Extension):
    """Applies `markdown` to every docstring that the reference shows."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
