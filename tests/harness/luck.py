"""Luck in tests: what they draw is fixed, and `make luck` gives them other draws and shows their margins.

    python tests/harness/luck.py --draws 20

runs every test that takes the fixture `margin` with twenty other draws of all keys and seeds, each draw in a
process of its own, and prints how near each came to its limit, also if it is interrupted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
NEAR = 3.0  # standard deviations between the worst value and its limit


def redraw(draw: int) -> None:
    """Give every seed of this process another value: of keys, PyTorch and NumPy. Draw 0 changes nothing."""
    if draw == 0:
        return
    import numpy as np
    import torch

    from sigil.keys.key import Key

    any_numpy, any_torch = np.random, torch  # type: Any, Any
    default_rng, manual_seed, generate = np.random.default_rng, torch.manual_seed, Key.generate

    class Generator(torch.Generator):
        def manual_seed(self, seed: int) -> torch.Generator:
            return super().manual_seed(_other(seed, draw))

    def other_key(*given: Any, seed: bytes | None = None, **stated: Any) -> Key:
        if isinstance(seed, bytes):
            seed = hashlib.sha256(b"%d " % draw + seed).digest()
        return generate(*given, seed=seed, **stated)

    any_numpy.default_rng = lambda seed=None: default_rng(
        _other(seed, draw) if isinstance(seed, int) else seed
    )
    any_torch.manual_seed = any_torch.random.manual_seed = lambda seed: manual_seed(_other(seed, draw))
    any_torch.Generator = Generator
    Key.generate = other_key  # type: ignore[method-assign]


def _other(seed: int, draw: int) -> int:
    return (seed + 1_000_003 * draw) % 2**63


class Margin:
    """Asserts that a number which luck decides is beyond its limit, and records by how much."""

    def __init__(self, test: str, record: Path | None) -> None:
        self._test, self._record = test, record

    def __call__(
        self, name: str, value: float, *, above: float | None = None, below: float | None = None
    ) -> None:
        """`value` must be above or below a limit that is the same for every draw, or between two."""
        __tracebackhide__ = True
        for limit in (above, below):
            if limit is not None and self._record is not None:
                line = [self._test, name, float(value), limit, limit is above]
                with self._record.open("a") as file:
                    file.write(json.dumps(line) + "\n")
        assert above is None or value > above, f"{name} is {value}, not above {above}"
        assert below is None or value < below, f"{name} is {value}, not below {below}"


@dataclass(frozen=True)
class Row:
    """One limit of one test, and the values that came near it."""

    test: str
    name: str
    limit: float
    above: bool
    values: tuple[float, ...]

    @property
    def worst(self) -> float:
        """The value nearest to the limit, or furthest beyond it."""
        return min(self.values) if self.above else max(self.values)

    @property
    def margin(self) -> float:
        """How far the worst value is from the limit: of a log10 p, in powers of ten."""
        return (self.worst - self.limit) * (1 if self.above else -1)

    @property
    def deviations(self) -> float:
        """The same, in standard deviations over the draws."""
        spread = statistics.pstdev(self.values)
        return self.margin / spread if spread else math.copysign(math.inf, self.margin)

    @property
    def near(self) -> bool:
        """Whether another draw could well fail."""
        return self.margin < 1 if "log10 p" in self.name else self.deviations < NEAR


def rows(lines: Iterable[str]) -> list[Row]:
    """The limits of recorded lines, those with the least room first."""
    found: dict[tuple[str, str, float, bool], list[float]] = defaultdict(list)
    for line in lines:
        test, name, value, limit, above = json.loads(line)
        found[test, name, limit, above].append(value)
    made = [Row(*limit, tuple(values)) for limit, values in found.items()]
    return sorted(made, key=lambda row: row.deviations)


def table(found: list[Row]) -> str:
    """One line for each limit."""
    width = max([4, *(len(row.test) + len(row.name) + 2 for row in found)])
    lines = [f"{'test':{width}} values    worst      limit   margin  in s.d."]
    for row in found:
        what = f"{row.test}: {row.name}"
        limit = f"{'>' if row.above else '<'} {row.limit:.4g}"
        lines.append(
            f"{what:{width}} {len(row.values):6} {row.worst:8.4g} {limit:>10} {row.margin:8.3g} "
            f"{row.deviations:8.1f}{'  near' if row.near else ''}"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the tests with each draw, then print the table; the status is 1 if any test failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draws", type=int, default=20, help="how many other draws")
    parser.add_argument("--workers", type=int, default=2, help="how many processes at a time")
    parser.add_argument(
        "--keep", type=Path, help="a folder for what each draw gave: one begun before goes on"
    )
    parser.add_argument("-m", dest="marker", default="luck", help="which tests, by their markers")
    parser.add_argument(
        "tests", nargs="*", default=[str(TESTS)], help="where they are: folders, files, names"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        draws = [folder / str(draw) for draw in range(1, options.draws + 1)]
        try:
            with ThreadPoolExecutor(options.workers) as pool:
                failed = list(pool.map(lambda draw: _fails(draw, options.marker, options.tests), draws))
        finally:
            lines = [line for draw in draws if draw.exists() for line in draw.read_text().splitlines()]
            sys.stdout.write(table(rows(lines)))
    return int(any(failed))


def _fails(record: Path, marker: str, tests: list[str]) -> bool:
    """Run the tests with the draw that the record is named after, if they were not before."""
    ended = record.with_suffix(".txt")
    if not ended.exists():
        record.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-m", marker, *tests]
        command += ["-p", "no:cacheprovider", "--draw", record.name, "--margins", str(record)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            sys.stdout.write(done.stdout)
        ended.write_text("failed" if done.returncode else "passed")
    return ended.read_text() == "failed"


if __name__ == "__main__":
    sys.exit(main())
