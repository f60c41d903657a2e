"""The adaptive attack's window: a share of the training's steps, of which the attacker has every gradient."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sigil.errors import ExperimentError
from sigil.federation.observers import Step
from sigil.federation.recording import GradientRecorder, Recording
from sigil_reproduction.paper import table5_adaptive as adaptive


def recorded(folder: Path, **options: float) -> Recording:
    recorder = GradientRecorder(folder, (2, 2, 2), clients=[0], **options)  # type: ignore[arg-type]
    for number in range(1, 9):
        for step in range(1, 41):
            recorder.on_gradient_received(Step(number, 0, step), torch.randn(1, 2, 2, 2), torch.zeros(1))
        recorder.on_round_end(number)
    recorder.close()
    return Recording(folder)


def test_a_window_is_a_share_of_all_steps_however_few_are_kept(tmp_path: Path) -> None:
    everything = recorded(tmp_path / "all")
    thinned = recorded(tmp_path / "thinned", share=0.05, whole_rounds=2)
    assert adaptive._steps(everything, 8, 1) == adaptive._steps(thinned, 8, 1) == 320


def test_a_recording_without_the_first_gradients_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"keeps 5 % of the first gradients.*whole_rounds=1\.$"):
        adaptive._steps(recorded(tmp_path, share=0.05), 8, 1)
