"""Time of a p-value: k=50 with 512 probes below 10 ms, k=3,000 with 2,048 probes below 1 s.

    python benchmarks/p_value.py --json p_value.json

Each size is timed on two suspects: "spread" answers a bit with any share of ones, "agreeing" gives
nearly all probes the same bit, which makes the weights and so the work as large as they get. A
third of the bits are wrong, so that no shortcut applies.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from common import command_line, write_result
from sigil.statistics import p_value

CLAIMS = ((50, 512, 0.010, 200), (3000, 2048, 1.0, 9))


def measure(bits: int, probes: int, *, suspect: str, repeats: int) -> dict[str, Any]:
    """Median and slowest time of one p-value, in seconds, after one call to warm up."""
    generator = np.random.default_rng(0)
    share = generator.random(bits)
    if suspect == "agreeing":
        share = np.round(share) * 0.98 + 0.02 * share
    ones = np.rint(share * probes).astype(np.int64)
    target = (ones * 2 > probes) ^ (generator.random(bits) < 1 / 3)
    result = p_value(ones, target, probes)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        p_value(ones, target, probes)
        seconds.append(time.perf_counter() - start)
    return {
        "bits": bits,
        "probes": probes,
        "suspect": suspect,
        "repeats": repeats,
        "median_seconds": float(np.median(seconds)),
        "slowest_seconds": max(seconds),
        "log10_p": result.log10_p,
        "exact": result.exact,
    }


def main() -> None:
    parser = command_line(__doc__)
    arguments = parser.parse_args()
    rows = []
    print(f"{'bits':>6} {'probes':>6} {'suspect':>9} {'claim':>9} {'median':>10} {'slowest':>10}")
    for bits, probes, claim, repeats in CLAIMS:
        for suspect in ("spread", "agreeing"):
            row = measure(bits, probes, suspect=suspect, repeats=repeats)
            row |= {"claim_seconds": claim, "met": row["median_seconds"] < claim}
            rows.append(row)
            times = (claim, row["median_seconds"], row["slowest_seconds"])
            figures = "{:>6.0f} ms {:>7.2f} ms {:>7.2f} ms".format(*(1e3 * t for t in times))
            print(f"{bits:>6} {probes:>6} {suspect:>9} {figures}")
    write_result(arguments.json, {"rows": rows})


if __name__ == "__main__":
    main()
