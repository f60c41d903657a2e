"""Limits are above zero."""

from __future__ import annotations

from dataclasses import fields

import pytest

from sigil.errors import ConfigError
from sigil.transport import Limits


@pytest.mark.parametrize("name", [entry.name for entry in fields(Limits)])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_limit_is_above_zero(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        Limits(**{name: value})
