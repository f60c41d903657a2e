"""The look of all figures, and the one kind that most of them are: curves over rounds."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Colour-blind safe (Okabe and Ito); the same strength has the same colour everywhere.
COLOURS = {0.0: "#000000", 0.01: "#56b4e9", 0.1: "#009e73", 1.0: "#d55e00"}
SERIES = ("#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#e69f00", "#0072b2")

# Height of a row of a legend that lies below all axes, and the width of an entry.
LEGEND_INCHES, ENTRY_INCHES = 0.35, 1.8
_collection: ContextVar[dict[str, str] | None] = ContextVar("_collection", default=None)


def label(strength: float) -> str:
    """Legend entry of a strength."""
    return "clean" if strength == 0 else f"λ = {strength:g}"


def panels(count: int, *, columns: int = 4) -> tuple[Figure, list[Axes]]:
    """A row (or grid) of axes with one style."""
    columns = min(count, columns)
    rows = -(-count // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.0 * columns, 3.1 * rows), squeeze=False, dpi=120)
    flat = list(axes.flat)
    for axis in flat:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in flat[count:]:
        axis.set_visible(False)
    return figure, flat[:count]


def curve(axis: Axes, rounds: Sequence[Any], values: Sequence[Any], **style: Any) -> None:
    """One curve, without the rounds that were not measured."""
    points = [(x, y) for x, y in zip(rounds, values, strict=True) if y is not None]
    if points:
        look: dict[str, Any] = {"marker": "o", "markersize": 3, "linewidth": 1.4}
        axis.plot(*zip(*points, strict=True), **look | style)


def percent(values: Sequence[float | None]) -> list[float | None]:
    """Shares as percentages, where they were measured."""
    return [None if value is None else 100 * value for value in values]


def save(figure: Figure, path: Path) -> None:
    """Write a figure, without panels on which nothing was drawn, and let go of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for axis in figure.axes:
        axis.set_visible(axis.get_visible() and axis.has_data())
    rows = sum(-(-len(legend.get_texts()) // _entries(figure)) for legend in figure.legends)
    below = rows * LEGEND_INCHES / figure.get_figheight()
    figure.tight_layout(rect=(0.0, below, 1.0, 1.0))
    collection = _collection.get()
    if collection is not None:
        collection[path.name] = inline(figure, name=path.stem)
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)


def discard(figure: Figure) -> None:
    """Let go of a figure on which nothing was drawn."""
    plt.close(figure)


@contextmanager
def collected() -> Iterator[dict[str, str]]:
    """Inside, every figure that is saved is also kept as SVG for a page, by its file's name."""
    drawings: dict[str, str] = {}
    token = _collection.set(drawings)
    try:
        yield drawings
    finally:
        _collection.reset(token)


def inline(figure: Figure, *, name: str) -> str:
    """A figure as an SVG element to stand inside a page: black is the page's own ink, white its paper.

    So it can be read in light and in dark. `name` keeps the identifiers of several figures apart.
    """
    picture = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "sigil", "svg.fonttype": "none"}):
        figure.savefig(picture, format="svg", transparent=True, metadata={"Date": None})
    text = picture.getvalue().decode()
    text = text[text.index("<svg") :]
    # The style sheet in it would be one for the whole page.
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    return re.sub(r"#000000\b", "currentColor", text)


def legend_below(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend for all axes below them, where it covers no curve, in as many rows as it takes."""
    named: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        named = dict(zip(labels, handles, strict=True)) | named
    if named:
        columns = _entries(figure)
        figure.set_figheight(figure.get_figheight() + -(-len(named) // columns) * LEGEND_INCHES)
        figure.legend(
            list(named.values()), list(named), loc="lower center", ncols=columns, frameon=False, fontsize=9
        )


def _entries(figure: Figure) -> int:
    """How many entries of a legend stand beside each other below a figure."""
    return max(1, int(figure.get_figwidth() / ENTRY_INCHES))


def legend(axis: Axes, styles: Mapping[str, Any] | None = None) -> None:
    """A small legend, if there is anything to name."""
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=8, frameon=False, **(styles or {}))
