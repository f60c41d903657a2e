"""The two pictures of the evidence page, as inline SVG without scripts, fonts or links.

Each is drawn for a width of its own instead of being scaled, so that its lettering has the same
size on a phone as on a sheet of paper. Colours are classes of the page's style sheet.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape

from sigil.verdict.wording import SUPERSCRIPT

_LINE = 17
# Width of a letter of the widest common sans-serif, regular and bold, at the page's 12.5 pixels.
_LETTER, _BOLD_LETTER = 6.5, 7.5


@dataclass(frozen=True)
class Marker:
    """A labelled vertical line at a WSR."""

    wsr: float
    label: str
    style: str


@dataclass(frozen=True)
class Null:
    """What is known of keys that have nothing to do with the model.

    `grid` and `probability` are the distribution of the WSR; `tail_wsr` and `tail_log10` are the
    logarithm of the chance to reach at least that WSR; `bits` is k.
    """

    grid: npt.NDArray[np.float64]
    probability: npt.NDArray[np.float64]
    tail_wsr: Sequence[float]
    tail_log10: Sequence[float]
    bits: int


def null_figure(
    null: Null,
    markers: Sequence[Marker],
    *,
    observed: tuple[float, float],
    level: tuple[float, str],
    width: int,
    name: str,
    title: str,
    description: str,
) -> Markup:
    """Draw where unrelated keys land (above) and how fast the chance falls (below, logarithmic).

    `observed` is the WSR and log10 p of the suspect, `level` the log10 of the level of proof and
    its label, `width` the width in CSS pixels, `name` a prefix for the ids in the drawing.
    """
    left, right = 66, width - 24
    top = 8 + _LINE * len(markers)
    bell_bottom = top + 110
    log_top = bell_bottom + 48
    log_bottom = log_top + 130
    height = log_bottom + 44

    low, high = _range(null, markers)

    def x(wsr: float) -> float:
        return left + (right - left) * (wsr - low) / (high - low)

    deepest = min([observed[1], level[0], -1.0]) * 1.08

    def y(log10: float) -> float:
        return log_top + (log_bottom - log_top) * max(log10, deepest) / deepest

    parts = [
        _panel(left, right, top=top, bottom=bell_bottom),
        _panel(left, right, top=log_top, bottom=log_bottom),
    ]
    # The bell.
    centres, heights = _bins(null, low=low, high=high, most=(right - left) / 5)
    bar = 0.86 * (right - left) * (centres[1] - centres[0]) / (high - low)
    tallest = max(heights)
    for centre, share in zip(centres, heights, strict=True):
        rise = (bell_bottom - top - 12) * share / tallest
        start, end = max(left, x(centre) - bar / 2), min(right, x(centre) + bar / 2)
        if rise >= 0.25:
            parts.append(
                f'<rect class="bar" x="{start:.1f}" y="{bell_bottom - rise:.1f}" '
                f'width="{end - start:.1f}" height="{rise:.1f}"/>'
            )
    parts.append(_text(left - 8, top + 12, "how", "axis", anchor="end"))
    parts.append(_text(left - 8, top + 27, "often", "axis", anchor="end"))
    # The tail.
    parts.append(_text(left - 8, log_top - 12, "chance", "axis", anchor="end"))
    for log10 in _ticks(deepest):
        parts.append(
            f'<path class="grid" d="M{left} {y(log10):.1f}H{right}"/>'
            + _text(left - 8, y(log10) + 4, _one_in(log10), "axis", anchor="end")
        )
    tail = [
        (wsr, log10)
        for wsr, log10 in zip(null.tail_wsr, null.tail_log10, strict=True)
        if low <= wsr <= high and log10 >= deepest
    ]
    points = " ".join(f"{x(wsr):.1f},{y(log10):.1f}" for wsr, log10 in tail)
    parts.append(f'<polyline class="curve" points="{points}"/>')
    parts.append(f'<path class="level" d="M{left} {y(level[0]):.1f}H{right}"/>')
    # Shared axis and markers.
    for percent in _percent_ticks(low, high, width):
        place = x(percent / 100)
        parts.append(
            f'<path class="tick" d="M{place:.1f} {bell_bottom}v5M{place:.1f} {log_bottom}v5"/>'
            + _text(place, bell_bottom + 18, f"{percent} %", "axis")
            + _text(place, log_bottom + 18, f"{percent} %", "axis")
        )
    parts.append(_text((left + right) / 2, height - 6, "share of answers that agree with the key", "axis"))
    # Rightmost on top and every label to the left of its line: so no line runs through a label.
    for lane, marker in enumerate(sorted(markers, key=lambda marker: -marker.wsr)):
        place, above = x(marker.wsr), 8 + _LINE * lane
        parts.append(
            f'<path class="{marker.style}" d="M{place:.1f} {above}V{bell_bottom}'
            f'M{place:.1f} {log_top}V{log_bottom}"/>' + _marker_label(marker, place, above + 12)
        )
    # The level's label keeps clear of the curve, which crosses the level where proof begins.
    meets = max((wsr for wsr, log10 in tail if log10 >= level[0]), default=low)
    leftwards = x(meets) - left > 120
    parts.append(
        _text(
            left + 6 if leftwards else right,
            y(level[0]) + (15 if leftwards and y(level[0]) - log_top < _LINE else -5),
            level[1],
            "level-label",
            anchor="start" if leftwards else "end",
        )
    )
    parts.append(f'<circle class="dot" cx="{x(observed[0]):.1f}" cy="{y(observed[1]):.1f}" r="5"/>')
    return _svg(parts, width=width, height=height, name=name, title=title, description=description)


def bits_figure(
    agreements: Sequence[int], probes: int, *, width: int, name: str, title: str, description: str
) -> Markup:
    """Draw one square per bit, shaded by the share of probes that agree with the owner's bit.

    Equal shades that stand side by side are one rectangle under a grid of lines, so the drawing
    stays small for any number of bits. Squares that most probes read wrongly carry a cross.
    """
    count = len(agreements)
    columns = _columns(count, width)
    rows = -(-count // columns)
    cell = min(width / columns, 30.0)
    shades = [round(10 * agreed / probes) for agreed in agreements]
    wrong = [2 * agreed < probes for agreed in agreements]

    parts = [
        f'<defs><pattern id="{name}-cross" width="{cell:.3f}" height="{cell:.3f}" '
        f'patternUnits="userSpaceOnUse"><path class="cross" stroke-width="{cell / 12:.2f}" '
        f'd="M{cell * 0.32:.3f} {cell * 0.32:.3f}L{cell * 0.68:.3f} {cell * 0.68:.3f}'
        f'M{cell * 0.68:.3f} {cell * 0.32:.3f}L{cell * 0.32:.3f} {cell * 0.68:.3f}"/>'
        "</pattern></defs>"
    ]
    for row in range(rows):
        column = 0
        cells = zip(
            shades[row * columns : (row + 1) * columns],
            wrong[row * columns : (row + 1) * columns],
            strict=True,
        )
        for (shade, crossed), run in itertools.groupby(cells):
            length = sum(1 for _ in run)
            box = (
                f'x="{column * cell:.2f}" y="{row * cell:.2f}" '
                f'width="{length * cell:.2f}" height="{cell:.2f}"'
            )
            parts.append(f'<rect class="s{shade}" {box}/>')
            if crossed:
                parts.append(f'<rect fill="url(#{name}-cross)" {box}/>')
            column += length
    upright = "".join(f"M{i * cell:.2f} 0V{rows * cell:.2f}" for i in range(columns + 1))
    level = "".join(f"M0 {i * cell:.2f}H{columns * cell:.2f}" for i in range(rows + 1))
    parts.append(f'<path class="gap" stroke-width="{cell / 9:.2f}" d="{upright}{level}"/>')
    return _svg(
        parts,
        width=round(columns * cell),
        height=math.ceil(rows * cell),
        name=name,
        title=title,
        description=description,
    )


def _svg(parts: Sequence[str], *, width: int, height: int, name: str, title: str, description: str) -> Markup:
    return Markup(
        f'<svg role="img" aria-labelledby="{name}-t {name}-d" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}">'
        f'<title id="{name}-t">{escape(title)}</title><desc id="{name}-d">{escape(description)}'
        f"</desc>{''.join(parts)}</svg>"
    )


def _panel(left: float, right: float, *, top: float, bottom: float) -> str:
    return f'<path class="frame" d="M{left} {top}V{bottom}H{right}"/>'


def _text(x: float, y: float, text: str, style: str, *, anchor: str = "middle") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _marker_label(marker: Marker, place: float, y: float) -> str:
    """To the left of its line, or to the right where the drawing's edge is too near."""
    letter = _BOLD_LETTER if marker.style == "seen" else _LETTER
    fits = place - 5 >= letter * len(marker.label)
    x, anchor = (place - 5, "end") if fits else (place + 5, "start")
    return _text(x, y, marker.label, f"{marker.style}-label", anchor=anchor)


