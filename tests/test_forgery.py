"""Forging a proof after the fact: free with chosen M or b, impossible or priced with derived keys.

`pytest tests/test_forgery.py -s` prints the figures of docs/p-value.md, and each test fails if the
page states another figure. Weights, probes and matrices come from NumPy generators and all is
computed in float64, so the figures are the same on every machine.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sigil.errors import KeyFileError
from sigil.keys.key import Key
from sigil.statistics import correct, in_words, p_value

PAGE = Path(__file__).parents[1] / "docs" / "p-value.md"
ALPHA = 3e-7
BITS = 50
PROBES = 512
SHAPE = (32, 4, 4)
DIMENSION = math.prod(SHAPE)
TRIES = 300


def normal(*shape: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


@pytest.fixture(scope="module")
def activations() -> Tensor:
    """What an innocent model, never marked by anybody, answers to the probes: (PROBES, d)."""
    channels = (3, 16, 32, 32)
    layers: list[nn.Module] = []
    for seed, (before, after) in enumerate(itertools.pairwise(channels)):
        layer = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False, dtype=torch.float64)
        weight = normal(after, before, 3, 3, seed=seed) * math.sqrt(2 / (9 * before))
        layer.weight = nn.Parameter(weight)
        layers += [layer, nn.ReLU()]
    with torch.no_grad():
        answer: Tensor = nn.Sequential(*layers)(normal(PROBES, 3, 32, 32, seed=10))
    return answer.flatten(1)


@pytest.fixture
def figure() -> Callable[[str], None]:
    """Print a line, and insist that the page has it."""

    def show(line: str) -> None:
        sys.stdout.write(f"\n{line}")
        assert line in PAGE.read_text("utf-8").splitlines()

    return show


def ones(activations: Tensor, matrix: Tensor) -> Tensor:
    """For each bit the number of probes that give 1: (k,)."""
    return (activations @ matrix.double() >= 0).sum(dim=0)


def success_rate(counts: Tensor, target: Tensor) -> float:
    return float(torch.where(target == 1, counts, PROBES - counts).double().mean() / PROBES)


def log10_p(counts: Tensor, target: Tensor) -> float:
    return p_value(counts.numpy(), target.long().numpy(), PROBES).log10_p


def test_bits_chosen_afterwards(activations: Tensor, figure: Callable[[str], None]) -> None:
    counts = ones(activations, normal(DIMENSION, BITS, seed=20))
    target = (2 * counts >= PROBES).double()  # whatever the model says already
    rate, claimed = success_rate(counts, target), log10_p(counts, target)
    figure(f"bits chosen afterwards: WSR {rate:.1%}, claimed p: {in_words(claimed)}")
    assert 0.70 < rate < 0.95
    assert claimed < math.log10(ALPHA)


def test_columns_chosen_afterwards(activations: Tensor, figure: Callable[[str], None]) -> None:
    offered = normal(DIMENSION, 20_000, seed=30)
    target = torch.from_numpy(np.random.default_rng(31).integers(0, 2, BITS))  # fixed beforehand
    counts = ones(activations, offered)
    order = counts.argsort()
    wanted = int(target.sum())
    chosen = torch.empty(BITS, dtype=torch.long)
    chosen[target == 1] = order[-wanted:]
    chosen[target == 0] = order[: BITS - wanted]
    rate, claimed = success_rate(counts[chosen], target), log10_p(counts[chosen], target)
    figure(f"best 50 of 20,000 columns: WSR {rate:.1%}, claimed p: {in_words(claimed)}")
    assert rate > 0.999
    assert claimed < math.log10(ALPHA)


def test_a_key_cannot_be_told_its_matrix_or_bits(tmp_path: Path) -> None:
    generate: Any = Key.generate
    key = generate("Eve", shape=SHAPE, bits=BITS)
    forged = {"matrix": normal(DIMENSION, BITS, seed=20).float(), "target": torch.ones(BITS)}
    for name, value in forged.items():
        with pytest.raises(TypeError, match=name):
            generate("Eve", shape=SHAPE, bits=BITS, **{name: value})
        with pytest.raises(AttributeError):
            setattr(key, name, value)
    key.save(tmp_path / "eve.key")
    content = json.loads((tmp_path / "eve.key").read_bytes())
    (tmp_path / "eve.key").write_text(json.dumps(content | {"target": [1] * BITS}) + "\n")
    with pytest.raises(KeyFileError):
        Key.load(tmp_path / "eve.key")


def test_a_stolen_seed_proves_nothing_under_another_name(
    activations: Tensor, figure: Callable[[str], None]
) -> None:
    seed = bytes(range(32))
    owner = Key.generate("ACME", shape=SHAPE, bits=BITS, seed=seed)
    marked = activations + owner.matrix.double() @ (2 * owner.target.double() - 1)
    counts = ones(marked, owner.matrix)
    assert success_rate(counts, owner.target) == 1.0
    thieves = {
        "another owner": Key.generate("Eve", shape=SHAPE, bits=BITS, seed=seed),
        "another shape": Key.generate("ACME", shape=(DIMENSION,), bits=BITS, seed=seed),
        "another length": Key.generate("ACME", shape=SHAPE, bits=BITS + 1, seed=seed),
    }
    for change, key in thieves.items():
        counts = ones(marked, key.matrix)
        rate, p = success_rate(counts, key.target), 10 ** log10_p(counts, key.target)
        figure(f"the owner's seed with {change}: WSR {rate:.1%}, p = {p:.2f}")
        assert p > 0.01


def redrawn(by: str, number: int) -> Key:
    if by == "seed":
        return Key.generate("Eve", shape=SHAPE, bits=BITS, seed=number.to_bytes(32, "big"))
    return Key.generate(f"Eve {number}", shape=SHAPE, bits=BITS, seed=bytes(32))


@pytest.mark.parametrize("by", ["seed", "name"])
def test_redrawn_keys(activations: Tensor, figure: Callable[[str], None], by: str) -> None:
    keys = [redrawn(by, number) for number in range(TRIES)]
    counts = [ones(activations, key.matrix) for key in keys]
    results = [log10_p(n, key.target) for n, key in zip(counts, keys, strict=True)]
    rates = [success_rate(n, key.target) for n, key in zip(counts, keys, strict=True)]
    best = min(results)
    corrected = correct(best, TRIES)
    figure(
        f"best of {TRIES} keys, re-drawn by {by}: WSR {max(rates):.1%}, p = {10**best:.4f}, "
        f"times {TRIES}: {10**corrected:.2f}"
    )
    # The exact test foresees how many redrawn keys reach any level (three standard deviations).
    for level in (0.5, 0.1, 0.02):
        share = np.mean(np.array(results) <= math.log10(level))
        assert abs(share - level) < 3 * math.sqrt(level * (1 - level) / TRIES)
    assert max(rates) < 0.70
    assert corrected > math.log10(0.01)


def test_what_undeclared_redraws_can_reach(figure: Callable[[str], None]) -> None:
    needed = round(1 / ALPHA, -5)
    figure(f"keys to draw for one with p <= 3e-7: about {needed:,.0f}")
    price = 80 * math.log10(2)  # what 2^80 draws, more than anybody can make, add to log10 p
    enough = math.ceil(80 - math.log2(ALPHA))
    figure(f"bits, all correct, that withstand 2^80 draws: {enough}")
    perfect = {k: p_value([PROBES] * k, [1] * k, PROBES).log10_p for k in (enough - 1, enough)}
    assert perfect[enough] + price <= math.log10(ALPHA) < perfect[enough - 1] + price
