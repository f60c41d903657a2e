"""The curves of detectors, drawn."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sigil.data import charts
from sigil.detectors.detector import Detector
from sigil.errors import DetectorError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLUE, _ORANGE, _RED = "#0072b2", "#e69f00", "#d55e00"


def draw(detectors: Sequence[Detector], path: str | os.PathLike[str]) -> None:
    """Draw what each detector saw (left) and its score (right) to a PNG, SVG or PDF file."""
    if not detectors:
        raise DetectorError("There is no detector to draw; give those that have looked at gradients.")
    figure = charts.new_figure(path, 9.0, 3.0 * len(detectors), raises=DetectorError)
    rows = figure.subplots(len(detectors), 2, squeeze=False)
    for (left, right), detector in zip(rows, detectors, strict=True):
        for axes in (left, right):
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_xlabel("step")
        _seen(left, detector)
        _score(right, detector)
    charts.save(figure, path, raises=DetectorError)


def _seen(axes: Axes, detector: Detector) -> None:
    curves = detector.curves
    if "same" in curves:
        axes.set_title("similarity of gradients", fontsize=10)
        _band(axes, curves, "same", "same label", _BLUE)
        _band(axes, curves, "different", "different labels", _ORANGE)
    elif "outliers" in curves:
        axes.set_title("outliers in a batch", fontsize=10)
        steps = range(1, len(curves["outliers"]) + 1)
        axes.plot(steps, curves["judged"], color="0.6", linewidth=1, label="judged")
        axes.plot(steps, curves["outliers"], color=_BLUE, linewidth=1, label="outliers")
        axes.set_ylim(bottom=0)
    else:
        axes.set_title("terms of the score", fontsize=10)
        for name, values in curves.items():
            if name not in ("scored_step", "score") and len(values) == len(curves["scored_step"]):
                axes.plot(curves["scored_step"], values, linewidth=1, label=name.replace("_", " "))
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, frameon=False)


def _band(axes: Axes, curves: dict[str, list[float]], name: str, label: str, colour: str) -> None:
    """A mean with one standard deviation on both sides."""
    pairs = list(zip(curves[name], curves[f"{name}_spread"], strict=True))
    axes.plot(curves["step"], curves[name], color=colour, linewidth=1, label=label)
    low, high = [mean - spread for mean, spread in pairs], [mean + spread for mean, spread in pairs]
    axes.fill_between(curves["step"], low, high, color=colour, alpha=0.15, linewidth=0)


def _score(axes: Axes, detector: Detector) -> None:
    look: dict[str, Any] = {"marker": "o", "markersize": 3} if len(detector.curves["score"]) < 100 else {}
    axes.plot(detector.curves["scored_step"], detector.curves["score"], color="black", linewidth=1, **look)
    axes.axhline(detector.threshold, color=_RED, linewidth=1, linestyle="--")
    if detector.first_alarm is not None:
        axes.axvline(detector.first_alarm, color=_RED, linewidth=1, linestyle=":")
    axes.set_ylim(-0.03, 1.03)
    state = "no alarm" if detector.first_alarm is None else f"first alarm at step {detector.first_alarm}"
    axes.set_title(f"{detector.name}: {state if detector.score is not None else 'no score'}", fontsize=10)
