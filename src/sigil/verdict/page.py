"""The page of a report: one HTML file that a lawyer or a manager can read, print and keep.

It holds everything in itself: no script, no font, no picture from elsewhere, and no link but the one to the
evidence that was saved beside it. A browser is told so by the page's content security policy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
import scipy  # loads scipy.interpolate, which takes a second, only where it is used
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from sigil import statistics
from sigil.statistics import PAPER_THRESHOLD
from sigil.verdict import wording
from sigil.verdict.figures import Marker, Null, bits_figure, null_figure
from sigil.verdict.wording import percent, scientific, success_rate, unbroken

if TYPE_CHECKING:
    from sigil.verdict.report import Report

WIDE, NARROW = 704, 326
"""Widths in CSS pixels of the two drawings of every figure: for paper and for a phone."""


@dataclass(frozen=True)
class SignedRecord:
    """The evidence file, by its path from the page's folder: its hash, and the public keys that signed it."""

    file: str
    sha256: str
    signers: tuple[str, ...]


# Per outcome: the verdict's colour and its tint, on a light and on a dark screen.
_COLOURS: dict[wording.Outcome, tuple[str, str, str, str]] = {
    "owned": ("#0b6b57", "#e9f4f1", "#4cc9a8", "#12292a"),
    "descends": ("#1f5fa8", "#e8f0f9", "#78b4f0", "#14243a"),
    "experiment": ("#5a6575", "#f0f1f4", "#a9b4c3", "#20262f"),
    "not proven": ("#9a5b00", "#fbf3e4", "#e5a84b", "#2b2417"),
}


def render(verdict: Report, *, record: SignedRecord | None = None, copies: Sequence[str] = ()) -> str:
    """Return the page as HTML text; ``copies`` are sentences about whose copy the suspect contains."""
    outcome, titles = wording.outcome(verdict), wording.titles(verdict)
    wsr, needed = success_rate(verdict)
    by_origin, drawn = outcome == "descends", verdict.best.readable
    log10_p, exact = (verdict.log10_p_origin, True) if by_origin else (verdict.log10_p, verdict.exact)
    chance = superscripts(wording.rarity(log10_p, exact))
    moment = datetime.fromisoformat(verdict.created)
    return _template().render(
        report=verdict,
        wording=wording,
        outcome=outcome,
        record=record,
        copies=copies,
        colours=_COLOURS[outcome],
        titles=titles,
        heading=Markup(escape(titles.heading)).format(owner=Markup("<bdi>{}</bdi>").format(verdict.owner)),
        explanation=_explanation(verdict, chance, by_origin=by_origin),
        wsr=unbroken(wsr) if drawn else "not readable",
        needed=None if outcome == "experiment" else needed,
        chance=chance,
        p=scientific(log10_p),
        exact=exact,
        alpha=scientific(math.log10(verdict.alpha)),
        level=verdict.price.log10_level(verdict.alpha),
        paper=percent(PAPER_THRESHOLD, 0),
        date=f"{moment.day} {moment:%B %Y, %H:%M:%S} UTC",
        null=_null_pictures(verdict, wsr=wsr, needed=needed) if drawn else [],
        bits=_bits_pictures(verdict) if drawn else [],
    )


def _explanation(verdict: Report, chance: Markup, *, by_origin: bool) -> Markup:
    if verdict.experiment:
        return Markup("Nothing is proven by it, because {}.").format("; ".join(verdict.reasons))
    text = (
        "By chance alone, initial weights of a key that has nothing to do with this model would agree with "
        "its weights in sign this often with a probability of {chance}, after correction for everything that "
        "could have been chosen."
        if by_origin
        else wording.explanation(verdict)
    )
    level = superscripts(statistics.in_words(math.log10(verdict.alpha)))
    return Markup(escape(text)).format(chance=Markup("<strong>{}</strong>").format(chance), level=level)


def _rounded_up(log10: float) -> str:
    """One decimal, rounded so that the claim becomes weaker."""
    return f"{math.ceil(log10 * 10 - 1e-9) / 10 + 0.0:.1f}".replace("-", "−")


