"""What a recording keeps of a client's gradients: a share of the steps, and the sums of all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sigil.attacks.subspace import mean_gradient, recorded_rows
from sigil.errors import DataError
from sigil.federation.observers import Step
from sigil.federation.recording import SUMS, GradientRecorder, Recording

SHAPE = (2, 2, 2)


def gradients(number: int, step: int) -> torch.Tensor:
    return torch.randn(3, *SHAPE, generator=torch.Generator().manual_seed(100 * number + step))


def play(recorder: GradientRecorder, number: int, steps: int = 10) -> None:
    for step in range(1, steps + 1):
        for client in (0, 1):
            labels = torch.zeros(3, dtype=torch.long)
            recorder.on_gradient_received(Step(number, client, step), gradients(number, step), labels)
    recorder.on_round_end(number)


def mean_of(*rounds: int) -> np.ndarray:
    rows = [gradients(number, step).flatten(1) for number in rounds for step in range(1, 11)]
    return torch.cat(rows).double().mean(0).numpy()


def test_the_mean_is_that_of_all_gradients_however_few_are_kept(tmp_path: Path) -> None:
    recorder = GradientRecorder(tmp_path, SHAPE, clients=[0], share=0.2)
    for number in (1, 2):
        play(recorder, number)
    recorder.close()
    recording = Recording(tmp_path)
    assert (len(recording), recording.partial) == (4, True)
    for rounds in ([1], [2], [1, 2]):
        found = recording.mean(rounds)
        assert found is not None
        np.testing.assert_allclose(found, mean_of(*rounds), rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(mean_gradient(recording, rounds), mean_of(*rounds), rtol=1e-5, atol=1e-6)
    assert recording.mean([3]) is None


def test_sums_go_on_after_an_interruption(tmp_path: Path) -> None:
    first = GradientRecorder(tmp_path, SHAPE, clients=[0], share=0.2)
    play(first, 1)
    state = first.state_dict()
    state = {
        name: [list(row) for row in value] if isinstance(value, list) else value
        for name, value in state.items()
    }
    play(first, 2, steps=4)  # and then the machine went down, before a checkpoint of round 2
    first.close()
    second = GradientRecorder(tmp_path, SHAPE, clients=[0], share=0.2)
    second.load_state_dict(state)
    play(second, 2)
    second.close()
    found = Recording(tmp_path).mean([1, 2])
    assert found is not None
    np.testing.assert_allclose(found, mean_of(1, 2), rtol=1e-6, atol=1e-9)


def test_a_whole_recording_is_averaged_from_its_rows(tmp_path: Path) -> None:
    recorder = GradientRecorder(tmp_path, SHAPE, clients=[0])
    play(recorder, 1)
    recorder.close()
    recording = Recording(tmp_path)
    assert not recording.partial
    np.testing.assert_allclose(mean_gradient(recording, [1]), mean_of(1), rtol=1e-5, atol=1e-6)


def test_sums_that_are_missing_are_one_sentence(tmp_path: Path) -> None:
    recorder = GradientRecorder(tmp_path, SHAPE, clients=[0], share=0.2)
    play(recorder, 1)
    recorder.close()
    (tmp_path / SUMS).write_bytes(bytes(8))
    with pytest.raises(DataError, match=r"shorter than its index says; record it again\.$"):
        Recording(tmp_path)


def test_first_rounds_can_be_kept_whole_and_count_no_more_than_others(tmp_path: Path) -> None:
    recorder = GradientRecorder(tmp_path, SHAPE, clients=[0], share=0.2, whole_rounds=1)
    for number in (1, 2):
        play(recorder, number)
    recorder.close()
    recording = Recording(tmp_path)
    assert [(step.at.round, step.at.step) for step in recording.steps()] == [(1, 5), (1, 10), (2, 5), (2, 10)]
    assert len(recording) == 4
    whole = list(recording.steps(whole=True))
    assert [step.at.step for step in whole if step.at.round == 1] == list(range(1, 11))
    assert [step.at.step for step in whole if step.at.round == 2] == [5, 10]
    assert recording.whole == [1]
    np.testing.assert_array_equal(whole[2].gradients, gradients(1, 3).flatten(1))
    assert sum(map(len, recorded_rows(recording, [1], "early", "sample")())) == 30
