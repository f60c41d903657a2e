"""The evidence page: one HTML file that a lawyer or a manager can read, print and keep.

It holds everything in itself: no script, no link, no font, no picture from elsewhere. A browser is
told so by the page's content security policy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from functools import cache

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape
from scipy.interpolate import PchipInterpolator

from sigil import statistics, wording
from sigil.evidence.facts import Facts, Verdict
from sigil.evidence.figures import Marker, Null, bits_figure, null_figure
from sigil.statistics import PAPER_THRESHOLD
from sigil.wording import chance, percent, scientific, success_rate, unbroken

WIDE, NARROW = 704, 326
"""Widths in CSS pixels of the two drawings of every figure: for paper and for a phone."""


@dataclass(frozen=True)
class SignedRecord:
    """The evidence file that was written together with the page."""

    file: str
    sha256: str
    public_key: str


def render(facts: Facts, *, record: SignedRecord | None = None) -> str:
    """Return the page as HTML text."""
    verdict = facts.verdict
    wsr, needed = success_rate(verdict)
    wsr, needed = unbroken(wsr), None if needed is None else unbroken(needed)
    level = superscripts(statistics.in_words(math.log10(verdict.alpha)))
    raw = statistics.tail(verdict.weights, verdict.statistic).log10_p
    return _template().render(
        facts=facts,
        verdict=verdict,
        record=record,
        title=wording.title(verdict.owned),
        stamp=wording.stamp(verdict.owned),
        heading=Markup(escape(wording.heading(verdict.owned))).format(
            owner=Markup("<bdi>{}</bdi>").format(facts.key.owner)
        ),
        explanation=Markup(escape(wording.explanation(verdict.owned))).format(
            chance=Markup("<strong>{}</strong>").format(superscripts(chance(verdict))), level=level
        ),
        meaning=wording.meaning(verdict),
        met=wording.met(verdict),
        alignment=wording.channel_order_at_length(facts.alignment),
        wsr=wsr,
        needed=needed,
        chance=superscripts(chance(verdict)),
        p=unbroken(scientific(verdict.log10_p)),
        raw_p=unbroken(scientific(raw)),
        level=level,
        alpha=unbroken(scientific(math.log10(verdict.alpha))),
        one_try_level=superscripts(statistics.in_words(math.log10(verdict.alpha / verdict.tries))),
        paper=unbroken(percent(PAPER_THRESHOLD, 0)),
        date=_date(facts.created),
        null=_null_pictures(verdict, wsr=wsr, needed=needed, raw=raw),
        bits=_bits_pictures(verdict),
    )


def superscripts(words: str) -> Markup:
    """Write a power such as 10^300 with a raised exponent."""
    base, hat, exponent = words.partition("^")
    return escape(base) + Markup("<sup>{}</sup>").format(exponent) if hat else escape(base)


def _date(created: str) -> str:
    moment = datetime.fromisoformat(created)
    return f"{moment.day} {moment:%B %Y, %H:%M:%S} UTC"


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
        loader=PackageLoader("sigil.evidence", "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_in_one_direction,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")


def _null_pictures(verdict: Verdict, *, wsr: str, needed: str | None, raw: float) -> list[Markup]:
    """The null distribution, once for a wide and once for a narrow page."""
    null = _null(verdict)
    markers = [Marker(verdict.wsr, f"this model {wsr}", "seen")]
    if needed is not None and verdict.threshold is not None:
        markers.append(Marker(verdict.threshold, f"proof begins at {needed}", "needed"))
    markers.append(Marker(PAPER_THRESHOLD, f"the paper’s rule {percent(PAPER_THRESHOLD, 0)}", "rule"))
    level = math.log10(verdict.alpha / verdict.tries)
    description = (
        "Upper part: how often models that have nothing to do with the key reach each share of "
        "agreement, a bell around 50 percent. Lower part: the chance of reaching at least that "
        "share, on a logarithmic scale. The model examined agrees in "
        f"{100 * verdict.wsr:.2f} percent; the chance of that is {chance(verdict)}."
    )
    return [
        null_figure(
            null,
            markers,
            observed=(verdict.wsr, raw),
            level=(level, "level of proof"),
            width=width,
            name=name,
            title="Chance agreement with the key, and the agreement found",
            description=description,
        )
        for width, name in ((WIDE, "null-wide"), (NARROW, "null-narrow"))
    ]


def _null(verdict: Verdict) -> Null:
    """The distribution of chance agreement and, out to what was found or needed, its tail."""
    weights, scale = verdict.weights, 2 * verdict.probes * verdict.bits
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
        curve = PchipInterpolator(places, logs)
        places = [float(place) for place in np.linspace(places[0], places[-1], 80)]
        logs = [float(curve(place)) for place in places]
    return Null(grid, probability, places, logs, verdict.bits)


def _bits_pictures(verdict: Verdict) -> list[Markup]:
    description = (
        f"{verdict.bits} squares, one for each bit of the key, from strongest to weakest "
        f"agreement: {verdict.right_bits} are read correctly by most of the {verdict.probes} "
        "probes. Squares with a cross are read wrongly."
    )
    return [
        bits_figure(
            verdict.agreements,
            verdict.probes,
            width=width,
            name=name,
            title="The bits of the key as this model answers them",
            description=description,
        )
        for width, name in ((WIDE, "bits-wide"), (NARROW, "bits-narrow"))
    ]
