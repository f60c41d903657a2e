"""Whether the p-values of imprints are exact, and whom a trace names that has no part in it.

    python benchmarks/imprint.py --json benchmarks/results/imprint.json

What a copy survives is measured by ``sigil reproduce copies``, and what happens in trainings by ``sigil
reproduce imprints``. Here two things are counted. First, patterns are drawn that a suspect knows nothing of,
with several keys: never more than x of them should have p at most x. Second, models are held against
registers of which their makers hold no copy, or one: small networks on the embedded digits, so that there can
be many.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sigil
from common import command_line, write_result
from sigil.data import load
from sigil.imprint import Imprint
from sigil.imprint_reading import deviations, log10_p_before, read

LEVELS = (0.5, 0.2, 0.1, 0.05, 0.01, 0.001, 0.0001)
RECIPIENTS = [f"Recipient {number}" for number in range(4)]
# Naming takes more than five deviations: with less than this for everybody and every group there is no trace.
LOOKED_AT = 4.0
State = Mapping[str, Tensor]


def exact(keys: int, suspects: int, draws: int) -> dict[str, Any]:
    """How often p is at most x, over patterns that the suspects know nothing of."""
    found = []
    for seed in range(keys):
        key = sigil.Key.generate("ACME", shape=(8, 4, 4), seed=seed.to_bytes(32, "big"))
        random = torch.Generator().manual_seed(seed)
        for _ in range(suspects):
            ours = {
                "a": torch.randn(16, 8, 3, 3, generator=random),
                "b": torch.randn(8, 16, generator=random),
            }
            copies = Imprint(key, ours)
            reading = read(
                ours,
                {name: value + torch.randn(value.shape, generator=random) for name, value in ours.items()},
            )
            coins = reading.coins
            # The tail depends on the sum alone: it is computed once for each sum.
            tails: dict[int, float] = {}
            for number in range(draws):
                positive = reading.positive(copies.pattern(f"Recipient {number}"))
                total = sum(weight * up for weight, up in enumerate(positive, 1))
                if total not in tails:
                    tails[total] = log10_p_before(positive, coins)
                found.append(tails[total])
    p = 10.0 ** np.array(found)
    rows = []
    for x in LEVELS:
        share = float((p <= x).mean())
        errors = (share - x) / math.sqrt(x * (1 - x) / len(p))
        rows.append({"x": x, "share": round(share, 6), "standard_errors": round(errors, 2)})
    return {"draws": len(p), "keys": keys, "suspects": keys * suspects, "levels": rows}


class Digits:
    """Small networks on the digits, from nothing or from another."""

    def __init__(self) -> None:
        data = load("digits")
        images = torch.from_numpy(np.array(data.train.images)).float().flatten(1)
        self.images = (images - images.mean()) / images.std()
        self.labels = torch.from_numpy(np.array(data.train.labels)).long()

    def trained(self, seed: int, base: State | None = None, *, rate: float = 3e-3) -> dict[str, Tensor]:
        """A network of one hidden layer that learned half of the images, drawn by the seed."""
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(self.images.shape[1], 24), nn.ReLU(), nn.Linear(24, 10))
        if base is not None:
            net.load_state_dict(base)
        optimizer = torch.optim.Adam(net.parameters(), lr=rate)
        half = torch.randperm(len(self.images))[: len(self.images) // 2]
        for _ in range(3):
            for batch in half[torch.randperm(len(half))].split(64):
                optimizer.zero_grad()
                F.cross_entropy(net(self.images[batch]), self.labels[batch]).backward()
                optimizer.step()
        return {name: value.detach().clone() for name, value in net.state_dict().items()}


def pairs(registers: int, models: int) -> Iterator[tuple[str, State, Imprint, frozenset[str]]]:
    """What is held against which register, and who of it has a part in that.

    All registers are of models that descend from one public base.
    """
    digits = Digits()
    base = digits.trained(0)
    strangers = [digits.trained(1_000 + seed) for seed in range(models)]
    descendants = [digits.trained(2_000 + seed, base, rate=1e-3) for seed in range(models)]
    for number in range(registers):
        key = sigil.Key.generate("ACME", shape=(8, 4, 4), seed=number.to_bytes(32, "big"))
        copies = Imprint(key, digits.trained(3_000 + number, base, rate=1e-3))
        issued = {name: copies.record(name) for name in RECIPIENTS}
        for model in strangers:
            yield "strangers", model, copies, frozenset()
        for model in descendants:
            yield "other descendants of the same public base", model, copies, frozenset()
        for seed in range(models // 8):
            later = digits.trained(4_000 + seed, copies.state, rate=1e-3)
            yield "later versions of the owner's model", later, copies, frozenset()
        ours = digits.trained(6_000 + number, base, rate=1e-3)
        for holder in RECIPIENTS:
            derived = digits.trained(5_000 + number, issued[holder], rate=1e-3)
            yield "a recipient's own derivatives", derived, copies, frozenset({holder})
            away = {name: 3 * value - 2 * ours[name] for name, value in derived.items()}
            yield "the same, extrapolated to blame others", away, copies, frozenset({holder})
        for size in (2, 3):
            holders = RECIPIENTS[:size]
            draw = np.random.default_rng(number).dirichlet(np.ones(size)) * 3 - 2 / size
            weights = torch.from_numpy(draw).float()
            mixed = {
                name: torch.tensordot(weights, torch.stack([issued[one][name] for one in holders]), 1)
                for name in copies.state
            }
            yield "combinations of copies, with negative weights", mixed, copies, frozenset(holders)
        public = copies.record("everybody", public=True)
        yield (
            "descendants of a copy that was made public",
            digits.trained(7, public),
            copies,
            frozenset({"everybody"}),
        )


def named(registers: int, models: int) -> list[dict[str, Any]]:
    """Of each kind: pairs, who was named of those with and without a copy, and the most deviations."""
    rows: dict[str, dict[str, Any]] = {}
    for kind, suspect, copies, holders in pairs(registers, models):
        reading = read({name: copies.state[name] for name in copies.carriers}, suspect)
        coins = reading.coins
        shown = {name: deviations(reading.positive(copies.pattern(name)), coins) for name in copies.copies}
        ranked = np.sort(list(shown.values()))[::-1]
        group = float(np.max(np.cumsum(ranked) / np.sqrt(np.arange(1, len(ranked) + 1))))
        row = rows.setdefault(
            kind,
            {"pairs": 0, "names": 0, "wrongly": 0, "groups_wrongly": 0, "holders": 0, "holders_named": 0}
            | {"most_deviations": 0.0},
        )
        others = [value for name, value in shown.items() if name not in holders]
        row["pairs"] += 1
        row["names"] += len(others)
        row["holders"] += len(holders)
        row["most_deviations"] = max(row["most_deviations"], round(max(others), 2))
        if group > LOOKED_AT:
            outcome = sigil.trace(suspect, copies.key, copies)
            together = outcome.coalition
            row["wrongly"] += len(set(outcome.named) - holders)
            row["holders_named"] += len(holders & set(outcome.named))
            if together is not None and together.contained and not holders & set(together.names):
                row["groups_wrongly"] += 1
    return [{"suspects": kind, **row} for kind, row in rows.items()]


def main() -> None:
    """Read the command line and print both tables."""
    parser = command_line(__doc__)
    parser.add_argument("--draws", type=int, default=2_000, help="patterns per suspect, of 40 suspects")
    parser.add_argument("--registers", type=int, default=40)
    parser.add_argument("--models", type=int, default=120, help="strangers, and descendants of the base")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"exact": exact(8, 5, options.draws)}
    for row in found["exact"]["levels"]:
        print(json.dumps(row), flush=True)
    found["named"] = named(options.registers, options.models)
    for row in found["named"]:
        print(json.dumps(row), flush=True)
    write_result(options.json, found)


if __name__ == "__main__":
    main()
