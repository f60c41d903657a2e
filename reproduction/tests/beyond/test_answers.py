"""A mark in answers: what is served is what is read, and coins without a part in a suspect prove nothing."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from sigil import models
from sigil.data import load
from sigil_reproduction.beyond import answers
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.scales import get
from sigil_reproduction.runner.store import Result

BLOCKS = ((0, 4), (4, 12))


def mark_of(features: Tensor, logits: Tensor, secret: bytes = b"") -> answers.AnswerMark:
    return answers.AnswerMark(models.build("resnet18", classes=4, width=4), features, logits, BLOCKS, secret)


def test_the_served_model_answers_with_the_mark_and_its_owner_does_not() -> None:
    data = load("digits")
    whole = models.build("resnet18", classes=10, width=8, channels=1, input_size=data.shape[1:], seed=1)
    features, logits = answers.answers(whole, data)
    mark = answers.AnswerMark(whole, features, logits, BLOCKS, b"secret")
    served = answers.answers(mark.served(0.3), data)[1]

    mean, basis = mark.basis
    white = (features.double().numpy() - mean) @ basis
    centred = mark.coins - mark.coins.mean(0)
    wanted = logits.double().numpy() + 0.3 / 12**0.5 * white @ centred.T
    assert served.double().numpy() == pytest.approx(wanted, abs=1e-4)
    assert mark.read(served)["log10_p"] < -8
    assert mark.read(logits)["log10_p"] == pytest.approx(0.0, abs=0.5)
    assert mark.read(-served) == {"log10_p": 0.0, "z": 0.0}  # no slope: it answers the opposite


def test_other_secrets_read_nothing_in_a_suspect() -> None:
    random = torch.Generator().manual_seed(0)
    features, logits, other = (torch.randn(60, size, generator=random) for size in (16, 4, 4))
    suspect = logits + 0.5 * other
    found = [mark_of(features, logits, bytes([n])).read(suspect)["log10_p"] for n in range(200)]
    # The better of two tests: p ≤ 0.05 in at most a tenth.
    assert 5 <= sum(log10_p <= -1.30103 for log10_p in found) <= 35
    assert min(found) > -5


def test_the_coins_follow_from_all_that_the_reading_rests_on() -> None:
    random = torch.Generator().manual_seed(0)
    features, logits = (torch.randn(60, size, generator=random) for size in (16, 4))
    mark = mark_of(features, logits)
    assert (mark.coins == mark_of(features, logits).coins).all()
    for change in (
        {"secret": b"1"},
        {"own": logits + 1},
        {"features": features * 2},
        {"blocks": BLOCKS[::-1]},
    ):
        assert (mark.coins != dataclasses.replace(mark, **change).coins).any(), change


def test_a_design_fails_with_two_of_three_keys_and_needs_two_to_hold() -> None:
    cells = answers.cells(get("desk"), [0])
    design = next(iter(answers.DESIGNS))

    def holds(**log10_p: dict[str, float]) -> bool | None:
        results = {}
        for cell in cells:
            suspects = [answers.OWNER, answers.SERVED]
            if cell.options["kind"] == answers.STUDENT:
                suspects.append(answers.taught_by(cell.options["images"]))
            else:
                suspects += [answers.refitted_by(500), answers.refitted_by(5_000)]
            read = log10_p.get(f"key{cell.options['key']}")
            if read is not None:
                numbers = {name: {"accuracy": 80.0, "log10_p": read, "z": 1.0} for name in suspects}
                results[cell.name, 0] = Result(cell.name, 0, cell.options, numbers)
        return answers.holds(Measured(cells, results), design)

    proven, not_proven = answers.level(design) - 1, answers.level(design) + 1
    assert holds(key0=proven, key1=not_proven) is None
    assert holds(key0=proven, key1=not_proven, key2=proven) is True
    assert holds(key0=not_proven, key1=not_proven) is False
