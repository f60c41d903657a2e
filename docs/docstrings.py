"""Docstrings as Markdown: what the sources write for Python's own tools, in the reference's language."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_ROLE = re.compile(r":(?:class|func|meth|mod|attr):`~?([^`]+)`")
_LITERAL = re.compile(r"::$", re.MULTILINE)
_SESSION = re.compile(r"(?:^>>> .*\n?(?:^\S.*\n?)*)+", re.MULTILINE)


def markdown(text: str) -> str:
    """Rewrite roles, double colons and interpreter sessions: "see :class:`Key`::" becomes "see `Key`:"."""
    text = _ROLE.sub(r"`\1`", text)
    text = _LITERAL.sub(":", text)
    return _SESSION.sub(lambda session: f"```pycon\n{session[0].rstrip()}\n```\n", text)


class Docstrings(Extension):
    """Applies `markdown` to every docstring that the reference shows."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
