"""The rules of proof: what p is multiplied by, and that all who print or compare a level agree about it."""

from __future__ import annotations

import doctest
import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sigil import check, inspect, models, rules, verify
from sigil.cli.key import what_proves
from sigil.data import Inputs
from sigil.errors import ConfigError
from sigil.evidence.arithmetic import recompute
from sigil.federation.federation import marked
from sigil.keys.key import Key
from sigil.rules import Price
from sigil.verdict import wording
from sigil.verdict.choices import least_cuts, price_of_key
from sigil.verdict.provability import judge_metrics
from sigil.verdict.verification import read_mark

PLAIN, STAMPED = 80, 24


@pytest.mark.parametrize(
    ("bits", "stamped", "plain"),
    [(64, 95.3, None), (128, 83.6, 96.9), (256, 74.2, 85.2), (512, 67.2, 75.4)],
)
def test_the_least_success_rate(bits: int, stamped: float, plain: float | None) -> None:
    assert round(100 * Price(STAMPED).needed_rate(bits), 1) == stamped
    rate = Price(PLAIN).needed_rate(bits)
    assert (rate == math.inf) if plain is None else (round(100 * rate, 1) == plain)


def test_the_shortest_keys() -> None:
    assert [Price(allowance).shortest_bits() for allowance in (PLAIN, STAMPED, 0)] == [104, 48, 24]
    assert [Price(allowance, cuts=64).shortest_bits() for allowance in (PLAIN, STAMPED)] == [110, 54]
    for price in (Price(PLAIN), Price(STAMPED), Price(0), Price(PLAIN, cuts=9, tries=1000)):
        least = price.shortest_bits()
        assert price.needed_rate(least) == 1.0
        assert price.needed_rate(least - 1) == math.inf


@pytest.mark.parametrize("bits", [50, 64, 104, 128, 200])
@pytest.mark.parametrize(
    "price", [Price(0), Price(24), Price(80), Price(80, cuts=9), Price(24, 64, 7)], ids=str
)
def test_the_rate_is_the_first_that_proves(bits: int, price: Price) -> None:
    """Against binomial tails in whole numbers."""
    level = Fraction(3, 10**7) / 4 / price.cuts / price.tries / 2 ** int(price.allowance_log2)
    rate = price.needed_rate(bits)
    tails = [Fraction(sum(math.comb(bits, j) for j in range(wrong + 1)), 2**bits) for wrong in range(bits)]
    proving = [wrong for wrong, tail in enumerate(tails) if tail <= level]
    assert rate == pytest.approx(1 - max(proving) / bits if proving else math.inf, rel=1e-12)


def test_more_cuts_and_a_smaller_level_need_more() -> None:
    assert Price(24).needed_rate(128) < Price(24, cuts=64).needed_rate(128)
    assert Price(24).needed_rate(128) < Price(24).needed_rate(128, alpha=1e-12)


def test_a_level_that_no_float_holds_is_compared_by_its_logarithm() -> None:
    price, bits = Price(80), 1200
    rate = price.needed_rate(bits, alpha=1e-300)
    wrong = bits - round(rate * bits)
    level = Fraction(1, 10**300) / 4 / 2**80
    ways = [sum(math.comb(bits, j) for j in range(most + 1)) for most in (wrong, wrong + 1)]
    assert Fraction(ways[0], 2**bits) <= level < Fraction(ways[1], 2**bits)


@pytest.mark.parametrize(
    "options",
    [
        {"allowance_log2": -1},
        {"allowance_log2": 257},
        {"cuts": 0},
        {"alpha": 0.0},
        {"bits": 0},
    ],
    ids=str,
)
def test_impossible_numbers_are_refused(options: dict[str, Any]) -> None:
    numbers: dict[str, Any] = {"bits": 128, "alpha": 3e-7, "allowance_log2": 24} | options
    bits, alpha = numbers.pop("bits"), numbers.pop("alpha")
    with pytest.raises(ConfigError):
        Price(**numbers).needed_rate(bits, alpha)


# All who print or compare a level agree, whatever the key states.

INPUT, SHAPE = (1, 8, 8), (64, 2, 2)


class Own(nn.Module):
    """A half of somebody's own, whose first bits are pulled to the key's."""

    def __init__(self, key: Key, marked: int, spread: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(1, 64, 3, 4, 1), nn.ReLU())
        matrix, signs = key.matrix[:, :marked].double(), 2 * key.target[:marked].double() - 1
        pull = (matrix @ torch.linalg.solve(matrix.T @ matrix, signs)).float().reshape(key.shape)
        self.register_buffer("pull", pull / spread)

    def forward(self, images: Tensor) -> Tensor:
        return self.body(images) + self.pull


@st.composite
def keys(draw: st.DrawFn) -> Key:
    stated: dict[str, Any] = {"alpha": draw(st.sampled_from([3e-7, 1e-9]))}
    if draw(st.booleans()):
        stated["input_shape"] = INPUT
    if draw(st.booleans()):
        stated["cut"] = "layer3"
    if draw(st.booleans()):
        stated["inputs_digest"] = Inputs(IMAGES).digest
    bits = draw(st.sampled_from([104, 107, 110, 111, 128]))
    return Key.generate("ACME", SHAPE, bits=bits, seed=draw(st.binary(min_size=32, max_size=32)), **stated)


