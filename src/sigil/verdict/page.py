"""The page of a report: one HTML file that a lawyer or a manager can read, print and keep.

It holds everything in itself: no script, no font, no picture from elsewhere, and no link but the one to the
evidence that was saved beside it. A browser is told so by the page's content security policy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np
import scipy  # loads scipy.interpolate, which takes a second, only where it is used
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from sigil import statistics
from sigil.rules import STAMPED_ALLOWANCE_LOG2
from sigil.statistics import PAPER_THRESHOLD
from sigil.verdict import wording
from sigil.verdict.figures import Marker, Null, bits_figure, null_figure
from sigil.verdict.wording import chance, percent, scientific, success_rate, unbroken

if TYPE_CHECKING:
    from sigil.verdict.report import Reading, Report

WIDE, NARROW = 704, 326
"""Widths in CSS pixels of the two drawings of every figure: for paper and for a phone."""


@dataclass(frozen=True)
class SignedRecord:
    """The evidence file, by its path from the page's folder: its hash, and the public keys that signed it."""

    file: str
    sha256: str
    signers: tuple[str, ...]

    @property
    def link(self) -> str:
        """The same as a link, which cannot be taken for anything but a file beside the page."""
        return f"./{quote(self.file)}"


# Per outcome: the verdict's colour and its tint, on a light and on a dark screen.
_COLOURS: dict[wording.Outcome, tuple[str, str, str, str]] = {
    "owned": ("#0b6b57", "#e9f4f1", "#4cc9a8", "#12292a"),
    "descends": ("#1f5fa8", "#e8f0f9", "#78b4f0", "#14243a"),
    "experiment": ("#5a6575", "#f0f1f4", "#a9b4c3", "#20262f"),
    "not proven": ("#9a5b00", "#fbf3e4", "#e5a84b", "#2b2417"),
}


def render(verdict: Report, *, record: SignedRecord | None = None, copies: Sequence[str] = ()) -> str:
    """Return the page as HTML text; ``copies`` are sentences about whose copy the suspect contains."""
    outcome, titles, best = wording.outcome(verdict), wording.titles(verdict), verdict.best
    wsr, needed = success_rate(verdict)
    wsr, needed = unbroken(wsr), None if needed is None else unbroken(needed)
    decides = verdict if outcome != "descends" else _Origin(verdict.log10_p_origin)
    drawn = best.readable
    return _template().render(
        report=verdict,
        best=best,
        outcome=outcome,
        record=record,
        copies=copies,
        colours=_COLOURS[outcome],
        title=titles.title,
        stamp=titles.stamp,
        heading=Markup(escape(titles.heading)).format(owner=Markup("<bdi>{}</bdi>").format(verdict.owner)),
        explanation=_explanation(verdict, decides),
        meaning=wording.meaning(verdict),
        met=wording.met(verdict),
        alignment=wording.channel_order_at_length(verdict.alignment),
        wsr=wsr if drawn else "not readable",
        needed=None if outcome == "experiment" else needed,
        chance=superscripts(chance(decides)),
        p=unbroken(scientific(decides.log10_p)),
        exact=decides.exact,
        alpha=unbroken(scientific(math.log10(verdict.alpha))),
        level=f"{verdict.price.log10_level(verdict.alpha):.1f}".replace("-", "−"),
        one_try_level=superscripts(statistics.in_words(verdict.price.log10_level(verdict.alpha))),
        corrections=superscripts_in(
            wording.corrections_at_length(
                verdict,
                kind="stamped" if verdict.allowance_log2 == STAMPED_ALLOWANCE_LOG2 else "plain",
                register=verdict.register_count,
            )
        ),
        kind=superscripts_in(wording.kind_of_key(verdict.key, verdict.allowance_of_kind)),
        demonstration=wording.is_demonstration(verdict.key),
        demonstration_words=wording.DEMONSTRATION,
        entry=wording.entry(verdict.suspect),
        readings=[_row(one, best=one is best, experiment=verdict.experiment) for one in verdict.readings],
        origin=verdict.origin,
        origin_words=wording.ORIGIN,
        paper=unbroken(percent(PAPER_THRESHOLD, 0)),
        date=_date(verdict.created),
        null=_null_pictures(verdict, wsr=wsr, needed=needed) if drawn else [],
        bits=_bits_pictures(verdict) if drawn else [],
    )


