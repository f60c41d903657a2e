"""What the experiment on alignment shows: tables of verdicts, figures of probes and of the null."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from scipy import stats

from sigil.experiments.beyond.alignment_null import Floats
from sigil.experiments.lab.experiment import Finding, Results, judge
from sigil.experiments.lab.store import Cell
from sigil.experiments.pages import figures
from sigil.experiments.pages.tables import MISSING, markdown
from sigil.verification import ALPHA

WAYS = ("images", "noise", "initial weights")
RECORDED = "recorded scales"
COLOURS = dict(zip(("as it is", *WAYS, RECORDED), ("#000000", *figures.SERIES), strict=False))
# Below this a test of uniformity counts as failed; ten are made, so the one in a hundred is shared by them.
UNLIKELY = 0.001
PROVEN = math.log10(ALPHA)

Numbers = dict[str, Any]


def show(cells: list[Cell], results: Results, folder: Path) -> str:
    """Tables of what alignment recovers, and figures of the probes and of the null hypothesis."""
    cells, found = _first(cells, results)
    return "\n".join(
        [
            "In each entry: channels recovered of those that are left, WSR, and p. An alignment that is not "
            "believed is not used; the entry then is that of the model as it is.\n",
            "## Disguise, alone and after other attacks\n",
            _table("attack", cells, found),
            "## Four architectures\n",
            _table("model", cells, found),
            "## How little the probes need\n",
            _probes(cells, found, folder / "probes.png"),
            "## What an adversary does next\n",
            _table("disguise", cells, found),
            "## The null hypothesis\n",
            _null(cells, found, folder / "null.png"),
        ]
    )


def _first(cells: list[Cell], results: Results) -> tuple[list[Cell], dict[str, Numbers]]:
    """The cells of the first seed, and what was measured of them."""
    seed = min(cell.seed for cell in cells)
    chosen = [cell for cell in cells if cell.seed == seed]
    return chosen, {
        cell.name: results[cell.name, seed].numbers for cell in chosen if (cell.name, seed) in results
    }


def _table(option: str, cells: list[Cell], found: dict[str, Numbers]) -> str:
    lines = []
    for cell in cells:
        if option not in cell.options:
            continue
        label, numbers = str(cell.options[option]), found.get(cell.name)
        if numbers is None:
            lines.append([label, *[MISSING] * (3 + len(WAYS))])
            continue
        moved = f"{numbers['accuracy_before']:.2f} → {numbers['accuracy']:.2f}"
        entries = [_entry(numbers[name]) for name in ("before", "as it is", *WAYS)]
        lines.append([label, moved, *entries])
    return markdown([option, "accuracy (%)", "before the disguise", "as it is", *WAYS], lines)


def _entry(numbers: Numbers) -> str:
    if "wsr" not in numbers:
        return "not comparable"
    text = f"WSR {numbers['wsr']:.1f}<br>p = 10^{numbers['log10_p']:.1f}"
    if "recovered" not in numbers:
        return text
    recovered = "none left" if numbers["recovered"] is None else f"{numbers['recovered']:.0f} % recovered"
    return f"{recovered}<br>{text}" if numbers["aligned"] else f"not believed, {recovered}<br>{text}"


def _probes(cells: list[Cell], found: dict[str, Numbers], path: Path) -> str:
    options = [cell.options for cell in cells if "kind" in cell.options]
    kinds = list(dict.fromkeys(option["kind"] for option in options))
    counts = list(dict.fromkeys(option["count"] for option in options))
    figure, (left, right) = figures.panels(2)
    lines = []
    for kind, colour in zip(kinds, figures.SERIES, strict=False):
        rows = {count: found.get(f"probes {kind} {count}") for count in counts}
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
    return f"![Channels recovered over the number of probes]({path.name})\n\n" + markdown(
        ["probes", *(f"{count:,}" for count in counts)], lines
    )


def _of_probes(row: Numbers | None, count: int) -> str:
    if row is None:
        return MISSING
    return _entry(row) + (f"<br>({row['probes']:,} probes)" if row["probes"] < count else "")


def _null(cells: list[Cell], found: dict[str, Numbers], path: Path) -> str:
    figure, (left, middle, right) = figures.panels(3)
    rows = []
    real = found.get("real keys")
    for way, colour in COLOURS.items():
        drawn = _by_random(cells, found, way, sibling=False)
        siblings = _by_random(cells, found, way, sibling=True)
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
    return (
        f"![p-values of clean models]({path.name})\n\n"
        + markdown(head, rows)
        + "\nKS tests against the uniform distribution. The sibling is a clean model that began from the "
        "same weights as the marked one. Recorded scales are what alignment must not use, as a control.\n\n"
        + _forged(found.get("order chosen afterwards"))
    )


def _forged(numbers: Numbers | None) -> str:
    text = "A clean model against the owner's key, if any order of its channels may be named afterwards: "
    return text + (f"{MISSING}.\n" if numbers is None else f"{_line(numbers['chosen'])}.\n")


def _line(numbers: Numbers) -> str:
    return f"WSR {numbers['wsr']:.1f} %, p = 10^{numbers['log10_p']:.1f}"


def _by_random(cells: list[Cell], found: dict[str, Numbers], way: str, *, sibling: bool) -> Floats:
    chosen = [cell.name for cell in cells if cell.options.get("sibling") is sibling and cell.name in found]
    return np.concatenate([[], *(found[name]["p_values"].get(way, []) for name in chosen)])


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
    return float(stats.kstest(p, "uniform").pvalue) if len(p) else None


def _uniform(p: Floats) -> str:
    found = _uniformity(p)
    return "not used" if found is None else f"p = {found:.2g}, {len(p):,} tests"


def _shift(real: Numbers | None, way: str) -> str:
    if real is None:
        return MISSING
    z = np.array([pair["z"][way] for pair in real["pairs"] if pair["reference"] != "owner"])
    return f"{z.mean():+.2f} ± {z.std(ddof=1) / np.sqrt(len(z)):.2f}"


def _above(real: Numbers, way: str) -> float:
    """The share of random keys whose mean z is at least the owner's."""
    drawn = np.array(real["random"][way])
    return float((1 + (drawn >= real["owner"][way]).sum()) / (1 + len(drawn)))


