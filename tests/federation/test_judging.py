"""Which updates may be averaged: honest ones of every size, and no impossible one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sigil.federation.judging import RELATIVE, Fault, Update, UpdateJudge
from sigil.federation.settings import make
from sigil.federation.trainer import RoundStart

LR, STEPS = 0.1, 10


@pytest.fixture
def halves() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), nn.Linear(4, 2)


def start_of(halves: tuple[nn.Module, nn.Module]) -> RoundStart:
    return RoundStart(1, LR, halves[0].state_dict(), halves[1].state_dict())


def judge_of(halves: tuple[nn.Module, nn.Module], **optimizer: Any) -> UpdateJudge:
    return UpdateJudge(*halves, make({"optimizer": optimizer}))


def moved(state: dict[str, torch.Tensor], by: float) -> dict[str, torch.Tensor]:
    return {n: v + by if v.is_floating_point() else v + STEPS for n, v in state.items()}


def update(start: RoundStart, by: float = 0.01, *, steps: int = STEPS, server: float = 0.01) -> Update:
    return Update(moved(start.client, by), moved(start.server, server), steps)


def test_honest_updates_of_different_sizes_pass(halves: Any) -> None:
    start = start_of(halves)
    updates = {
        0: update(start),
        1: update(start, 0.02),
        2: update(start, 0.005),
        3: update(start, 0.3, server=0.3, steps=40 * STEPS),  # a client with forty times the data
        4: update(start, 0.004, steps=1),
        5: Update(start.client, start.server, STEPS),  # nothing moved
    }
    assert judge_of(halves).findings(start, updates) == {}


@pytest.mark.parametrize("half", ["client", "server"])
def test_a_change_far_beyond_the_median_stands_out(halves: Any, half: str) -> None:
    start = start_of(halves)
    far = {"by": 0.01, "server": 0.01} | {"by" if half == "client" else "server": 0.011 * RELATIVE}
    updates = {client: update(start) for client in range(4)} | {4: update(start, **far)}
    (found,) = judge_of(halves).findings(start, updates).items()
    assert found[0] == 4
    assert found[1].fault is Fault.NORM
    assert half in found[1].sentence


def test_statistics_far_beyond_the_median_stand_out(halves: Any) -> None:
    start = start_of(halves)
    bad = update(start)
    bad.client["1.running_mean"] += 1e9
    findings = judge_of(halves).findings(start, {0: update(start), 1: bad, 2: update(start)})
    assert {client: finding.fault for client, finding in findings.items()} == {1: Fault.NORM}


def test_of_two_clients_the_smaller_change_accuses_nobody(halves: Any) -> None:
    start = start_of(halves)
    updates = {0: update(start), 1: Update(start.client, start.server, STEPS)}
    assert judge_of(halves).findings(start, updates) == {}
    updates[1] = update(start, 1e6)
    assert judge_of(halves).findings(start, updates)[1].fault is Fault.RATE


def test_half_of_the_clients_cannot_lift_the_median(halves: Any) -> None:
    start = start_of(halves)
    updates = {client: update(start, 0.01 if client < 2 else 1.0) for client in range(4)}
    assert set(judge_of(halves).findings(start, updates)) == {2, 3}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_found(halves: Any, value: float) -> None:
    start = start_of(halves)
    bad = update(start)
    bad.server["weight"][0, 0] = value
    findings = judge_of(halves).findings(start, {0: bad, 1: update(start), 2: update(start)})
    assert {client: finding.fault for client, finding in findings.items()} == {0: Fault.VALUES}


def test_a_negative_variance_is_found_and_a_zero_is_honest(halves: Any) -> None:
    start = start_of(halves)
    dead, bad = update(start), update(start)
    dead.client["1.running_var"][0] = 0.0
    bad.client["1.running_var"][0] = -1e-6
    findings = judge_of(halves).findings(start, {0: dead, 1: bad, 2: update(start)})
    assert {client: finding.fault for client, finding in findings.items()} == {1: Fault.VARIANCE}


def test_numbers_too_far_apart_for_float32_are_found(halves: Any) -> None:
    start = start_of(halves)
    bad = update(start)
    bad.client["0.weight"].fill_(3e38)
    start.client["0.weight"].fill_(-3e38)
    assert judge_of(halves).findings(start, {0: bad})[0].fault is Fault.RATE


def test_adam_moves_no_weight_by_more_than_a_few_learning_rates(halves: Any) -> None:
    start = start_of(halves)
    judge = judge_of(halves, name="adam")
    assert judge.findings(start, {0: update(start, LR * STEPS, server=LR * STEPS)}) == {}
    assert judge.findings(start, {0: update(start, 20 * LR * STEPS)})[0].fault is Fault.RATE