@dataclass(frozen=True)
class _Origin:
    """The origin's p-value after correction, where it is what decides."""

    log10_p: float
    exact: bool = True


def _explanation(verdict: Report, decides: wording.HasProbability) -> Markup:
    if verdict.experiment:
        reasons = "; ".join(verdict.reasons)
        return Markup("Nothing is proven by it, because {}.").format(reasons)
    text = (
        "By chance alone, initial weights of a key that has nothing to do with this model would agree with "
        "its weights in sign this often with a probability of {chance}, after correction for everything that "
        "could have been chosen."
        if isinstance(decides, _Origin)
        else wording.explanation(verdict.owned)
    )
    level = superscripts(statistics.in_words(math.log10(verdict.alpha)))
    found = Markup("<strong>{}</strong>").format(superscripts(chance(decides)))
    return Markup(escape(text)).format(chance=found, level=level)


def _row(reading: Reading, *, best: bool, experiment: bool) -> dict[str, object]:
    """One reading as a row of the page's table."""
    unit = "weights" if reading.kind == "origin" else "answers per bit"
    return {
        "name": wording.reading_name(reading),
        "count": f"{reading.count:,} {unit}",
        "wsr": unbroken(percent(reading.wsr)) if reading.readable else "–",
        "log10_p_before": f"{'' if reading.exact else '≤ '}{_rounded_up(reading.log10_p_before)}",
        "counts": "no: this was an experiment" if experiment else wording.reading_counts(reading),
        "best": best,
    }


def _rounded_up(log10: float) -> str:
    """One decimal, rounded so that the claim becomes weaker."""
    return f"{math.ceil(log10 * 10 - 1e-9) / 10 + 0.0:.1f}".replace("-", "−")


def superscripts_in(sentence: str) -> Markup:
    """Write every power such as 2^80 in a sentence with a raised exponent."""
    return Markup(_POWER.sub(r"<sup>\1</sup>", str(escape(sentence))))


_POWER = re.compile(r"\^(\d+(?:\.\d+)?)")


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
        loader=PackageLoader("sigil.verdict", "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_in_one_direction,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")


def _null_pictures(verdict: Report, *, wsr: str, needed: str | None) -> list[Markup]:
    """The null distribution, once for a wide and once for a narrow page."""
    null = _null(verdict)
    markers = [Marker(verdict.wsr, f"this model {wsr}", "seen")]
    if needed is not None and verdict.threshold is not None and not verdict.experiment:
        markers.append(Marker(verdict.threshold, f"proof begins at {needed}", "needed"))
    markers.append(Marker(PAPER_THRESHOLD, f"the paper’s rule {percent(PAPER_THRESHOLD, 0)}", "rule"))
    level = verdict.price.log10_level(verdict.alpha)
    description = (
        "Upper part: how often keys that have nothing to do with the model reach each share of "
        "agreement, a bell around 50 percent. Lower part: the chance of reaching at least that "
        "share, on a logarithmic scale, before any correction. The model examined agrees in "
        f"{100 * verdict.wsr:.2f} percent; the chance of that is "
        f"{statistics.in_words(verdict.log10_p_before)}."
    )
    return [
        null_figure(
            null,
            markers,
            observed=(verdict.wsr, verdict.log10_p_before),
            level=(level, "level" if verdict.experiment else "level of proof"),
            width=width,
            name=name,
            title="Chance agreement with the key, and the agreement found",
            description=description,
        )
        for width, name in ((WIDE, "null-wide"), (NARROW, "null-narrow"))
    ]


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
    description = (
        f"{verdict.bits} squares, one for each bit of the key, from strongest to weakest "
        f"agreement: {verdict.best.right_bits} are read correctly by most of the {verdict.probes} "
        "inputs. Squares with a cross are read wrongly."
    )
    return [
        bits_figure(
            verdict.best.agreements,
            verdict.probes,
            width=width,
            name=name,
            title="The bits of the key as this model answers them",
            description=description,
        )
        for width, name in ((WIDE, "bits-wide"), (NARROW, "bits-narrow"))
    ]
