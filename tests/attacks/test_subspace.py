"""The adaptive attack: it finds a planted subspace, and removes the mark that lies in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.luck import Margin
from sigil import attacks
from sigil.data import Dataset
from sigil.errors import AttackError
from sigil.federation.observers import Step
from sigil.federation.recording import GradientRecorder, Recording
from sigil.keys.key import Key

SHAPE = (16, 2, 2)


def record(folder: Path, rounds: dict[int, Tensor], shape: tuple[int, ...] = SHAPE) -> Recording:
    recorder = GradientRecorder(folder, shape, clients=[0])
    for number, gradients in rounds.items():
        for step, batch in enumerate(gradients.split(32), start=1):
            labels = torch.zeros(len(batch), dtype=torch.long)
            recorder.on_gradient_received(Step(number, 0, step), batch.view(-1, *shape), labels)
        recorder.on_round_end(number)
    recorder.close()
    return Recording(folder)


@pytest.fixture(scope="module")
def recording(marked: Any, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Early gradients hold the mark's directions and the task's, late ones the task's; all are tiny."""
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    task = torch.linalg.qr(normal(64, 6))[0]
    mark = torch.linalg.qr(marked.key.matrix)[0]
    early = normal(256, 6) @ task.mT * 2 + (1 + normal(256, 16)) @ mark.mT + 0.05 * normal(256, 64)
    late = normal(256, 6) @ task.mT * 2 + 0.05 * normal(256, 64)
    folder = tmp_path_factory.mktemp("recording")
    return record(folder, {1: 1e-4 * early, 2: 1e-4 * late, 3: 1e-4 * late})


def test_it_finds_a_planted_subspace(marked: Any, recording: Recording, margin: Margin) -> None:
    found = attacks.estimate(
        recording, early_rounds=[1], late_rounds=[2, 3], main_components=6, components=16
    )
    # The six task directions take 6/64 of the mark's span with them.
    margin("overlap", attacks.overlap(found.directions, marked.key), above=0.85)
    margin("overlap of the task", attacks.overlap(found.main, marked.key), below=0.3)
    assert float((found.main.mT @ found.directions).abs().max()) < 1e-5
    assert (found.early_rows, found.late_rows) == (256, 512)
    margin("main share", found.main_share, above=0.2, below=0.8)
    margin("residual share", found.residual_share, above=0.9)
    assert found.residual_share <= 1.0
    assert float(found.variances.sum()) < 1e-5
    assert float(found.weights().sum()) == pytest.approx(1)
    assert torch.equal(found.weights(normalise=False), found.variances)
    blind = attacks.estimate(recording, early_rounds=[2], late_rounds=[3], main_components=6, components=16)
    margin("overlap without the mark", attacks.overlap(blind.directions, marked.key), below=0.5)


def test_it_removes_the_mark_where_plain_fine_tuning_does_not(
    marked: Any, digits: Dataset, recording: Recording, margin: Margin
) -> None:
    options: dict[str, Any] = {
        "early_rounds": [1],
        "late_rounds": [2],
        "main_components": 6,
        "components": 16,
        "epochs": 25,
        "lr": 3e-3,
        "batch_size": 48,
    }

    images = torch.from_numpy(digits.train.images.copy()).float() / 255
    images = (images - digits.mean[0]) / digits.std[0]

    def attacked(**changes: Any) -> tuple[float, float]:
        """The success rate, and how far images are pushed towards the bits."""
        halves, _ = attacks.subspace(marked.halves, recording, digits, **options, **changes)
        with torch.no_grad():
            projection = halves[0].eval()(images).flatten(1) @ marked.key.matrix
        return marked.wsr(halves), float((projection * (2 * marked.key.target - 1)).mean())

    (full, left), (none, pushed), (raw, _) = (
        attacked(gamma=30.0), attacked(gamma=0.0), attacked(gamma=30.0, normalise=False)
    )  # fmt: skip
    margin("WSR after fine-tuning", none, above=0.85)
    margin("WSR, weights not normalised", raw, above=0.85)
    # A projection that is almost zero may still have the sign of its bit: with some keys few bits go.
    margin("push left", left / pushed, below=0.6)
    margin("WSR lost", none - full, above=0.03)


def test_overlap_is_1_for_the_key_itself_and_small_by_chance() -> None:
    key = Key.generate("ACME", shape=(400,), bits=10, seed=bytes(32))
    assert attacks.overlap(key.matrix @ torch.triu(torch.ones(10, 10)), key) == pytest.approx(1, abs=1e-4)
    chance = torch.randn(400, 20, generator=torch.Generator().manual_seed(0))
    assert attacks.overlap(chance, key) == pytest.approx(20 / 400, abs=0.03)
    with pytest.raises(AttackError, match="400"):
        attacks.overlap(torch.ones(30, 2), key)


