"""What all detectors share: shapes of their inputs, the client they stand by, and recordings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sigil.detectors import Detector
from sigil.errors import DetectorError, ShapeError
from sigil.federation import Recording, Step
from sigil.federation.recording import GradientRecorder


class LongestGradient(Detector):
    """The smallest detector of one's own: the largest norm so far, suspicious above the threshold."""

    name = "longest-gradient"

    def look(self, rows: Tensor, labels: Tensor) -> float | None:
        if int(labels[0]) == 9:
            return None
        return float(rows.norm(dim=1).max())

    def suspicious(self, score: float) -> bool:
        return score > self.threshold


def batch(norm: float) -> tuple[Tensor, Tensor]:
    gradients = torch.zeros(3, 2, 2, 2)
    gradients[1, 0, 1, 0] = norm
    return gradients, torch.tensor([0, 1, 2])


def test_scores_alarms_and_curves() -> None:
    detector = LongestGradient(threshold=2.0)
    assert detector.score is None
    assert not detector.alarm
    assert detector.alarm_share == 0.0
    assert detector.update(*batch(1.0)) == 1.0
    assert detector.update(batch(7.0)[0], torch.tensor([9, 9, 9])) == 1.0  # no new score: the last one
    assert not detector.alarm
    assert detector.update(*batch(3.0)) == 3.0
    assert detector.alarm
    assert detector.update(*batch(1.5)) == 1.5
    assert detector.update(*batch(4.0)) == 4.0
    assert detector.first_alarm == 3
    assert detector.alarm  # an alarm is not taken back
    assert detector.alarm_share == 0.5
    assert detector.curves == {"scored_step": [1, 3, 4, 5], "score": [1.0, 3.0, 1.5, 4.0]}


@pytest.mark.parametrize("shape", [(3, 8), (3, 2, 2, 2)])
def test_tensors_and_arrays_of_any_layout_are_the_same(shape: tuple[int, ...]) -> None:
    values, labels = torch.randn(shape), torch.tensor([0, 1, 2])
    frozen = values.numpy().copy()
    frozen.setflags(write=False)
    seen: list[Any] = [values, values.double(), frozen, values.clone().requires_grad_()]
    if values.ndim == 4:
        seen.append(values.to(memory_format=torch.channels_last))
    scores = {LongestGradient(threshold=9.0).update(each, labels) for each in seen}
    assert len(scores) == 1
    assert LongestGradient(threshold=9.0).update(frozen, labels.numpy().astype(np.int32)) in scores


@pytest.mark.parametrize(
    ("gradients", "labels"), [((4, 8), (3,)), ((4,), (4,)), ((0, 8), (0,)), ((4, 8), (4, 1))]
)
def test_shapes_that_do_not_fit_are_named(gradients: tuple[int, ...], labels: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="one gradient and one label per sample"):
        LongestGradient(threshold=1.0).update(torch.zeros(gradients), torch.zeros(labels, dtype=torch.int64))


def test_live_it_sees_its_own_client_and_changes_nothing() -> None:
    detector = LongestGradient(threshold=2.0, client=1)
    gradient, labels = batch(3.0)
    for client in (0, 1, 2):
        assert detector.on_gradient_received(Step(1, client, 1), gradient, labels) is gradient
    assert detector.step == 1
    assert detector.first_alarm == 1


def recorded(folder: Path) -> Recording:
    recorder = GradientRecorder(folder, (2, 2, 2), clients=[0, 1])
    for number, norm in enumerate((1.0, 3.0, 2.0), 1):
        for client in (0, 1):
            recorder.on_gradient_received(Step(1, client, number), *batch(norm + 10 * client))
    recorder.on_round_end(1)
    recorder.close()
    return Recording(folder)


def test_a_replay_is_the_same_as_having_been_there(tmp_path: Path) -> None:
    detector = LongestGradient(threshold=2.5).replay(recorded(tmp_path))
    assert detector.curves["score"] == [1.0, 3.0, 2.0]
    assert detector.first_alarm == 2
    assert LongestGradient(threshold=2.5, client=1).replay(recorded(tmp_path)).curves["score"] == [11, 13, 12]


def test_a_replay_of_rounds_recorded_whole_sees_every_batch_of_them(tmp_path: Path) -> None:
    recorder = GradientRecorder(tmp_path, (2, 2, 2), clients=[0], share=0.5, whole_rounds=1)
    for round_number in (1, 2):
        for number in range(1, 5):
            recorder.on_gradient_received(Step(round_number, 0, number), *batch(10.0 * round_number + number))
        recorder.on_round_end(round_number)
    recorder.close()
    recording = Recording(tmp_path)
    assert recording.whole == [1]
    every = LongestGradient(threshold=99.0).replay(recording, rounds=recording.whole)
    assert every.curves["score"] == [11, 12, 13, 14]
    assert LongestGradient(threshold=99.0).replay(recording).curves["score"] == [12, 14, 22, 24]


def test_a_replay_without_its_client_says_so(tmp_path: Path) -> None:
    with pytest.raises(DetectorError, match="no gradient of client 5"):
        LongestGradient(threshold=2.5, client=5).replay(recorded(tmp_path))


def test_its_memory_is_json_and_a_copy() -> None:
    detector = LongestGradient(threshold=2.0)
    detector.update(*batch(3.0))
    state = json.loads(json.dumps(detector.state_dict()))
    kept = detector.state_dict()
    detector.update(*batch(1.0))
    assert kept == state
    other = LongestGradient(threshold=2.0)
    other.load_state_dict(state)
    other.update(*batch(1.0))
    assert other.state_dict() == detector.state_dict()
