"""The loop behind the attacks that train: length, order, and going on after an interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sigil import attacks
from sigil.attacks.training import Plan, share
from sigil.data import Dataset
from sigil.errors import AttackError


class Stopped(Exception):
    """Somebody pulled the plug."""


def equal(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    return all(torch.equal(value, b.state_dict()[name]) for name, value in a.state_dict().items())


def test_steps_and_epochs_say_the_same(marked: Any, digits: Dataset) -> None:
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))

    # 96 images in batches of 32: three steps an epoch.
    steps = attacks.finetune(marked.whole, digits, steps=6, batch_size=32, progress=progress)
    epochs = attacks.finetune(marked.whole, digits, epochs=2, batch_size=32)
    assert equal(steps, epochs)
    assert seen == [(n, 6) for n in range(1, 7)]
    assert not equal(steps, attacks.finetune(marked.whole, digits, steps=6, batch_size=32, seed=1))
    assert not equal(steps, attacks.finetune(marked.whole, digits, steps=5, batch_size=32))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_an_interrupted_attack_ends_as_if_it_had_not_been(
    marked: Any, digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: Any
) -> None:
    import sys

    # finetune itself offers SGD only; both optimizers have a state to keep.
    module = sys.modules["sigil.attacks.finetune"]
    monkeypatch.setattr(module, "Plan", lambda lr, **rest: Plan(lr, optimizer=optimizer, **rest))
    checkpoint = tmp_path / "attack"

    def stop(done: int, total: int) -> None:
        if done == 5:
            raise Stopped

    def run(**options: Any) -> torch.nn.Module:
        return attacks.finetune(marked.whole, digits, epochs=3, batch_size=32, lr=0.01, **options)

    with pytest.raises(Stopped):
        run(progress=stop, checkpoint=checkpoint)
    assert checkpoint.exists()
    seen: list[int] = []
    resumed = run(progress=lambda done, total: seen.append(done), checkpoint=checkpoint)
    assert seen == [4, 5, 6, 7, 8, 9]
    assert equal(resumed, run())
    assert list(tmp_path.iterdir()) == []


def test_the_checkpoint_of_another_attack_is_not_gone_on_from(
    marked: Any, digits: Dataset, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "attack"

    def stop(done: int, total: int) -> None:
        if done == 4:
            raise Stopped

    for lr in (0.01, 0.02):
        with pytest.raises(Stopped):
            attacks.finetune(
                marked.whole, digits, epochs=2, lr=lr, batch_size=32, progress=stop, checkpoint=checkpoint
            )
    seen: list[int] = []
    attacks.finetune(
        marked.whole,
        digits,
        epochs=2,
        lr=0.01,
        batch_size=32,
        progress=lambda done, total: seen.append(done),
        checkpoint=checkpoint,
    )
    assert seen[0] == 1
    checkpoint.write_bytes(b"damaged")
    attacks.finetune(marked.whole, digits, steps=1, checkpoint=checkpoint)
    with pytest.raises(AttackError, match="no directory"):
        attacks.finetune(marked.whole, digits, steps=1, checkpoint=tmp_path / "missing" / "attack")


def test_a_share_is_part_of_the_training_images_only(digits: Dataset) -> None:
    own = share(digits, np.array([3, 5, 8]))
    assert np.array_equal(own.train.images, digits.train.images[[3, 5, 8]])
    assert np.array_equal(own.train.labels, digits.train.labels[[3, 5, 8]])
    assert own.test is digits.test


def test_the_rate_falls_as_a_half_cosine() -> None:
    plan = Plan(0.1, steps=10, decay=True)
    rates = [plan.rate(done, 10) for done in range(10)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[5] == pytest.approx(0.05)
    assert rates == sorted(rates, reverse=True)
    assert plan.rate(10, 10) == pytest.approx(0)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"steps": 1, "epochs": 1}, "not both"),
        ({"steps": 0}, "steps"),
        ({"epochs": -1}, "epochs"),
        ({"steps": 1, "lr": 0.0}, "learning rate"),
        ({"steps": 1, "lr": float("nan")}, "learning rate"),
        ({"steps": 1, "batch_size": 1}, "batch_size"),
        ({"steps": 30, "lr": 1e30}, "lower the learning rate"),
    ],
)
def test_bad_plans(marked: Any, digits: Dataset, options: dict[str, Any], word: str) -> None:
    with pytest.raises(AttackError, match=word):
        attacks.finetune(marked.whole, digits, **options)
