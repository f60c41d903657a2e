"""What an attack accepts as a model."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from sigil import attacks, models
from sigil.attacks.halves import cut_of
from sigil.errors import AttackError, ModelError


def test_a_client_half_alone_is_refused_where_the_other_is_needed(marked: Any) -> None:
    with pytest.raises(AttackError, match="both halves"):
        attacks.permute(marked.halves[0])


def test_halves_of_two_models_are_refused(marked: Any) -> None:
    other = models.build("vgg11", classes=10, width=4, channels=1, seed=0)
    with pytest.raises(ModelError, match="does not fit"):
        attacks.prune((marked.halves[0], models.split(other, "pool2")[1]), 0.5)


def test_other_modules_are_refused() -> None:
    with pytest.raises(AttackError, match=r"sigil\.models"):
        attacks.quantize(nn.Linear(2, 2), "int8")  # type: ignore[type-var]


def test_the_cut_is_the_given_one_then_the_halves_then_the_papers(marked: Any) -> None:
    assert cut_of(marked.halves) == "pool2"
    assert cut_of(marked.halves, "pool1") == "pool1"
    assert cut_of(marked.whole) == "pool4"
    with pytest.raises(ModelError, match="pool9"):
        cut_of(marked.whole, "pool9")
