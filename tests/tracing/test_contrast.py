"""The statistic of a trace: against ordinary least squares, under the null, and with a planted share."""

from __future__ import annotations

import numpy as np

from sigil.tracing import contrast

BITS, CLIENTS = 64, 8


def shares(seed: int = 0) -> np.ndarray:
    order = np.random.default_rng(seed).permutation(np.arange(BITS) % CLIENTS)
    return np.asarray(order[None] == np.arange(CLIENTS)[:, None])


def rounds(seed: int = 1) -> dict[int, np.ndarray]:
    """Global models whose bits grow stronger, those of client 0 four times as fast."""
    draws = np.random.default_rng(seed)
    speed = 0.02 + 0.06 * (shares().argmax(0) == 0)
    start = 0.5 + 0.15 * draws.standard_normal(BITS)
    return {
        number: contrast.stabilised(
            np.rint(256 * np.clip(start + number * speed, 0, 1)).astype(int).tolist(), 256
        )
        for number in range(6)
    }


def test_the_t_values_are_those_of_least_squares() -> None:
    values = rounds()[3] + 0.05 * np.random.default_rng(2).standard_normal(BITS)
    basis = contrast.regressors(3, rounds())
    for own, found in zip(shares(), contrast.contrasts(values, basis, shares()), strict=True):
        design = np.column_stack([np.ones(BITS), rounds()[2], rounds()[3], rounds()[4], own])
        coefficients, *_ = np.linalg.lstsq(design, values, rcond=None)
        left = values - design @ coefficients
        variance = left @ left / (BITS - design.shape[1])
        error = np.sqrt(variance * np.linalg.inv(design.T @ design)[-1, -1])
        assert np.isclose(found, coefficients[-1] / error)


def test_drawn_sets_have_the_t_values_of_their_indicators() -> None:
    values = rounds()[3] + 0.05 * np.random.default_rng(2).standard_normal(BITS)
    basis = contrast.regressors(3, rounds())
    drawn = contrast.drawn_contrasts(values, basis, 8, 8, np.random.default_rng(7))
    order = np.argsort(np.random.default_rng(7).random((1, BITS)), axis=1)[0]
    own = np.zeros((8, BITS), dtype=np.bool_)
    for group in range(8):
        own[group, order[8 * group : 8 * group + 8]] = True
    assert np.allclose(drawn, np.sort(contrast.contrasts(values, basis, own)))


def test_a_planted_share_has_the_smallest_p() -> None:
    values = rounds()[3] + 0.05 * np.random.default_rng(2).standard_normal(BITS)
    values = values + 0.2 * shares()[5]
    basis = contrast.regressors(contrast.nearest(values, rounds()), rounds())
    p, draws = contrast.p_values(values, basis, shares(), seed=0)
    assert draws == CLIENTS * 10_000
    assert p.argmin() == 5
    assert CLIENTS * p[5] <= 1e-3
    assert (np.delete(p, 5) > 0.01).all()


def test_without_a_leak_p_is_uniform() -> None:
    found = []
    for seed in range(150):
        draws = np.random.default_rng(100 + seed)
        values = rounds()[3] + 0.05 * draws.standard_normal(BITS)
        basis = contrast.regressors(3, rounds())
        found += contrast.p_values(values, basis, shares(), seed=seed, draws=2_000)[0].tolist()
    levels = np.array([0.01, 0.1, 0.5])
    shares_below = np.array([np.mean(np.array(found) <= level) for level in levels])
    assert np.abs(shares_below - levels).max() < 0.05
    assert shares_below[0] <= 0.025


def test_a_global_model_between_two_rounds_accuses_nobody_although_clients_differ() -> None:
    known = rounds()
    between = 0.5 * known[2] + 0.5 * known[3] + 0.01 * np.random.default_rng(3).standard_normal(BITS)
    p, _ = contrast.p_values(
        between, contrast.regressors(contrast.nearest(between, known), known), shares(), seed=0
    )
    assert (CLIENTS * p).min() > 0.01
    # Without the neighbouring rounds the fast client would stand out.
    alone = {2: known[2]}
    p, _ = contrast.p_values(between, contrast.regressors(2, alone), shares(), seed=0)
    assert (CLIENTS * p).min() <= 1e-3


def test_the_global_model_itself_has_nothing_to_explain() -> None:
    basis = contrast.regressors(2, rounds())
    assert (contrast.contrasts(rounds()[2], basis, shares()) == 0).all()
    assert (contrast.p_values(rounds()[2], basis, shares(), seed=0)[0] == 1).all()