def _range(null: Null, markers: Sequence[Marker]) -> tuple[float, float]:
    """From left of the bell to right of everything marked, in steps of ten points."""
    spread = math.sqrt(float(np.sum(null.probability * (null.grid - 0.5) ** 2)))
    # Not less than twenty points left of the middle: the labels need that room.
    values = [0.3, 0.5 - 4 * spread, 0.5 + 4 * spread, *(marker.wsr for marker in markers)]
    low = math.floor(10 * min(values)) / 10
    high = math.ceil(10 * (max(values) + 0.015)) / 10
    return max(low, 0.0), min(high, 1.0)


def _bins(null: Null, *, low: float, high: float, most: float) -> tuple[list[float], list[float]]:
    """Collect the distribution in bars that are whole, odd multiples of one bit's worth (1/k).

    A bit on which all probes agree moves the WSR by exactly 1/k; bars of any other width would show
    a comb that is not in the data. `most` is the largest number of bars.
    """
    step = math.ceil((high - low) / most * null.bits)
    width = (step + 1 - step % 2) / null.bits
    # For an even number of bits 50 % is a possible value, for an odd one it lies between two.
    centre = 0.5 if null.bits % 2 == 0 else 0.5 + width / 2
    first = math.floor((low - centre) / width)
    count = math.ceil((high - centre) / width) - first + 1
    index = np.rint((null.grid - centre) / width).astype(int) - first
    inside = (index >= 0) & (index < count)
    heights = np.bincount(index[inside], weights=null.probability[inside], minlength=count)
    centres = [centre + (first + i) * width for i in range(count)]
    kept = [(c, h) for c, h in zip(centres, heights.tolist(), strict=True) if low <= c <= high]
    return [c for c, _ in kept], [h for _, h in kept]


def _columns(count: int, width: int) -> int:
    """Squares of 28 pixels for a few bits, smaller ones in a wide rectangle for many."""
    few = max(1, width // 28)
    many = math.ceil(math.sqrt(count * (2.2 if width > 500 else 0.9)))
    return min(count, max(few - few % 5 or few, 5 * math.ceil(many / 5)))


def _percent_ticks(low: float, high: float, width: int) -> range:
    step = 20 if width < 500 and high - low > 0.55 else 10
    start = math.ceil(round(100 * low) / step) * step
    return range(start, round(100 * high) + 1, step)


def _ticks(deepest: float) -> list[float]:
    """About five powers of ten, from 1 down."""
    step = next(s for s in (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1000, 10**4) if deepest / s >= -6)
    return [-float(power) for power in range(0, math.floor(-deepest) + 1, step)]


def _one_in(log10: float) -> str:
    power = round(-log10)
    if power <= 2:
        return f"1 in {10**power}"
    return "1 in 10" + str(power).translate(SUPERSCRIPT)
