"""The counts must be those of the formulas."""

from __future__ import annotations

import pytest

from sigil.keys.key import Key
from sigil_reproduction.paper import section6_efficiency as efficiency
from sigil_reproduction.runner.timing import interleaved


@pytest.mark.parametrize("bits", [50, 1_000])
def test_counted_arithmetic_is_that_of_the_formula(bits: int) -> None:
    shape = efficiency.SHAPE
    found = efficiency.arithmetic(Key.generate("test", shape=shape, bits=bits, seed=bytes(32)))
    d = 256 * 8 * 8
    # A M and E Mᵀ, and E times the k×k Gram matrix for the norm.
    assert found["injector_mflop"] * 1e6 == 2 * 2 * d * bits + 2 * bits * bits
    # The last stage of ResNet-18: five convolutions, forward and both backward passes, and the classifier.
    forward = 2 * 16 * (9 * 256 * 512 + 3 * 9 * 512 * 512 + 256 * 512) + 2 * 512 * 10
    assert found["server_mflop"] * 1e6 == 3 * forward
    assert found["of_server"] == pytest.approx(100 * found["injector_mflop"] / found["server_mflop"])


def test_the_papers_percentages_are_of_the_client_half() -> None:
    found = efficiency.arithmetic(Key.generate("test", shape=efficiency.SHAPE, bits=50, seed=bytes(32)))
    assert found["of_client"] == pytest.approx(0.13, abs=0.005)


def test_variants_take_turns() -> None:
    turns: list[str] = []
    median = interleaved({"a": lambda: turns.append("a"), "b": lambda: turns.append("b")}, 2)
    assert turns == ["a", "b"] * 3
    assert set(median) == {"a", "b"}
