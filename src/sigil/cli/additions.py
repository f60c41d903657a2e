"""Commands that another distribution brings: the reproduction of the paper is one of its own.

Its functions are entry points of the group ``sigil.commands``; without it one sentence says what to install.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Final

import typer

from sigil.errors import MissingExtraError

GROUP: Final = "sigil.commands"
DISTRIBUTION: Final = "sigil-reproduction"


def register(app: typer.Typer) -> None:
    """Add `sigil reproduce`, where it is installed, or a command that says how to install it."""
    if entry_points(group=GROUP, name="reproduce"):
        app.command("reproduce")(load("reproduce"))
    else:
        anything = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
        app.command("reproduce", hidden=True, context_settings=anything)(_missing)


def load(name: str, before: str = "") -> Callable[..., Any]:
    """The function with this name, if its distribution is installed; `before` opens the sentence if not."""
    for entry in entry_points(group=GROUP, name=name):
        return entry.load()
    raise MissingExtraError(
        f"{before}The paper's tables and figures come with a package of their own; install it with: "
        f"pip install {DISTRIBUTION}"
    )


def _missing(context: typer.Context) -> None:
    load("reproduce")
