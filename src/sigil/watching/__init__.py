"""Watch a training while it runs: what there is to see, and a page in the browser that shows it."""

from sigil.watching.board import Board, Client
from sigil.watching.page import LivePage

__all__ = ["Board", "Client", "LivePage"]