def _rank(real: Numbers | None, way: str) -> str:
    if real is None:
        return MISSING
    return f"{real['owner'][way]:+.2f}, reached by {100 * _above(real, way):.0f} % of random keys"


def verdict(cells: list[Cell], results: Results) -> list[Finding]:
    """What alignment promises."""
    cells, found = _first(cells, results)
    plain = found.get("attack none")

    def numbers(name: str, quantity: str) -> dict[str, float | None]:
        """A quantity of one cell, for each way."""
        return {way: found.get(name, {}).get(way, {}).get(quantity) for way in WAYS}

    models = [cell for cell in cells if "model" in cell.options]
    traced = {
        str(cell.options["model"]): found.get(cell.name, {}).get("initial weights", {}).get("log10_p")
        for cell in models
    }
    return [
        judge(
            "Disguised and as it is, the copy is no proof (log10 p > −2)",
            {"p": None if plain is None else plain["as it is"]["log10_p"]},
            lambda x: x > -2,
        ),
        judge(
            "The disguise leaves accuracy as it was (0.02 points)",
            {"change": None if plain is None else plain["accuracy"] - plain["accuracy_before"]},
            lambda x: abs(x) <= 0.02 + 1e-9,
            "+.2f",
        ),
        judge("Aligned, WSR is at least 99 %", numbers("attack none", "wsr"), lambda x: x >= 99),
        judge("Aligned, p < 1e-9 (log10 p)", numbers("attack none", "log10_p"), lambda x: x < -9),
        judge(
            "The initial weights undo the disguise of all architectures (log10 p ≤ −6.5)",
            traced,
            lambda x: x <= PROVEN,
        ),
        *_of_attacks(cells, found),
        *_of_the_null(cells, found),
    ]


def _of_attacks(cells: list[Cell], found: dict[str, Numbers]) -> list[Finding]:
    """What an attack had left of the proof is left after the disguise, once it is undone."""
    left: dict[str, float | None] = {}
    change: dict[str, float | None] = {}
    for cell in cells:
        known = found.get(cell.name)
        if cell.options.get("attack", "none") != "none":
            left[cell.options["attack"]] = change[cell.options["attack"]] = None
            if known is not None:
                change[cell.options["attack"]] = known["initial weights"]["wsr"] - known["before"]["wsr"]
            if known is not None and known["before"]["owned"]:
                left[cell.options["attack"]] = known["initial weights"]["log10_p"]
    return [
        judge(
            "Copies that other attacks left proven are proven by the initial weights (log10 p ≤ −6.5)",
            left,
            lambda x: x <= PROVEN,
        ),
        judge(
            "After other attacks, the initial weights restore the WSR that those had left (2 points)",
            change,
            lambda x: x >= -2,
            "+.2f",
        ),
    ]


def _surest(strangers: list[Numbers], way: str) -> float:
    return max((known[way]["sure"] / known[way]["channels"] for known in strangers), default=0.0)


def _of_the_null(cells: list[Cell], found: dict[str, Numbers]) -> list[Finding]:
    real = found.get("real keys")
    ways = ("as it is", *WAYS)
    strangers = [
        numbers["sure"]
        for numbers in (
            found[cell.name] for cell in cells if cell.options.get("sibling") is False and cell.name in found
        )
    ] + ([] if real is None else [pair["sure"] for pair in real["pairs"]])
    return [
        judge(
            "Random keys on clean models: p is uniform (KS test)",
            {way: _uniformity(_by_random(cells, found, way, sibling=False)) for way in ways},
            lambda x: x > UNLIKELY,
            ".2g",
        ),
        judge(
            "Real keys on clean models: p is uniform (KS test)",
            {way: _uniformity(_by_real(real, way)) for way in ways},
            lambda x: x > UNLIKELY,
            ".2g",
        ),
        judge(
            "The owner's key does as well on clean models as random keys (share that reach its mean z)",
            {way: None if real is None else _above(real, way) for way in ways},
            lambda x: x > 0.01,
            ".2f",
        ),
        judge(
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
