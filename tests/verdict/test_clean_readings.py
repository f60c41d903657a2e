"""Clean models' p-values on noise and on real inputs hold: `benchmarks/readings.py` in small."""

from __future__ import annotations

import math

import numpy as np
import pytest

import readings
from harness.luck import Margin
from sigil import data, models
from sigil.keys.key import Key
from sigil.verdict.verification import read_mark


def test_clean_models_p_values_are_those_of_the_null(margin: Margin) -> None:
    digits = data.load("digits", train_limit=600)
    model = readings.clean_model(digits, name="resnet18", cut="layer3", seed=0, epochs=2)
    shape = models.activation_shape(model, digits.shape)
    found = list(readings.draws(model, digits, shape, range(300), aligned=False))
    for kind in ("noise", "inputs"):
        row = readings.judge([one for one in found if one["kind"] == kind])
        assert row["draws"] == 300
        for test in ("valid_pvalue", "uniform_pvalue"):
            margin(f"log10 p, {kind}, {test}", math.log10(row[test]), above=-3)


def test_a_biased_reading_would_be_noticed() -> None:
    chance = np.random.default_rng(0)
    found = []
    for _ in range(300):
        target = chance.integers(0, 2, 32)
        ones = np.where(chance.random(32) < 0.6, target, 1 - target) * 256
        found.append(readings.p_values(ones, target, 256, chance))
    row = readings.judge(found)
    assert row["valid_pvalue"] < 1e-6
    assert row["uniform_pvalue"] < 1e-6


def test_the_benchmark_reads_as_verification_does() -> None:
    digits = data.load("digits")
    model, _ = models.split(models.build("resnet18", width=8, channels=1, input_size=8, seed=0), "layer3")
    model.eval()
    _, first = list(readings.draws(model, digits, (32, 2, 2), range(1), aligned=False))
    key = Key.generate("Nobody", shape=(32, 2, 2), bits=readings.BITS, seed=bytes(32))
    inputs = data.Inputs(digits.test.images, normalisation=(digits.mean, digits.std))
    _, read = read_mark(model, key, inputs, input_shape=(1, 8, 8))
    assert first["p"] == pytest.approx(10**read.log10_p_before, rel=1e-6)
