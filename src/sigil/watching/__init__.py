"""Watch a training while it runs: what there is to see, and a page in the browser that shows it."""

from sigil.watching.page import Board, LivePage

__all__ = ["Board", "LivePage"]
