"""What the experiment on alignment shows: tables of verdicts, figures of probes and of the null."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import scipy  # loads scipy.stats, which takes a second, only where it is used
from matplotlib.axes import Axes

from sigil.pages import figures
from sigil.pages.tables import (
    MISSING,
    NOT_RUN,
    Entry,
    Number,
    Page,
    Picture,
    Power,
    Row,
    Table,
    Words,
)
from sigil.rules import ALPHA
from sigil_reproduction.beyond.alignment_null import Floats
from sigil_reproduction.runner.experiment import Finding, Measured, check_claim
from sigil_reproduction.runner.store import Cell

WAYS = ("images", "noise", "initial weights")
RECORDED = "recorded scales"
COLOURS = dict(zip(("as it is", *WAYS, RECORDED), ("#000000", *figures.SERIES), strict=False))
# Below this a test of uniformity counts as failed; ten are made, so the one in a hundred is shared by them.
UNLIKELY = 0.001
# Since this day each channel of a reordered copy is divided by its own spread, and more copies are compared.
READER = "2026-11-18"
FIVE_SIGMA = math.log10(ALPHA)  # before any correction: these keys have the paper's 50 bits

Numbers = dict[str, Any]


def show(measured: Measured, folder: Path) -> Page:
    """Tables of what alignment recovers, and figures of the probes and of the null hypothesis."""
    tested = any(measured.first(cell.name) for cell in _having(measured, "keys"))
    return [
        "In each entry: channels recovered of those that are left, WSR, and p. An alignment that is not "
        "believed is not used; the entry then is that of the model as it is.",
        *_earlier(measured),
        "## Disguise, alone and after other attacks",
        _table("attack", measured),
        "## Four architectures",
        _table("model", measured),
        "## How little the probes need",
        *_probes(measured, folder / "probes.png"),
        "## What an adversary does next",
        _table("disguise", measured),
        *(["## The null hypothesis", *_null(measured, folder / "null.png")] if tested else []),
    ]


def _earlier(measured: Measured) -> list[str]:
    """Which numbers are not those of the present reader, if there are any."""
    days = sorted(result.day for result in measured.results.values() if result.day < READER)
    if not days:
        return []
    return [
        f"**{len(days)} of {len(measured.results)} cells are of an earlier reader** (measured until "
        f"{days[-1]}). Since {READER} each channel of a reordered copy is divided by its own spread, and "
        "copies with more channels are compared with the initial weights: what is said of aligned copies "
        "may differ."
    ]


def _having(measured: Measured, option: str) -> list[Cell]:
    """The first seed's cells that have this option."""
    return [cell for cell in measured.cells if cell.seed == measured.seed and option in cell.options]


def _table(option: str, measured: Measured) -> Table:
    cells = _having(measured, option)
    rows = [[str(cell.options[option]), *_row(measured.first(cell.name))] for cell in cells]
    return Table([option, "accuracy (%)", "before the disguise", "as it is", *WAYS], rows)


def _row(numbers: Numbers | None) -> list[Entry | list[Entry]]:
    if numbers is None:
        return [NOT_RUN] * (3 + len(WAYS))
    moved = Words(f"{numbers['accuracy_before']:.2f} → {numbers['accuracy']:.2f}")
    return [moved, *(_entries(numbers[name]) for name in ("before", "as it is", *WAYS))]


def _entries(numbers: Numbers) -> list[Entry]:
    if "wsr" not in numbers:
        return [Words("not comparable")]
    found: list[Entry] = [Number(numbers["wsr"], "WSR"), Power(numbers["log10_p"])]
    if "recovered" not in numbers:
        return found
    recovered = "none left" if numbers["recovered"] is None else f"{numbers['recovered']:.0f} % recovered"
    return [Words(recovered if numbers["aligned"] else f"not believed, {recovered}"), *found]


def _probes(measured: Measured, path: Path) -> Page:
    options = [cell.options for cell in _having(measured, "kind")]
    kinds = list(dict.fromkeys(option["kind"] for option in options))
    counts = list(dict.fromkeys(option["count"] for option in options))
    figure, (left, right) = figures.panels(2)
    lines = []
    for kind, colour in zip(kinds, figures.SERIES, strict=False):
        rows = {count: measured.first(f"probes {kind} {count}") for count in counts}
        lines.append([kind, *(_of_probes(row, count) for count, row in rows.items())])
        known = [row for row in rows.values() if row is not None]
        asked = [row["probes"] for row in known]
        style = {"color": colour, "label": kind}
        figures.curve(left, asked, [row["recovered"] for row in known], **style)
        figures.curve(right, asked, [row["agreement"] for row in known], **style)
    left.set(title="channels recovered (%)", xlabel="probes", xscale="log", ylim=(-3, 103))
    right.set(title="agreement with the reference", xlabel="probes", xscale="log")
    figures.legend(left)
    figures.save(figure, path)
    return [
        Picture("Channels recovered over the number of probes", path.name),
        Table(["probes", *(f"{count:,}" for count in counts)], lines),
    ]


