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

# More bars than this are too thin, and more colours too alike, to tell them apart.
_MAX_BARS, _MAX_COLOURS = 50, 20


def draw_partition(
    labels: npt.ArrayLike,
    parts: Sequence[npt.NDArray[np.int64]],
    path: AnyPath,
    *,
    title: str | None = None,
) -> None:
    """Draw how many samples of which class each client holds, and write it to a PNG, SVG or PDF file.

    `labels` is (n,) and `parts` the result of :func:`sigil.data.partition`. Up to 50 clients and 20 classes
    are stacked bars, one colour per class; more are a map of classes against clients, with the sizes of the
    clients above it.
    """
    known = np.asarray(labels)
    # Clients by classes.
    counts = np.stack([np.bincount(known[part], minlength=int(known.max()) + 1) for part in parts])
    clients, classes = counts.shape
    as_bars = clients <= _MAX_BARS and classes <= _MAX_COLOURS
    wide = min(max(6.0, 0.32 * clients + 2.5), 14.0)
    figure = new_figure(path, wide, 4.5 if as_bars or classes <= _MAX_BARS else 7.0)
    if as_bars:
        _bars(figure, counts)
    else:
        _map(figure, counts)
    sizes = counts.sum(axis=1)
    figure.suptitle(
        (f"{title}\n" if title else "")
        + f"{clients} clients, {sizes.sum():,} samples: smallest {sizes.min():,}, "
        f"median {np.median(sizes):,.0f}, largest {sizes.max():,}",
        fontsize=10,
    )
    save(figure, path)


def new_figure(path: AnyPath, wide: float, high: float, *, raises: type[SigilError] = DataError) -> Any:
    """An empty figure for a PNG, SVG or PDF file, in inches."""
    if Path(path).suffix.lower() not in files.PICTURES:
        raise raises(f"{os.fspath(path)} does not end in {', '.join(files.PICTURES)}: choose one of these.")
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


def _bars(figure: Any, counts: npt.NDArray[np.int64]) -> None:
    from matplotlib import colormaps

    clients, classes = counts.shape
    axes = _sized(figure.subplots())
    colours = colormaps["tab10" if classes <= 10 else "tab20"]
    # The class on top comes first, so that the legend is in the order of the bars.
    for label in reversed(range(classes)):
        below = counts[:, :label].sum(axis=1)
        axes.bar(range(clients), counts[:, label], 0.85, below, color=colours(label), label=str(label))
    axes.set_ylim(0, 1.05 * counts.sum(axis=1).max())
    axes.set_xlabel("client")
    axes.xaxis.get_major_locator().set_params(integer=True)
    if clients <= 25:
        axes.set_xticks(range(clients))
    figure.legend(title="class", loc="outside right center", frameon=False)


def _map(figure: Any, counts: npt.NDArray[np.int64]) -> None:
    from matplotlib.colors import LogNorm

    clients, classes = counts.shape
    sizes, cells = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": (1, 3), "hspace": 0.03})
    _sized(sizes).fill_between(np.arange(clients + 1) - 0.5, np.append(counts.sum(1), 0), step="post")
    sizes.set_ylim(bottom=0)
    # Empty cells are white: no samples at all is what a reader looks for.
    shown = np.ma.masked_equal(counts.T, 0)
    # A logarithmic scale, because one sample and ten are as different as a hundred and a thousand.
    norm = LogNorm(vmin=1, vmax=max(2, int(counts.max())))
    image = cells.imshow(shown, aspect="auto", interpolation="nearest", cmap="viridis_r", norm=norm)
    cells.set_xlabel("client")
    cells.set_ylabel("class")
    for axis in (cells.xaxis, cells.yaxis):
        axis.get_major_locator().set_params(integer=True)
    if classes <= _MAX_COLOURS:
        cells.set_yticks(range(classes))
    figure.colorbar(image, ax=cells, label="samples of a class", pad=0.01, format="{x:,.0f}")


def _sized(axes: Any) -> Any:
    """The axes, whose height is a number of samples."""
    axes.set_ylabel("samples")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    return axes