IMAGES = torch.rand(256, *INPUT, generator=torch.Generator().manual_seed(0))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(keys(), st.sampled_from([1.0, 0.9, 0.6]), st.sampled_from([0.01, 0.5]))
def test_all_that_state_a_level_agree(key: Key, share: float, spread: float) -> None:
    half, alpha = Own(key, round(share * key.bits), spread), float(key.fields.alpha)
    report = verify(half, key, IMAGES)
    price = report.price
    # The rules by hand: the level, 4 tests, 2^80 keys, the places where such a half could be cut.
    # A statement that names no cut leaves as many open as the model of Sigil's with fewest: 9.
    places = 64 if key.fields.input_shape is None else 9 if key.fields.cut is None else 2
    assert price.log10 == pytest.approx(math.log10(4 * places) + 80 * math.log10(2))
    assert price.level(alpha) == pytest.approx(alpha / (4 * places * 2.0**80))

    # The same model before and after its training, and in its metrics.
    seen = inspect(half, IMAGES[:4], key=key, steps=0)
    assert seen.needed_rate == price.needed_rate(key.bits, alpha)
    assert (key.bits >= price.shortest_bits(alpha)) == (seen.problems == ())
    found = check(half, key, IMAGES)
    assert found.provable == report.owned
    assert found.readings == report.readings[: len(found.readings)]
    rows = marked(found.readings, key, half)
    for reading in found.readings:
        end = "" if reading.kind == "noise" else "_inputs"
        assert rows[f"log10_p_before{end}"] == reading.log10_p_before
        counted = reading.kind == "noise" or key.fields.inputs_digest is not None
        assert (f"log10_p{end}" in rows) == counted == reading.counts
        if counted:
            assert rows[f"log10_p{end}"] == price.corrected(reading.log10_p_before)
            needed = reading.threshold(price.level(alpha))
            assert rows.get(f"wsr_level{end}", math.inf) == needed
            assert price.proves(reading.log10_p_before, alpha) == (reading.wsr >= needed - 1e-12)
    best = "" if report.best.kind == "noise" else "_inputs"
    assert rows[f"log10_p{best}"] == report.log10_p
    assert rows.get(f"wsr_level{best}") == report.threshold

    # The record of evidence.
    assert recompute(report) is None

    # What the key alone says is never milder than for a file of Sigil's own.
    own = price_of_key(key)
    assert own.needed_rate(key.bits, alpha) == Price(80, least_cuts(key.fields)).needed_rate(key.bits, alpha)
    said = what_proves(key)
    rate = own.needed_rate(key.bits, alpha)
    assert (
        f"{own.shortest_bits(alpha)} bits" if rate > 1 else f"{math.ceil(1000 * rate) / 10:.1f} %"
    ) in said


@pytest.mark.parametrize(
    "stated", [{}, {"input_shape": INPUT}, {"input_shape": INPUT, "cut": "layer3"}], ids=str
)
@pytest.mark.parametrize("cut", ["layer3", "layer4"])
def test_a_training_asks_for_what_the_verdict_on_its_model_asks(stated: dict[str, Any], cut: str) -> None:
    """The live page forgot what a key leaves open, and the check after the training counted 64 always."""
    whole = models.build("resnet18", width=8, channels=1, input_size=8, seed=0)
    half, _ = models.split(whole, cut)
    shape = models.activation_shape(half, INPUT)
    key = Key.generate("ACME", shape, bits=64, seed=bytes(32), **stated)
    report = verify(half, key, input_shape=INPUT)
    readings = read_mark(half, key, input_shape=INPUT)
    rows = marked(readings, key, half)
    assert rows["log10_p"] == report.price.corrected(rows["log10_p_before"])
    after = judge_metrics(rows, key, "resnet18", cut)
    assert str(after) == str(check(half, key, input_shape=INPUT)) or report.experiment
    places = 64 if not stated else 1 if stated.get("cut") == cut else 9
    assert report.cuts == places
    assert f"at least {Price(80, cuts=places).shortest_bits()} bits" in str(after)


def test_a_model_without_a_cut_is_not_cut_where_a_key_without_a_cut_says() -> None:
    whole = models.build("resnet18", width=8, channels=1, input_size=8, seed=0)
    key = Key.generate("ACME", (10,), bits=5, seed=bytes(32), input_shape=INPUT)
    assert verify(whole, key).cuts == 9


def test_inspection_and_check_ask_for_the_same_length() -> None:
    """Before the training it was 104 bits, and after it 108."""
    half = nn.Sequential(nn.Conv2d(1, 64, 3, 4, 1), *(nn.ReLU() for _ in range(15)))
    for stated, least in (({"input_shape": INPUT}, 108), ({}, 110)):
        key = Key.generate("ACME", SHAPE, bits=106, seed=bytes(32), **stated)
        for text in (str(inspect(half, IMAGES[:4], key=key, steps=0)), str(check(half, key, IMAGES))):
            assert f"it takes at least {least} bits" in text
    alone = inspect(half, IMAGES[:4], bits=106, steps=0)
    assert not alone.provable
    assert "it takes at least 110 bits" in str(alone)


def test_each_rate_of_proof_says_whether_all_inputs_agree() -> None:
    """96.9, 93.8 and 97.7 % stood in different places for one key, without a word why."""
    key = Key.generate("ACME", SHAPE, bits=128, seed=bytes(32))
    half = Own(key, 100, 0.5)
    rate = Price(80, cuts=64).needed_rate(128)
    texts = [what_proves(key), str(inspect(half, IMAGES, key=key, steps=1)), str(check(half, key, IMAGES))]
    for text in texts:
        assert "98.5 % " in text  # 126 of 128 bits, rounded up
        assert wording.IF_ALL_AGREE in text
    report = verify(half, key, IMAGES)
    assert report.threshold < rate
    line = wording.rate_if_all_agree(report)
    assert line is not None
    assert line.startswith(f"{100 * report.threshold:.1f} % by this model's answers, 98.5 % if all inputs")


def test_the_examples_of_the_module_hold() -> None:
    outcome = doctest.testmod(rules)
    assert (outcome.attempted > 2, outcome.failed) == (True, 0)
