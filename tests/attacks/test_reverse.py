"""Reversal: the mean of recorded gradients gives the direction, and activations are pushed past zero."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.luck import Margin
from sigil import attacks
from sigil.attacks.halves import open_at_cut
from sigil.attacks.training import mean_activation
from sigil.data import Dataset
from sigil.errors import AttackError
from sigil.federation.observers import Step
from sigil.federation.recording import GradientRecorder, Recording


@pytest.fixture(scope="module")
def recording(marked: Any, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Gradients that agree about the mark, M(½ − b), and about nothing else; round 2 has none of it."""
    folder = tmp_path_factory.mktemp("recording")
    mark = marked.key.matrix @ (0.5 - marked.key.target)
    noise = torch.randn(512, 64, generator=torch.Generator().manual_seed(0))
    recorder = GradientRecorder(folder, (16, 2, 2), clients=[0])
    labels = torch.zeros(512, dtype=torch.long)
    for number, gradients in ((1, mark / mark.norm() + 0.3 * noise), (2, noise)):
        recorder.on_gradient_received(Step(number, 0, 1), 1e-5 * gradients.view(-1, 16, 2, 2), labels)
        recorder.on_round_end(number)
    recorder.close()
    return Recording(folder)


def tuning(**changes: Any) -> attacks.Tuning:
    return attacks.Tuning(**{"lr": 3e-3, "epochs": 40, "batch_size": 48} | changes)


def test_it_finds_the_marks_direction(
    marked: Any, digits: Dataset, recording: Recording, margin: Margin
) -> None:
    _, found = attacks.reverse(
        marked.halves, recording, digits, rounds=[1], tuning=tuning(epochs=None, steps=1)
    )
    mark = marked.key.matrix @ (0.5 - marked.key.target)
    margin("cosine", float(torch.nn.functional.cosine_similarity(found[:, 0], mark, dim=0)), above=0.95)
    margin("overlap", 16 * attacks.overlap(found, marked.key), above=0.9)
    _, blind = attacks.reverse(
        marked.halves, recording, digits, rounds=[2], tuning=tuning(epochs=None, steps=1)
    )
    margin("overlap without the mark", 16 * attacks.overlap(blind, marked.key), below=0.6)


def test_it_pushes_to_zero_or_past_it_and_the_bits_go(
    marked: Any, digits: Dataset, recording: Recording, margin: Margin
) -> None:
    def attacked(reversal: float, gamma: float = 10.0) -> tuple[float, float]:
        made, direction = attacks.reverse(
            marked.halves, recording, digits, reversal=reversal, gamma=gamma, rounds=[1], tuning=tuning()
        )
        return marked.wsr(made), along(made, direction)

    def along(model: Any, direction: Tensor) -> float:
        mean = mean_activation(open_at_cut(model, digits), digits, tuning())
        return float(mean.flatten() @ direction[:, 0] / direction.norm())

    (tuned, far), (averaged, zero), (reversed_, past) = attacked(1.0, 0.0), attacked(0.0), attacked(1.0)
    assert far < 0
    margin("left along the direction", abs(zero / far), below=0.3)
    margin("reversed along the direction", -past / far, above=0.25)
    margin("WSR before", marked.wsr(marked.halves), above=0.9)
    margin("WSR tuned", tuned, above=0.85)
    margin("WSR lost by averaging", tuned - averaged, above=0.15)
    margin("WSR lost by reversal", tuned - reversed_, above=0.3)


def test_the_model_given_stays_and_an_interruption_changes_nothing(
    marked: Any, digits: Dataset, recording: Recording, tmp_path: Path
) -> None:
    weights = {name: value.clone() for name, value in marked.whole.state_dict().items()}

    def stop(done: int, total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    place = tmp_path / "state"
    whole, _ = attacks.reverse(marked.whole, recording, digits, cut="pool2", tuning=tuning(epochs=4))
    with pytest.raises(KeyboardInterrupt):
        attacks.reverse(
            marked.whole,
            recording,
            digits,
            cut="pool2",
            tuning=tuning(epochs=4, checkpoint=place, progress=stop),
        )
    assert place.exists()
    steps: list[int] = []
    resumed, _ = attacks.reverse(
        marked.whole,
        recording,
        digits,
        cut="pool2",
        tuning=tuning(epochs=4, checkpoint=place, progress=lambda done, total: steps.append(done)),
    )
    assert steps == [5, 6, 7, 8]
    assert not place.exists()
    assert all(torch.equal(value, resumed.state_dict()[name]) for name, value in whole.state_dict().items())
    assert all(torch.equal(value, weights[name]) for name, value in marked.whole.state_dict().items())


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"reversal": -0.1}, "reversal"),
        ({"reversal": float("inf")}, "reversal"),
        ({"gamma": float("nan")}, "gamma"),
        ({"rounds": [9]}, "rounds 1-2"),
        ({"rounds": []}, "no averaged round"),
        ({"cut": "pool1"}, "recording"),
    ],
)
def test_bad_input(
    marked: Any, digits: Dataset, recording: Recording, options: dict[str, Any], word: str
) -> None:
    with pytest.raises(AttackError, match=word):
        attacks.reverse(marked.whole, recording, digits, **{"cut": "pool2"} | options)


def test_gradients_that_cancel_give_no_direction(marked: Any, digits: Dataset, tmp_path: Path) -> None:
    recorder = GradientRecorder(tmp_path, (16, 2, 2), clients=[0])
    ones = torch.ones(1, 16, 2, 2)
    recorder.on_gradient_received(Step(1, 0, 1), torch.cat([ones, -ones]), torch.zeros(2, dtype=torch.long))
    recorder.on_round_end(1)
    recorder.close()
    with pytest.raises(AttackError, match="direction"):
        attacks.reverse(marked.halves, Recording(tmp_path), digits)