def _of_probes(row: Numbers | None, count: int) -> list[Entry]:
    if row is None:
        return [NOT_RUN]
    return _entries(row) + ([Words(f"({row['probes']:,} probes)")] if row["probes"] < count else [])


def _null(measured: Measured, path: Path) -> Page:
    figure, (left, middle, right) = figures.panels(3)
    rows: list[Row] = []
    real = measured.first("real keys")
    for way, colour in COLOURS.items():
        drawn = _by_random(measured, way, sibling=False)
        siblings = _by_random(measured, way, sibling=True)
        paired = _by_real(real, way)
        _distribution(left, drawn, colour, way)
        _distribution(middle, paired, colour, way)
        if real is not None:
            right.plot(real["random"][way], _shares(len(real["random"][way])), color=colour, linewidth=1.3)
            right.axvline(real["owner"][way], color=colour, linewidth=1.3, linestyle=":")
        line = [_uniform(p) for p in (drawn, siblings, paired)]
        rows.append([way, *line, _shift(real, way), _rank(real, way)])
    left.set(title="random keys")
    middle.set(title="keys that shaped a reference")
    for axis in (left, middle):
        axis.plot([0, 1], [0, 1], color="#999999", linewidth=0.9, zorder=0)
        axis.set(xlabel="p", ylabel="share of tests with a smaller p", xlim=(0, 1), ylim=(0, 1))
    right.set(title="owner's key (dotted)", xlabel="mean z over clean models", ylabel="share of random keys")
    figures.legend(middle, {"loc": "lower right"})
    figures.save(figure, path)
    head = [
        "alignment, by force",
        "random keys, KS test",
        "random keys on a sibling, KS test",
        "real keys, KS test",
        "real keys, mean z",
        "owner's key, mean z",
    ]
    notes = (
        "KS tests against the uniform distribution. The sibling is a clean model that began from the "
        "same weights as the marked one. Recorded scales are what alignment must not use, as a control."
    )
    return [
        Picture("p-values of clean models", path.name),
        Table(head, rows, notes=notes),
        _forged(measured.first("order chosen afterwards")),
    ]


def _forged(numbers: Numbers | None) -> str:
    text = "A clean model against the owner's key, if any order of its channels may be named afterwards: "
    return text + (f"{MISSING}." if numbers is None else f"{_line(numbers['chosen'])}.")


def _line(numbers: Numbers) -> str:
    return f"WSR {numbers['wsr']:.1f} %, p = 10^{numbers['log10_p']:.1f}"


def _of_random_keys(measured: Measured, *, sibling: bool) -> list[Numbers]:
    """What random keys gave on clean models: on that of the marked one's own origin, or on the others."""
    cells = [cell for cell in _having(measured, "sibling") if cell.options["sibling"] is sibling]
    return [numbers for cell in cells if (numbers := measured.first(cell.name)) is not None]


def _by_random(measured: Measured, way: str, *, sibling: bool) -> Floats:
    found = _of_random_keys(measured, sibling=sibling)
    return np.concatenate([[], *(numbers["p_values"].get(way, []) for numbers in found)])


def _by_real(real: Numbers | None, way: str) -> Floats:
    """One p-value for each key but the owner's, each on a clean model of its own."""
    pairs = [] if real is None else real["pairs"]
    return np.array([pair["p"][way] for pair in pairs if pair["reference"] != "owner"])


def _distribution(axis: Axes, p: Floats, colour: str, label: str) -> None:
    if len(p):
        axis.step(np.sort(p), _shares(len(p)), where="post", color=colour, linewidth=1.3, label=label)


def _shares(count: int) -> Floats:
    return np.arange(1, count + 1) / count


def _uniformity(p: Floats) -> float | None:
    return float(scipy.stats.kstest(p, "uniform").pvalue) if len(p) else None


def _uniform(p: Floats) -> str:
    found = _uniformity(p)
    return "not used" if found is None else f"p = {found:.2g}, {len(p):,} tests"


def _shift(real: Numbers | None, way: str) -> Number:
    if real is None:
        return NOT_RUN
    z = np.array([pair["z"][way] for pair in real["pairs"] if pair["reference"] != "owner"])
    return Number(z.mean(), form="+.2f", deviation=z.std(ddof=1) / np.sqrt(len(z)))


