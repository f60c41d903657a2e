"""Settings of the small trainings that tests make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sigil.federation.settings import Settings, make


def changed(base: Mapping[str, Mapping[str, Any]], /, **sections: Mapping[str, Any]) -> Settings:
    """The settings of a test file, with other values for some of them."""
    names = [*base, *(name for name in sections if name not in base)]
    return make({name: {**base.get(name, {}), **sections.get(name, {})} for name in names})
