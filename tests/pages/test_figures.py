from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from sigil.pages import figures


def draw(path: Path) -> None:
    figure, (axis,) = figures.panels(1)
    figures.curve(axis, [1, 2, 3], [1.0, None, 3.0], color="#000000", label="a")
    figures.legend(axis)
    figures.save(figure, path)


def test_a_collected_figure_takes_the_pages_colours(tmp_path: Path) -> None:
    with figures.collected() as pictures:
        draw(tmp_path / "one.png")
        draw(tmp_path / "two.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    assert set(pictures) == {"one.png", "two.png"}
    for text in pictures.values():
        ElementTree.fromstring(text)
        assert "currentColor" in text
        assert "#000000" not in text
        assert "#ffffff" not in text
        assert "<style" not in text
    identifiers = [set(re.findall(r'\bid="([^"]+)"', text)) for text in pictures.values()]
    assert identifiers[0]
    assert not identifiers[0] & identifiers[1]
    for text in pictures.values():
        for target in re.findall(r'(?:url\(#|href="#)([^")]+)', text):
            assert f'id="{target}"' in text


def test_nothing_is_collected_outside(tmp_path: Path) -> None:
    with figures.collected() as pictures:
        pass
    draw(tmp_path / "one.png")
    assert pictures == {}


def test_a_legend_below_covers_no_axes_and_names_each_curve_once(tmp_path: Path) -> None:
    figure, axes = figures.panels(3)
    for axis in axes:
        figures.curve(axis, [1, 2], [1.0, 2.0], label="a")
    figures.curve(axes[-1], [1, 2], [2.0, 1.0], label="b")
    figures.legend_below(figure, axes)
    figures.save(figure, tmp_path / "one.png")
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]
    figure.draw_without_rendering()
    box = legend.get_window_extent()
    assert box.y0 >= 0
    for axis in axes:
        assert box.y1 <= axis.get_tightbbox().y0

    figure, axes = figures.panels(1)
    figures.legend_below(figure, axes)
    assert not figure.legends
    figures.discard(figure)
