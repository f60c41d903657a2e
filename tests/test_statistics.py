"""The null distribution against brute force, big integers, the binomial and simulation."""

from __future__ import annotations

import doctest
import itertools
import math
from fractions import Fraction
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import scipy  # loads scipy.stats, which takes a second, only where it is used
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from harness.processor_time import in_units
from sigil import statistics
from sigil.errors import ShapeError, SigilError
from sigil.statistics import (
    Tail,
    correct,
    in_words,
    null_distribution,
    p_value,
    tail,
    threshold,
)

small_weights = st.lists(st.integers(-12, 12), min_size=1, max_size=9)
FIVE_SIGMA = 3e-7
# A busy machine is no reason to fail.
unhurried = settings(deadline=None)


def outcomes(weights):
    """All 2^k values of the sum of +-|w_j|, by enumeration."""
    sums = np.zeros(1, dtype=np.int64)
    for weight in weights:
        sums = np.concatenate([sums - weight, sums + weight])
    return sums


def subsets_up_to(sizes, deficit):
    """Number of subsets with sum at most deficit, in exact integers."""
    table = np.zeros(deficit + 1, dtype=object)
    table[0] = 1
    for size in sizes:
        if size <= deficit:
            table[size:] = table[size:] + table[: deficit + 1 - size]
    return sum(table.tolist())


def log10_share(count, bits):
    """log10 of count / 2^bits for integers of any length."""
    return math.log10(count) - math.log10(1 << bits)


def only_bounds():
    """Allow no exact computation, so that tail() and threshold() fall back on the bound."""
    return mock.patch.object(statistics, "_WORK_LIMIT", 0)


def suspect_table(generator, bits, probes):
    """Counts of ones of a suspect whose probes agree to a random degree."""
    offset = generator.normal(size=bits) * generator.uniform(0.0, 3.0)
    return np.sum(offset + generator.normal(size=(probes, bits)) >= 0.0, axis=0)


# --- exact values -----------------------------------------------------------------------------


@unhurried
@given(small_weights)
def test_tail_is_the_share_of_all_sign_patterns(weights):
    sums = outcomes(weights)
    for statistic in np.unique(sums).tolist():
        result = tail(weights, statistic)
        assert result.exact
        assert result.p == pytest.approx(np.mean(sums >= statistic), rel=1e-12)


def test_tail_against_all_signs_of_sixteen_bits():
    weights = 2 * np.random.default_rng(5).integers(0, 513, size=16) - 512
    sums = outcomes(weights)
    for statistic in np.quantile(sums, [0.0, 0.1, 0.5, 0.9, 0.99, 0.9999, 1.0], method="nearest"):
        expected = Fraction(int(np.sum(sums >= statistic)), 2**16)
        assert tail(weights, int(statistic)).p == pytest.approx(float(expected), rel=1e-12)


@unhurried
@given(st.data())
def test_p_value_is_the_share_of_targets_with_at_least_this_success_rate(data):
    probes = data.draw(st.integers(1, 9))
    bits = data.draw(st.integers(1, 7))
    table = data.draw(
        st.lists(
            st.lists(st.integers(0, 1), min_size=bits, max_size=bits),
            min_size=probes,
            max_size=probes,
        )
    )
    target = data.draw(st.lists(st.integers(0, 1), min_size=bits, max_size=bits))
    answers = np.array(table)
    matches = int(np.sum(answers == target))
    as_good = [np.sum(answers == other) >= matches for other in itertools.product((0, 1), repeat=bits)]
    result = p_value(answers.sum(axis=0), target, probes)
    assert result.p == pytest.approx(np.mean(as_good), rel=1e-12)


@pytest.mark.parametrize(("right", "expected"), [(50, 2.0**-50), (43, 1.049e-7), (35, 3.300e-3)])
def test_reference_values_when_all_probes_agree(right, expected):
    ones = [512] * right + [0] * (50 - right)
    assert p_value(ones, [1] * 50, 512).p == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("bits", [1, 7, 50, 400, 1000, 1001, 1500])
