"""The random streams of a run (see :mod:`sigil.seeds`)."""

from sigil.seeds import derive, generator

__all__ = ["derive", "generator"]