def superscripts(words: str) -> Markup:
    """Write every power such as 2^80 with a raised exponent."""
    return Markup(re.sub(r"\^(\d+(?:\.\d+)?)", r"<sup>\1</sup>", str(escape(words))))


# Characters that turn the direction in which text is set: names of files and owners come from others.
_DIRECTIONS = {
    ord(mark): f"\\u{ord(mark):04x}"
    for mark in "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
}


def _in_one_direction(value: object) -> object:
    """Text with every mark that would turn its direction written as its number; other values as they are."""
    return value.translate(_DIRECTIONS) if isinstance(value, str) else value


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("sigil.verdict", "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_in_one_direction,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"unbroken": unbroken, "superscripts": superscripts, "rounded_up": _rounded_up}
    return environment.get_template("page.html")


def _twice(draw: Callable[..., Markup], name: str, title: str, description: str) -> list[Markup]:
    """A picture, once for a wide and once for a narrow page."""
    return [
        draw(width=width, name=f"{name}-{kind}", title=title, description=description)
        for width, kind in ((WIDE, "wide"), (NARROW, "narrow"))
    ]


def _null_pictures(verdict: Report, *, wsr: str, needed: str | None) -> list[Markup]:
    """The null distribution."""
    markers = [Marker(verdict.wsr, f"this model {unbroken(wsr)}", "seen")]
    if needed is not None and verdict.threshold is not None and not verdict.experiment:
        markers.append(Marker(verdict.threshold, f"proof begins at {unbroken(needed)}", "needed"))
    markers.append(Marker(PAPER_THRESHOLD, f"the paper’s rule {percent(PAPER_THRESHOLD, 0)}", "rule"))
    level = verdict.price.log10_level(verdict.alpha), "level" if verdict.experiment else "level of proof"
    observed = verdict.wsr, verdict.log10_p_before
    return _twice(
        partial(null_figure, _null(verdict), markers, observed=observed, level=level),
        "null",
        "Chance agreement with the key, and the agreement found",
        "Upper part: how often keys that have nothing to do with the model reach each share of "
        "agreement, a bell around 50 percent. Lower part: the chance of reaching at least that "
        "share, on a logarithmic scale, before any correction. The model examined agrees in "
        f"{100 * verdict.wsr:.2f} percent; the chance of that is "
        f"{statistics.in_words(verdict.log10_p_before)}.",
    )


def _null(verdict: Report) -> Null:
    """The distribution of chance agreement and, out to what was found or needed, its tail."""
    weights, scale = verdict.best.weights, 2 * verdict.probes * verdict.bits
    grid, probability = statistics.null_distribution(weights, probes=verdict.probes)
    spread = math.sqrt(sum(weight**2 for weight in weights)) / scale
    most = 0.5 + sum(weights) / scale
    end = max(verdict.wsr, most if verdict.threshold is None else verdict.threshold)
    end = min(most, end + 0.04)

    # Beyond some hundred bits one point of the tail takes a while to compute, and the curve is
    # smooth: a few points carry it.
    steps = min(24, max(1, verdict.bits // 2)) if verdict.bits <= 500 else 10
    places = [0.5 + spread * turn for turn in (-4, -3, -2, -1)]
    places += [0.5 + (end - 0.5) * step / steps for step in range(steps + 1)]
    places = sorted({round(place, 9) for place in places})
    logs = [
        statistics.tail(weights, min(math.ceil((place - 0.5) * scale - 1e-6), sum(weights))).log10_p
        for place in places
    ]
    if verdict.bits > 500:
        curve = scipy.interpolate.PchipInterpolator(places, logs)
        places = [float(place) for place in np.linspace(places[0], places[-1], 80)]
        logs = [float(curve(place)) for place in places]
    return Null(grid, probability, places, logs, verdict.bits)


def _bits_pictures(verdict: Report) -> list[Markup]:
    return _twice(
        partial(bits_figure, verdict.best.agreements, verdict.probes),
        "bits",
        "The bits of the key as this model answers them",
        f"{verdict.bits} squares, one for each bit of the key, from strongest to weakest "
        f"agreement: {verdict.best.right_bits} are read correctly by most of the {verdict.probes} "
        "inputs. Squares with a cross are read wrongly.",
    )
