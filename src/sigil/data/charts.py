"""A chart of who holds what."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sigil import files
from sigil.errors import DataError, SigilError
from sigil.files import AnyPath

# More bars than this are too thin to tell their colours apart.
_MAX_BARS = 50
# More classes than this do not fit a legend; a colour scale takes its place.
_MAX_LEGEND = 20
_FORMATS = (".png", ".svg", ".pdf")


def draw_partition(
    labels: npt.ArrayLike,
    parts: Sequence[npt.NDArray[np.int64]],
    path: AnyPath,
    *,
    title: str | None = None,
) -> None:
    """Draw how many samples of which class each client holds, and write it to a PNG, SVG or PDF file.

    `labels` is (n,) and `parts` the result of :func:`sigil.data.partition`. Up to 50 clients are
    stacked bars, one colour per class; more are a map of classes against clients, with the sizes of
    the clients above it.
    """
    counts = _counts(np.asarray(labels), parts)
    wide = min(max(6.0, 0.32 * len(counts) + 2.5), 14.0)
    as_bars = len(counts) <= _MAX_BARS
    high = 4.5 if as_bars or counts.shape[1] <= _MAX_BARS else 7.0
    figure = new_figure(path, wide, high)
    if as_bars:
        _bars(figure, counts)
    else:
        _map(figure, counts)
    sizes = counts.sum(axis=1)
    figure.suptitle(
        (f"{title}\n" if title else "")
        + f"{len(counts)} clients, {sizes.sum():,} samples: smallest {sizes.min():,}, "
        f"median {np.median(sizes):,.0f}, largest {sizes.max():,}",
        fontsize=10,
    )
    save(figure, path)


def new_figure(path: AnyPath, wide: float, high: float, *, raises: type[SigilError] = DataError) -> Any:
    """An empty figure for a PNG, SVG or PDF file, in inches."""
    if Path(path).suffix.lower() not in _FORMATS:
        raise raises(f"{os.fspath(path)} does not end in {', '.join(_FORMATS)}: choose one of these.")
    # Without pyplot, which would change the state of a program that plots by itself.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(wide, high), layout="constrained", dpi=150)
    FigureCanvasAgg(figure)
    return figure


def save(figure: Any, path: AnyPath, *, raises: type[SigilError] = DataError) -> None:
    """Write a figure; a file there is replaced if it is a picture that Sigil wrote."""
    try:
        with files.draft(path, replace=files.picture_magic(path)) as draft:
            kind, metadata = Path(path).suffix[1:].lower(), files.picture_metadata(path)
            figure.savefig(draft, format=kind, metadata=metadata)
    except OSError as error:
        raise raises(f"{os.fspath(path)} cannot be written ({error.strerror}): choose another.") from error


def _counts(labels: npt.NDArray[np.int64], parts: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Count the samples of each class (columns) that each client (rows) holds."""
    classes = int(labels.max()) + 1
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


def _colours(classes: int) -> npt.NDArray[np.float64]:
    """Give each class a colour: distinct ones while a legend can name them, a scale beyond."""
    from matplotlib import colormaps

    if classes <= 10:
        return np.asarray(colormaps["tab10"](np.arange(classes)))
    if classes <= _MAX_LEGEND:
        return np.asarray(colormaps["tab20"](np.arange(classes)))
    return np.asarray(colormaps["turbo"](np.linspace(0, 1, classes)))


def _bars(figure: Any, counts: npt.NDArray[np.int64]) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import Normalize
    from matplotlib.patches import Patch

    clients, classes = counts.shape
    axes = figure.subplots()
    colours = _colours(classes)
    tops = np.cumsum(counts, axis=1)
    # All boxes in one collection: 50 clients of 200 classes would take a minute one by one.
    client, label = np.nonzero(counts)
    top, bottom = tops[client, label], (tops - counts)[client, label]
    left, right = client - 0.425, client + 0.425
    corners = [(left, bottom), (left, top), (right, top), (right, bottom)]
    boxes = np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)
    axes.add_collection(PolyCollection(list(boxes), facecolors=colours[label], edgecolors="none"))
    axes.set_ylim(0, 1.05 * tops.max())
    axes.set_xlabel("client")
    axes.set_ylabel("samples")
    axes.set_xlim(-0.6, clients - 0.4)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if clients <= 25:
        axes.set_xticks(range(clients))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    if classes <= _MAX_LEGEND:
        # In the order in which the colours are stacked.
        handles = [Patch(color=colours[k], label=str(k)) for k in reversed(range(classes))]
        figure.legend(handles=handles, title="class", loc="outside right center", frameon=False)
    else:
        scale = ScalarMappable(norm=Normalize(0, classes - 1), cmap="turbo")
        figure.colorbar(scale, ax=axes, label="class", pad=0.01)


def _map(figure: Any, counts: npt.NDArray[np.int64]) -> None:
    from matplotlib.colors import LogNorm

    clients, classes = counts.shape
    sizes, cells = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": (1, 3), "hspace": 0.03})
    sizes.fill_between(np.arange(clients + 1) - 0.5, np.append(counts.sum(1), 0), step="post")
    sizes.set_ylabel("samples")
    sizes.set_ylim(bottom=0)
    sizes.yaxis.set_major_formatter("{x:,.0f}")
    sizes.spines[["top", "right"]].set_visible(False)
    # Empty cells are white: no samples at all is what a reader looks for.
    shown = np.ma.masked_equal(counts.T, 0)
    # A logarithmic scale, because one sample and ten are as different as a hundred and a thousand.
    norm = LogNorm(vmin=1, vmax=max(2, int(counts.max())))
    image = cells.imshow(shown, aspect="auto", interpolation="nearest", cmap="viridis_r", norm=norm)
    cells.set_xlabel("client")
    cells.set_ylabel("class")
    cells.yaxis.get_major_locator().set_params(integer=True)
    if classes <= _MAX_LEGEND:
        cells.set_yticks(range(classes))
    figure.colorbar(image, ax=cells, label="samples of a class", pad=0.01, format="{x:,.0f}")
