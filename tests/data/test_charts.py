from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sigil.data import draw_partition, partition
from sigil.errors import DataError

LABELS = np.arange(2000) % 10


def colours(path: Path) -> set[tuple[int, int, int]]:
    """The colours that cover at least 200 pixels."""
    with Image.open(path) as picture:
        found = picture.convert("RGB").getcolors(maxcolors=2**24)
    return {colour for count, colour in found if count >= 200}


def test_bars_have_a_colour_for_each_class_that_somebody_holds(tmp_path: Path) -> None:
    tab10 = [(31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40), (148, 103, 189)]
    labels = np.array([0] * 50 + [1] * 50 + [3] * 50)
    draw_partition(labels, [np.arange(75), np.arange(75, 150)], tmp_path / "bars.png")
    drawn = colours(tmp_path / "bars.png")
    assert {tab10[0], tab10[1], tab10[3]} <= drawn
    assert tab10[4] not in drawn


def test_legend_names_the_classes(tmp_path: Path) -> None:
    labels = np.repeat(np.arange(4), 10)
    draw_partition(labels, [np.arange(40)], tmp_path / "bars.svg")
    drawn = (tmp_path / "bars.svg").read_text()
    assert all(f"<!-- {name} -->" in drawn for name in ("class", "0", "1", "2", "3"))


def test_many_clients_are_a_map_whose_empty_cells_are_white(tmp_path: Path) -> None:
    of_class = [np.arange(label, 2000, 10) for label in range(10)]
    apart = [of_class[client % 10][client // 10 :: 6] for client in range(60)]
    mixed = partition(LABELS, clients=60)
    draw_partition(LABELS, apart, tmp_path / "apart.png")
    draw_partition(LABELS, mixed, tmp_path / "mixed.png")

    def white(path: Path) -> float:
        with Image.open(path) as picture:
            pixels = np.asarray(picture.convert("L"))
        # The inside of the map: below the sizes, left of the scale.
        height, width = pixels.shape
        return float((pixels[height // 2 : -height // 5, width // 8 : -width // 8] == 255).mean())

    assert white(tmp_path / "apart.png") > 0.8
    assert white(tmp_path / "mixed.png") < 0.2


@pytest.mark.parametrize(("clients", "classes"), [(1, 2), (50, 200), (20, 15), (51, 2), (400, 100)])
def test_any_number_of_clients_and_classes_is_drawn(tmp_path: Path, clients: int, classes: int) -> None:
    labels = np.arange(2000) % classes
    path = tmp_path / "who.png"
    draw_partition(labels, partition(labels, clients=clients), path, title="a title")
    with Image.open(path) as picture:
        assert picture.width >= 800
        assert picture.height >= 600
    assert len(colours(path)) > 2


def test_plots_of_the_caller_are_left_alone(tmp_path: Path) -> None:
    sys.modules.pop("matplotlib.pyplot", None)
    draw_partition(LABELS, partition(LABELS, clients=3), tmp_path / "who.svg")
    assert "matplotlib.pyplot" not in sys.modules
    assert (tmp_path / "who.svg").read_text().startswith("<?xml")


def test_unknown_format_and_missing_directory_are_told(tmp_path: Path) -> None:
    parts = partition(LABELS, clients=3)
    with pytest.raises(DataError, match=r"does not end in \.png"):
        draw_partition(LABELS, parts, tmp_path / "who.exe")
    with pytest.raises(DataError, match="cannot be written"):
        draw_partition(LABELS, parts, tmp_path / "absent" / "who.png")
