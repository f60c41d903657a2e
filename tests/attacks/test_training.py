"""The loop behind the attacks that train: length, order, and going on after an interruption."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sigil import attacks
from sigil.attacks.training import Tuning, share
from sigil.data import Dataset
from sigil.errors import AttackError
from sigil.federation.precision import choose


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
    marked: Any, digits: Dataset, tmp_path: Path, optimizer: Any
) -> None:
    how = Tuning(0.01, epochs=3, optimizer=optimizer, warmup=0.2, decay=True, logits=1.0, averaged=0.5)
    checkpoint = tmp_path / "attack"

    def stop(done: int, total: int) -> None:
        if done == 5:
            raise Stopped

    def run(**options: Any) -> torch.nn.Module:
        return attacks.finetune(marked.whole, digits, tuning=how, **options)

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
    with pytest.raises(AttackError, match="is not a directory"):
        attacks.finetune(marked.whole, digits, steps=1, checkpoint=tmp_path / "missing" / "attack")


def test_a_share_is_part_of_the_training_images_only(digits: Dataset) -> None:
    own = share(digits, np.array([3, 5, 8]))
    assert np.array_equal(own.train.images, digits.train.images[[3, 5, 8]])
    assert np.array_equal(own.train.labels, digits.train.labels[[3, 5, 8]])
    assert own.test is digits.test


def test_the_rate_falls_as_a_half_cosine() -> None:
    plan = Tuning(0.1, steps=10, decay=True)
    rates = [plan.rate(done, 10) for done in range(10)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[5] == pytest.approx(0.05)
    assert rates == sorted(rates, reverse=True)
    assert plan.rate(10, 10) == pytest.approx(0)


def test_the_rate_rises_before_it_falls() -> None:
    plan = Tuning(0.1, steps=100, decay=True, warmup=0.1)
    rates = [plan.rate(done, 100) for done in range(100)]
    assert rates[:11] == sorted(rates[:11])
    assert rates[10] == pytest.approx(0.1)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert plan.rate(100, 100) == pytest.approx(0)


def test_a_teacher_that_is_answered_exactly_teaches_nothing(marked: Any, digits: Dataset) -> None:
    # In evaluation mode, as norms are frozen, the copy is its own teacher: both losses begin at zero.
    how = Tuning(0.1, steps=1, optimizer="sgd", norms="frozen", precision=choose("cpu", "float32"))
    before = dict(marked.whole.named_parameters())
    for taught in (how.changed(labels=0.0, logits=1.0), how.changed(labels=0.0, features=1.0)):
        still = attacks.finetune(marked.whole, digits, tuning=taught)
        for name, value in still.named_parameters():  # but for the decay of weights, 5e-5 of them
            torch.testing.assert_close(value, before[name], rtol=1e-4, atol=1e-6)
        lively = attacks.finetune(marked.whole, digits, tuning=taught, norms="trained")
        moved = [
            float((value - before[name]).detach().abs().max()) for name, value in lively.named_parameters()
        ]
        assert max(moved) > 1e-3


def test_the_mean_of_the_last_steps(marked: Any, digits: Dataset) -> None:
    how = Tuning(0.01, steps=4, optimizer="sgd")
    after_3, after_4 = (attacks.finetune(marked.whole, digits, tuning=how, steps=n) for n in (3, 4))
    mean = attacks.finetune(marked.whole, digits, tuning=how, averaged=0.5).state_dict()
    for (name, third), fourth in zip(
        after_3.state_dict().items(), after_4.state_dict().values(), strict=True
    ):
        expected = (third + fourth) / 2 if third.is_floating_point() else fourth
        torch.testing.assert_close(mean[name], expected)


def test_norms_stay_or_are_measured_again(marked: Any, digits: Dataset) -> None:
    name = "stage1.1.running_mean"
    before = marked.whole.state_dict()[name]
    precision = choose("cpu", "float32")
    frozen, trained, measured = (
        attacks.finetune(
            marked.whole, replace(digits, augment="none"), steps=1, lr=1e-9, norms=norms, precision=precision
        )
        for norms in ("frozen", "trained", "re-estimated")
    )
    assert torch.equal(frozen.state_dict()[name], before)
    assert not torch.equal(trained.state_dict()[name], before)
    # The first convolution has one mean of its outputs over all images, whatever the batches.
    images = (torch.from_numpy(digits.train.images).float() / 255 - digits.mean[0]) / digits.std[0]
    first = marked.whole.get_submodule("stage1.0")
    with torch.no_grad():
        expected = first(images.view(-1, 1, 8, 8)).mean((0, 2, 3))
    torch.testing.assert_close(measured.state_dict()[name], expected, rtol=1e-3, atol=1e-3)
    assert all(
        layer.momentum == 0.1 for layer in measured.modules() if isinstance(layer, torch.nn.BatchNorm2d)
    )


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"steps": 1, "epochs": 1}, "not both"),
        ({"steps": 0}, "steps"),
        ({"epochs": -1}, "epochs"),
        ({"steps": 1, "lr": 0.0}, "learning rate"),
        ({"steps": 1, "lr": float("nan")}, "learning rate"),
        ({"steps": 1, "batch_size": 1}, "batch_size"),
        ({"steps": 1, "warmup": 1.5}, "warm-up"),
        ({"steps": 1, "averaged": -0.5}, "averaged"),
        ({"steps": 1, "labels": 0.0}, "labels, logits or features"),
        ({"steps": 1, "features": -1.0}, "features"),
        ({"steps": 1, "temperature": 0.0}, "temperature"),
        ({"steps": 1, "norms": "thawed"}, "thawed"),
        ({"steps": 30, "lr": 1e30}, "lower the learning rate"),
    ],
)
def test_bad_plans(marked: Any, digits: Dataset, options: dict[str, Any], word: str) -> None:
    with pytest.raises(AttackError, match=word):
        attacks.finetune(marked.whole, digits, **options)