def _above(real: Numbers, way: str) -> float:
    """The share of random keys whose mean z is at least the owner's."""
    drawn = np.array(real["random"][way])
    return float((1 + (drawn >= real["owner"][way]).sum()) / (1 + len(drawn)))


def _rank(real: Numbers | None, way: str) -> str | Number:
    if real is None:
        return NOT_RUN
    return f"{real['owner'][way]:+.2f}, reached by {100 * _above(real, way):.0f} % of random keys"


def verdict(measured: Measured) -> list[Finding]:
    """What alignment promises."""
    plain = measured.first("attack none")

    def numbers(name: str, quantity: str) -> dict[str, float | None]:
        """A quantity of one cell, for each way."""
        return {way: (measured.first(name) or {}).get(way, {}).get(quantity) for way in WAYS}

    traced = {
        str(cell.options["model"]): numbers(cell.name, "log10_p")["initial weights"]
        for cell in _having(measured, "model")
    }
    return [
        check_claim(
            "Disguised and as it is, the copy is no proof (log10 p > −2)",
            {"p": None if plain is None else plain["as it is"]["log10_p"]},
            lambda x: x > -2,
        ),
        check_claim(
            "The disguise leaves accuracy as it was (0.02 points)",
            {"change": None if plain is None else plain["accuracy"] - plain["accuracy_before"]},
            lambda x: abs(x) <= 0.02 + 1e-9,
            "+.2f",
        ),
        check_claim("Aligned, WSR is at least 99 %", numbers("attack none", "wsr"), lambda x: x >= 99),
        check_claim("Aligned, p < 1e-9 (log10 p)", numbers("attack none", "log10_p"), lambda x: x < -9),
        check_claim(
            "The initial weights undo the disguise of all architectures (log10 p ≤ −6.5)",
            traced,
            lambda x: x <= FIVE_SIGMA,
        ),
        *_of_attacks(measured),
        *_of_the_null(measured),
    ]


def _of_attacks(measured: Measured) -> list[Finding]:
    """What an attack had left of the proof is left after the disguise, once it is undone."""
    left: dict[str, float | None] = {}
    change: dict[str, float | None] = {}
    for cell in _having(measured, "attack"):
        known, attack = measured.first(cell.name), cell.options["attack"]
        if attack != "none":
            left[attack] = change[attack] = None
            if known is not None:
                change[attack] = known["initial weights"]["wsr"] - known["before"]["wsr"]
            if known is not None and known["before"]["log10_p"] <= FIVE_SIGMA:
                left[attack] = known["initial weights"]["log10_p"]
    return [
        check_claim(
            "Copies that other attacks left at five sigma are so by the initial weights (log10 p ≤ −6.5)",
            left,
            lambda x: x <= FIVE_SIGMA,
        ),
        check_claim(
            "After other attacks, the initial weights restore the WSR that those had left (2 points)",
            change,
            lambda x: x >= -2,
            "+.2f",
        ),
    ]


def _surest(strangers: list[Numbers], way: str) -> float:
    return max((known[way]["sure"] / known[way]["channels"] for known in strangers), default=0.0)


def _of_the_null(measured: Measured) -> list[Finding]:
    real = measured.first("real keys")
    ways = ("as it is", *WAYS)
    strangers = [numbers["sure"] for numbers in _of_random_keys(measured, sibling=False)]
    strangers += [] if real is None else [pair["sure"] for pair in real["pairs"]]
    return [
        check_claim(
            "Random keys on clean models: p is uniform (KS test)",
            {way: _uniformity(_by_random(measured, way, sibling=False)) for way in ways},
            lambda x: x > UNLIKELY,
            ".2g",
        ),
        check_claim(
            "Real keys on clean models: p is uniform (KS test)",
            {way: _uniformity(_by_real(real, way)) for way in ways},
            lambda x: x > UNLIKELY,
            ".2g",
        ),
        check_claim(
            "The owner's key does as well on clean models as random keys (share that reach its mean z)",
            {way: None if real is None else _above(real, way) for way in ways},
            lambda x: x > 0.01,
            ".2f",
        ),
        check_claim(
            f"No clean model of other origin is believed, of {len(strangers)}",
            {
                f"{way}, at most {_surest(strangers, way):.0%} sure": sum(
                    known[way]["believed"] for known in strangers
                )
                if strangers
                else None
                for way in WAYS
            },
            lambda x: x == 0,
            ".0f",
        ),
    ]
