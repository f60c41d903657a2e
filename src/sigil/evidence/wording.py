"""Numbers as people read them, rounded so that no claim becomes stronger than it is."""

from __future__ import annotations

import math

from sigil import statistics
from sigil.evidence.facts import Facts, Verdict

_SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def success_rate(verdict: Verdict) -> tuple[str, str | None]:
    """The WSR and the WSR at which proof begins (None if out of reach), as percentages.

    They have one decimal, or as many as tell them from each other and from 100 %.
    """
    for digits in (1, 2, 3, 4):
        wsr = percent(verdict.wsr, digits)
        needed = None if verdict.threshold is None else percent(verdict.threshold, digits)
        if (wsr != needed or verdict.wsr == verdict.threshold) and "than" not in wsr:
            break
    return wsr, needed


def percent(share: float, digits: int = 1) -> str:
    """A share as a percentage; what is less than all never reads as 100 %."""
    if share >= 1.0:
        return "100 %"
    text = f"{100 * share:.{digits}f}"
    if float(text) >= 100.0:
        return f"more than {100 - 10.0**-digits:.{digits}f} %"
    return f"{text} %"


def chance(verdict: Verdict) -> str:
    """The p-value in words, and whether it is a bound: "at most one in 3.3 million"."""
    return ("" if verdict.exact else "at most ") + statistics.in_words(verdict.log10_p)


def alignment(facts: Facts) -> list[tuple[str, str]]:
    """Rows about the order of channels: none if no reference was given."""
    found = facts.alignment
    if found is None:
        return []
    sure = f"{found.sure_channels} channels recognised by {found.compared}"
    used = f"{sure}, put back in order" if found.used else f"not used: only {sure}, so examined as it is"
    return [("alignment", used), ("reference", f"fingerprint {found.reference}")]


def decimal(log10: float) -> str:
    """A probability in the form 8.9e-16, which is never smaller than the true one."""
    mantissa, exponent = _round_up(log10)
    return f"{mantissa:g}e{exponent}" if log10 < -2 else f"{_hundredths(log10):g}"


def scientific(log10: float) -> str:
    """A probability in the form 8.9 × 10⁻¹⁶, which is never smaller than the true one."""
    mantissa, exponent = _round_up(log10)
    if log10 >= -2:
        return f"{_hundredths(log10):g}"
    return f"{mantissa:g} × 10{str(exponent).translate(_SUPERSCRIPT)}"


def _round_up(log10: float) -> tuple[float, int]:
    exponent = math.floor(log10)
    # A logarithm carries rounding: without the slack 3e-7 could read 3.1e-7.
    mantissa = math.ceil(10 ** (log10 - exponent) * 10 - 1e-9) / 10
    return (1.0, exponent + 1) if mantissa >= 10 else (mantissa, exponent)


def _hundredths(log10: float) -> float:
    return math.ceil(10 ** (log10 + 2) - 1e-9) / 100
