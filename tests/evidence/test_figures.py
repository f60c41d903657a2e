"""The drawings: well-formed, labelled, inside their frame, and true to the numbers."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from sigil import statistics
from sigil.verdict.figures import Marker, Null, bits_figure, null_figure


def null(bits: int = 50, probes: int = 512) -> Null:
    weights = [probes] * bits
    grid, probability = statistics.null_distribution(weights, probes=probes)
    places = [0.5 + 0.05 * i for i in range(11)]
    logs = [statistics.tail(weights, round((2 * place - 1) * probes * bits)).log10_p for place in places]
    return Null(grid, probability, places, logs, bits)


def draw(width: int, *, observed: float = 0.98, bits: int = 50, label: str = "seen") -> ElementTree.Element:
    svg = null_figure(
        null(bits),
        [Marker(observed, label, "seen"), Marker(0.86, "needed", "needed"), Marker(0.7, "rule", "rule")],
        observed=(observed, -14.0),
        level=(-6.5, "level of proof"),
        width=width,
        name="n",
        title="A title",
        description="A description",
    )
    return ElementTree.fromstring(svg)


@pytest.mark.parametrize("width", [326, 704])
@pytest.mark.parametrize("observed", [0.02, 0.5, 0.71, 0.999])
@pytest.mark.parametrize("bits", [1, 7, 50, 1000])
def test_everything_lies_inside_the_drawing(width: int, observed: float, bits: int) -> None:
    root = draw(width, observed=observed, bits=bits)
    assert root.get("viewBox", "").split()[2] == str(width)
    height = float(root.get("height", "0"))
    for rect in root.iter("rect"):
        x, wide = float(rect.get("x", "")), float(rect.get("width", ""))
        assert x >= 0
        assert x + wide <= width
    for text in root.iter("text"):
        assert 0 <= float(text.get("x", "")) <= width
        assert 0 <= float(text.get("y", "")) <= height
    for circle in root.iter("circle"):
        assert 0 <= float(circle.get("cx", "")) <= width


def test_it_is_labelled_for_people_who_cannot_see_it() -> None:
    root = draw(704)
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == "n-t n-d"
    assert root.findtext("title") == "A title"
    assert root.findtext("desc") == "A description"
    words = {text.text for text in root.iter("text")}
    assert {"share of answers that agree with the key", "chance", "50 %", "100 %", "1 in 1"} <= words


def test_labels_are_escaped() -> None:
    root = draw(704, label="<script>&")
    assert any(text.text == "<script>&" for text in root.iter("text"))


def test_bars_are_the_binomial_of_the_bits() -> None:
    """With all probes agreeing the null is a binomial: one bar a bit, symmetric, tallest at 50 %."""
    heights = [float(bar.get("height", "")) for bar in draw(704).iter("rect")]
    expected = np.array([np.prod([(50 - i) / (i + 1) for i in range(n)]) for n in range(51)])
    expected = expected[expected / expected.max() * 98 >= 0.25]
    assert len(heights) == len(expected)
    assert np.allclose(np.array(heights) / max(heights), expected / expected.max(), atol=0.002)


@pytest.mark.parametrize("width", [326, 704])
@pytest.mark.parametrize("bits", [1, 8, 50, 999, 1000, 3000, 65_536])
def test_one_square_a_bit_and_a_small_file(width: int, bits: int) -> None:
    agreements = np.sort(np.random.default_rng(0).integers(0, 513, bits))[::-1].tolist()
    svg = bits_figure(agreements, 512, width=width, name="b", title="t", description="d")
    root = ElementTree.fromstring(svg)
    cell = float(re.search(r'<pattern id="b-cross" width="([0-9.]+)"', svg)[1])  # type: ignore[index]
    shaded = [rect for rect in root.iter("rect") if "class" in rect.attrib]
    area = sum(float(r.get("width", "")) * float(r.get("height", "")) for r in shaded)
    assert area / cell**2 == pytest.approx(bits, rel=0.02)
    assert float(root.get("width", "")) <= width + 1
    assert len(svg) < 60_000


def test_shade_and_cross_tell_agreement() -> None:
    svg = bits_figure([10, 7, 5, 4, 0], 10, width=704, name="b", title="t", description="d")
    root = ElementTree.fromstring(svg)
    shades = [rect.get("class") for rect in root.iter("rect") if "class" in rect.attrib]
    crossed = [rect.get("x") for rect in root.iter("rect") if "fill" in rect.attrib]
    assert shades == ["s10", "s7", "s5", "s4", "s0"]
    assert len(crossed) == 2