def test_without_main_components_late_rounds_are_not_looked_at(recording: Recording) -> None:
    options: dict[str, Any] = {"early_rounds": [1], "unit": "window", "main_components": 0, "components": 1}
    alone = attacks.estimate(recording, **options)
    given = attacks.estimate(recording, late_rounds=[99], **options)
    assert torch.equal(alone.directions, given.directions)
    assert (alone.early_rows, alone.late_rows, alone.main.shape) == (1, 0, (64, 0))
    with pytest.raises(AttackError, match="no late round"):
        attacks.estimate(recording, early_rounds=[1])


def pushed(folder: Path, push: float, count: int) -> tuple[Recording, dict[str, Any]]:
    """Noise with a common push along the first axis, and how to estimate one direction of it."""
    rows = torch.randn(count, 64, generator=torch.Generator().manual_seed(0))
    rows[:, 0] += push
    options = {"early_rounds": [1], "late_rounds": [2], "main_components": 0, "components": 1}
    return record(folder, {1: rows, 2: rows}), options


def test_centring_takes_the_common_push_away(tmp_path: Path) -> None:
    made, options = pushed(tmp_path, 5.0, 128)
    assert abs(float(attacks.estimate(made, **options).directions[0])) > 0.95
    assert abs(float(attacks.estimate(made, centre=True, **options).directions[0])) < 0.5


def test_averages_over_batches_show_a_push_that_samples_hide(tmp_path: Path) -> None:
    made, options = pushed(tmp_path, 0.4, 1024)
    by_sample = attacks.estimate(made, **options)
    by_batch = attacks.estimate(made, unit="batch", **options)
    assert (by_sample.early_rows, by_batch.early_rows) == (1024, 32)
    assert abs(float(by_sample.directions[0])) < 0.5 < 0.75 < abs(float(by_batch.directions[0]))


def test_the_mean_over_a_window_is_one_direction_that_no_outlier_turns(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = 0.1 * torch.randn(1024, 64, generator=generator)
    rows[:, 0] += 0.3
    # Two batches that cancel: more energy than the common push, and no mean.
    rows[:32, 1] += 9.0
    rows[32:64, 1] -= 9.0
    made = record(tmp_path, {1: rows, 2: rows})
    options: dict[str, Any] = {"early_rounds": [1], "late_rounds": [2], "main_components": 0}
    by_window = attacks.estimate(made, unit="window", **options)
    assert by_window.directions.shape == (64, 1)
    assert abs(float(by_window.directions[0])) > 0.99
    assert by_window.residual_share == pytest.approx(1)
    assert abs(float(attacks.estimate(made, unit="batch", **options).directions[1, 0])) > 0.9


def test_a_window_may_be_shorter_than_a_round(tmp_path: Path) -> None:
    first, later = torch.zeros(96, 64), torch.zeros(160, 64)
    first[:, 3], later[:, 5] = 1.0, 9.0
    made = record(tmp_path, {1: torch.cat([first, later]), 2: later})
    options: dict[str, Any] = {
        "early_rounds": [1, 2],
        "late_rounds": [2],
        "main_components": 0,
        "components": 1,
    }
    found = attacks.estimate(made, early_steps=3, **options)
    assert found.early_rows == 96
    assert abs(float(found.directions[3])) == pytest.approx(1)
    assert abs(float(attacks.estimate(made, **options).directions[5])) > 0.99


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"early_rounds": [9]}, "holds rounds 1-3"),
        ({"late_rounds": []}, "no late round"),
        ({"components": 0}, "components"),
        ({"main_components": -1}, "main_components"),
        ({"main_components": 64}, "64 dimensions"),
        ({"gamma": -1.0}, "gamma"),
        ({"gamma": float("nan")}, "gamma"),
        ({"optimizer": "lion"}, "lion"),
        ({"cut": "pool1"}, "recording"),
        ({"unit": "epoch"}, "epoch"),
        ({"early_steps": 0}, "early_steps"),
    ],
)
def test_bad_input(
    marked: Any, digits: Dataset, recording: Recording, options: dict[str, Any], word: str
) -> None:
    given: dict[str, Any] = {"early_rounds": [1], "late_rounds": [2], "main_components": 4, "epochs": 1}
    with pytest.raises(AttackError, match=word):
        attacks.subspace(marked.halves, recording, digits, **given | options)