def test_agreeing_probes_give_the_binomial(bits):
    for right in range(bits + 1):
        expected = scipy.stats.binom.sf(right - 1, bits, 0.5)
        if expected > 1e-290 and right % max(1, bits // 40) == 0:
            assert tail([512] * bits, 512 * (2 * right - bits)).p == pytest.approx(expected, rel=1e-10)


def test_agreeing_probes_give_the_binomial_far_below_the_smallest_float():
    bits = 3000
    tails = list(itertools.accumulate(math.comb(bits, wrong) for wrong in range(bits + 1)))
    for wrong in (0, 1, 2, 10, 300, 1000, 1400, 1500, 2000):
        result = tail([2048] * bits, 2048 * (bits - 2 * wrong))
        assert result.exact
        # A difference of logarithms is a relative error of p, times log10(e).
        assert result.log10_p == pytest.approx(log10_share(tails[wrong], bits), abs=1e-12)
    perfect = tail([2048] * bits, 2048 * bits)
    assert perfect.log10_p == pytest.approx(-3000 * math.log10(2.0), rel=1e-15)
    assert perfect.p == 0.0


@pytest.mark.parametrize(
    "sizes",
    [
        [1] * 1100 + [700] * 3,
        [1] * 1300 + [2500],
        [1, 2, 4, 8, 16] * 205,
        [2, 4, 6, 8] * 260 + [1],
        np.random.default_rng(3).integers(1, 12, size=1010).tolist(),
    ],
    ids=["few large", "one large", "powers of two", "one odd", "random"],
)
def test_more_than_a_thousand_bits_agree_with_big_integers(sizes):
    total = sum(sizes)
    for deficit in sorted({1, 3, total // 50, total // 10, total // 3, total // 2, 2 * total // 3}):
        expected = log10_share(subsets_up_to(sizes, deficit), len(sizes))
        result = tail(sizes, total - 2 * deficit)
        assert result.exact
        assert result.log10_p == pytest.approx(expected, abs=1e-12)


def test_blocks_agree_with_one_table():
    sizes = np.random.default_rng(4).integers(1, 257, size=700)
    total = int(sizes.sum())
    for deficit in (total // 5, total // 3, 9 * total // 20, total // 2):
        subsets = statistics.subset_table(np.sort(sizes), np.ones(700), deficit).sum()
        with mock.patch.object(statistics, "_TABLE_BITS", 0):
            result = tail(sizes, total - 2 * deficit)
        assert result.exact
        expected = math.log10(subsets) - 700 * math.log10(2.0)
        assert result.log10_p == pytest.approx(expected, abs=1e-12)


def test_a_block_longer_than_the_window_is_folded():
    start, law = statistics.tilted_law(np.ones(1000, dtype=np.int64), 0.0, 1000, blocks=2)
    assert len(law) < 500
    expected = scipy.stats.binom.pmf(np.arange(start, start + len(law)), 1000, 0.5)
    np.testing.assert_allclose(law, expected, rtol=1e-9, atol=1e-17)


def test_monte_carlo_agrees_for_fifty_bits():
    generator = np.random.default_rng(11)
    ones = suspect_table(generator, 50, 512)
    weights = 2 * ones - 512
    draws = 200_000
    sums = (2 * generator.integers(0, 2, size=(draws, 50)) - 1) @ weights
    for level in (0.5, 0.1, 0.01, 0.001):
        statistic = int(np.quantile(sums, 1.0 - level))
        p = tail(weights, statistic).p
        deviation = math.sqrt(p * (1.0 - p) / draws)
        assert np.mean(sums >= statistic) == pytest.approx(p, abs=4.0 * deviation)


# --- properties -------------------------------------------------------------------------------


@unhurried
@given(small_weights, st.integers(1, 1000))
def test_zero_weights_signs_and_scale_do_not_matter(weights, scale):
    total = sum(abs(w) for w in weights)
    for statistic in (-total, 0, total // 2, total):
        changed = tail([0, *(-scale * w for w in weights), 0], scale * statistic)
        assert changed == tail(weights, statistic)


@unhurried
@given(st.lists(st.integers(0, 300), min_size=1, max_size=60), st.integers(-9000, 9000))
def test_a_larger_statistic_is_never_more_likely_and_the_tails_are_symmetric(weights, statistic):
    assume(abs(statistic) < sum(weights))
    here, above = tail(weights, statistic), tail(weights, statistic + 1)
    assert above.log10_p <= here.log10_p <= 0.0
    # P(>= T) + P(> -T) = 1
    assert here.p + tail(weights, 1 - statistic).p == pytest.approx(1.0, rel=1e-12)


def test_no_information_is_no_evidence():
    assert p_value([256] * 50, [1, 0] * 25, 512) == Tail(0.0, exact=True)
    assert threshold([0] * 50, probes=512, alpha=FIVE_SIGMA) == math.inf


def test_p_is_uniform_under_the_null():
    generator = np.random.default_rng(2024)
    values = []
    for _ in range(500):
        ones = suspect_table(generator, 50, 64)
        values += [p_value(ones, generator.integers(0, 2, 50), 64).p for _ in range(10)]
    # A p-value on a fine grid: Kolmogorov's distance at the 1 % level.
    assert scipy.stats.kstest(values, "uniform").statistic < 1.63 / math.sqrt(len(values))


@unhurried
@given(small_weights)
def test_p_is_never_too_small_under_the_null(weights):
    sums, times = np.unique(outcomes(weights), return_counts=True)
    values = np.array([tail(weights, int(s)).p for s in sums])
    with only_bounds():
        bounds = np.array([tail(weights, int(s)).p for s in sums])
    for level in (*values, *bounds, 0.01, 0.05, 0.3):
        for found in (values, bounds):
            assert times[found <= level].sum() / times.sum() <= level * (1 + 1e-12)


# --- the bound --------------------------------------------------------------------------------


@settings(max_examples=2 * settings.default.max_examples)
@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=80),
    st.floats(0.0, 1.0),
)
def test_the_bound_is_never_below_the_exact_value(weights, share):
    statistic = round(share * sum(weights))
    exact = tail(weights, statistic)
    with only_bounds():
        bound = tail(weights, statistic)
    assert exact.exact
    assert bound.log10_p >= exact.log10_p - 1e-12
    assert math.isfinite(bound.log10_p)


@pytest.mark.parametrize("bits", [50, 200, 1000, 3000])
def test_the_bound_is_within_a_small_factor_and_better_than_chernoff(bits):
    weights = np.random.default_rng(bits).integers(1, 65, size=bits)
    deviation = math.sqrt(float(np.sum(weights**2)))
    for sigmas in (2.0, 4.0, 5.0, 7.0):
        statistic = int(sigmas * deviation)
        if statistic > weights.sum():
            continue
        exact = tail(weights, statistic)
        with only_bounds():
            bound = tail(weights, statistic)
        assert (exact.exact, bound.exact) == (True, False)

        def log_chernoff(t, statistic=statistic):
            moment = np.sum(np.logaddexp(t * weights, -t * weights) - math.log(2.0))
            return float(moment) - t * statistic

        best = scipy.optimize.minimize_scalar(log_chernoff, bounds=(0.0, 1.0), method="bounded").fun
        assert exact.log10_p <= bound.log10_p < best / math.log(10.0)
        limit = 8.0 if bits < 1000 else 1.7 if sigmas <= 5.0 else 2.2
        assert 10 ** (bound.log10_p - exact.log10_p) < limit


def test_a_huge_problem_gets_a_bound_in_no_time():
    weights = np.arange(1, 20_001)
    result = tail(weights, int(weights.sum()) // 10)
    limit = threshold(weights, probes=20_000, alpha=FIVE_SIGMA)

    def both():
        tail(weights, int(weights.sum()) // 10)
        threshold(weights, probes=20_000, alpha=FIVE_SIGMA)

    assert in_units(both, tries=1) < 1000
    assert not result.exact
    assert -1000.0 < result.log10_p < -10.0
    assert 0.5 < limit < 0.52


# --- threshold, correction, drawing ---------------------------------------------------------------


@unhurried
@given(small_weights, st.floats(0.001, 0.999))
def test_threshold_is_the_smallest_achievable_rate_that_reaches_alpha(weights, alpha):
    sums = outcomes(weights)
    good = [s for s in np.unique(sums) if np.mean(sums >= s) <= alpha]
    expected = 0.5 + good[0] / (2 * 12 * len(weights)) if good else math.inf
    assert threshold(weights, probes=12, alpha=alpha) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("alpha", [0.6, 0.05, FIVE_SIGMA, 1e-30, 1e-300])
@pytest.mark.parametrize("bits", [120, 900, 1400])
def test_threshold_agrees_with_tail(bits, alpha):
    weights = 2 * np.random.default_rng(bits).integers(0, 65, size=bits) - 64
    rate = threshold(weights, probes=64, alpha=alpha)
    if math.log2(alpha) < -np.count_nonzero(weights):
        assert rate == math.inf
        return
    statistic = round((rate - 0.5) * 2 * 64 * bits)
    # All weights are even, and with this number of them every fourth value is reached.
    assert tail(weights, statistic).log10_p <= math.log10(alpha)
    assert tail(weights, statistic - 4).log10_p > math.log10(alpha)


@pytest.mark.parametrize("alpha", [0.05, FIVE_SIGMA, 1e-30])
def test_threshold_agrees_with_the_bound(alpha):
    weights = 2 * np.random.default_rng(1).integers(0, 65, size=300) - 64
    with only_bounds():
        rate = threshold(weights, probes=64, alpha=alpha)
        statistic = round((rate - 0.5) * 2 * 64 * 300)
        assert not tail(weights, statistic).exact
        assert tail(weights, statistic).log10_p <= math.log10(alpha)
        assert tail(weights, statistic - 4).log10_p > math.log10(alpha)
    assert rate >= threshold(weights, probes=64, alpha=alpha)


def test_threshold_of_agreeing_probes():
    assert threshold([512] * 50, probes=512, alpha=FIVE_SIGMA) == pytest.approx(43 / 50)
    assert threshold([512] * 50, probes=512, alpha=2.0**-50) == 1.0
    assert tail([512] * 50, 512 * 50).log10_p <= math.log10(2.0**-50)
    assert threshold([512] * 50, probes=512, alpha=2.0**-51) == math.inf
    assert threshold([512] * 3000, probes=512, alpha=5e-324) < 1.0


def test_correction_multiplies_by_the_tries():
    assert correct(-9.0, 1) == -9.0
    assert correct(-9.0, 250) == pytest.approx(math.log10(250e-9))
    assert correct(-3000.0, 10**6) == -2994.0
    assert correct(-2.0, 101) == 0.0


@unhurried
@given(small_weights)
def test_null_distribution_of_few_bits_is_exact(weights):
    rates, probability = null_distribution(weights, probes=12)
    sums = outcomes(weights)
    assert probability.sum() == pytest.approx(1.0)
    for rate, share in zip(rates, probability, strict=True):
        statistic = round((rate - 0.5) * 2 * 12 * len(weights))
        assert share == pytest.approx(np.mean(sums == statistic), abs=1e-15)


@pytest.mark.parametrize(
    ("bits", "probes", "exact"), [(50, 512, True), (1500, 512, True), (6000, 9000, False)]
)
def test_null_distribution_to_draw(bits, probes, exact):
    weights = 2 * np.random.default_rng(bits).integers(0, probes + 1, size=bits) - probes
    rates, probability = null_distribution(weights, probes=probes)
    assert len(rates) == len(probability) <= 2000
    assert np.all(np.diff(rates) > 0)
    assert np.all(probability >= 0)
    assert probability.sum() == pytest.approx(1.0, rel=1e-9)
    mean = float(np.dot(rates, probability))
    deviation = math.sqrt(float(np.sum(weights.astype(float) ** 2))) / (2 * probes * bits)
    assert mean == pytest.approx(0.5, abs=0.02 * deviation)
    assert math.sqrt(float(np.dot((rates - mean) ** 2, probability))) == pytest.approx(deviation, rel=0.01)
    reach = float(np.abs(weights).sum()) / (2 * probes * bits)
    assert rates[-1] == pytest.approx(0.5 + reach, abs=0.002)
    statistic = int(2 * deviation * 2 * probes * bits)
    result = tail(weights, statistic)
    assert result.exact == exact
    if exact:
        width = rates[1] - rates[0]
        beyond = [probability[rates > 0.5 + 2 * deviation + s * width].sum() for s in (1, -1)]
        assert beyond[0] <= result.p <= beyond[1]


# --- words and errors -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log10_p", "words"),
    [
        (0.0, "1 in 1"),
        (math.log10(0.75), "3 in 4"),
        (math.log10(0.5), "1 in 2"),
        (-1.0, "1 in 10"),
        (math.log10(1 / 16), "one in 16"),
        (math.log10(1 / 999.6), "one in 999"),
        (math.log10(2**-16), "one in 65,536"),
        (-6.0, "one in 1 million"),
        (math.log10(1.049e-7), "one in 9.5 million"),
        (math.log10(1 / 12.39e9), "one in 12.3 billion"),
        (math.log10(1 / 999.9e12), "one in 999 trillion"),
        (-50 * math.log10(2), "one in 1.1 quadrillion"),
        (-32.999, "one in 997 nonillion"),
        (-33.0, "one in 10^33"),
        (-300.9, "one in 10^300"),
        (-3000 * math.log10(2), "one in 10^903"),
    ],
)
def test_in_words(log10_p, words):
    assert in_words(log10_p) == words


def test_whole_numbers_survive_the_logarithm():
    for number in range(11, 3000):
        assert in_words(math.log10(1 / number)) == f"one in {number:,}"


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: p_value([1, 2], [1], 4), ShapeError, "2 counts of ones but 1 target bits"),
        (lambda: p_value([[1, 2]], [1, 0], 4), ShapeError, "shape"),
        (lambda: p_value([], [], 4), ShapeError, "shape"),
        (lambda: p_value([5, 2], [1, 0], 4), SigilError, "between 0 and the number of probes, 4"),
        (lambda: p_value([-1, 2], [1, 0], 4), SigilError, "from -1 to 2"),
        (lambda: p_value([0.5, 2], [1, 0], 4), SigilError, "whole numbers"),
        (lambda: p_value([math.nan, 2], [1, 0], 4), SigilError, "whole numbers"),
        (lambda: p_value([1, 2], [1, 2], 4), SigilError, "must be 0 or 1"),
        (lambda: p_value([1, 2], [1, -1], 4), SigilError, "must be 0 or 1"),
        (lambda: p_value([0, 0], [1, 0], 0), SigilError, "between 1 and 2^53"),
        (lambda: p_value([0, 0], [1, 0], 10**30), SigilError, "between 1 and 2^53"),
        (lambda: tail([3, 4], 8), SigilError, "larger than the sum of the weights, 7"),
        (lambda: tail([2**62, 2**62], 0), SigilError, "too large"),
        (lambda: threshold([5], probes=4, alpha=0.1), SigilError, "cannot exceed"),
        (lambda: threshold([4], probes=4, alpha=0.0), SigilError, "alpha is 0.0"),
        (lambda: threshold([4], probes=4, alpha=math.nan), SigilError, "alpha is nan"),
        (lambda: null_distribution([5], probes=4), SigilError, "cannot exceed"),
        (lambda: correct(-3.0, 0), SigilError, "number of tries is 0"),
        (lambda: correct(0.5, 2), SigilError, "at most 0"),
        (lambda: in_words(-math.inf), SigilError, "finite"),
    ],
)
def test_bad_input_is_named_in_one_sentence(call, error, words):
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert words in message
    assert message.endswith(".")
    assert "\n" not in message


def test_float_bits_and_counts_are_welcome_if_whole():
    bits = np.array([1.0, 0.0, 1.0], dtype=np.float32)
    assert p_value([4.0, 0.0, 4.0], bits, 4) == p_value([4, 0, 4], [True, False, True], 4)


# --- speed and documentation ------------------------------------------------------------------


@pytest.mark.parametrize(("bits", "probes", "units"), [(50, 512, 10), (3000, 2048, 1000)])
def test_speed_within_five_times_the_claim(bits, probes, units):
    """The claim is 10 milliseconds and a second: two of these units and two hundred."""
    generator = np.random.default_rng(0)
    ones = probes * generator.integers(0, 2, bits) // 50 * 49 + generator.integers(0, 21, bits)
    target = (2 * ones > probes) ^ (generator.random(bits) < 0.3)
    assert p_value(ones, target, probes).exact
    assert in_units(lambda: p_value(ones, target, probes), tries=1) < units


def test_figures_in_the_documentation_are_right():
    page = Path(__file__).parents[1] / "docs" / "p-value.md"
    outcome = doctest.testfile(str(page), module_relative=False)
    assert outcome.attempted >= 30
    assert outcome.failed == 0


def test_examples_in_the_docstrings_are_right():
    outcome = doctest.testmod(statistics)
    assert outcome.attempted >= 5
    assert outcome.failed == 0
