"""What every attack promises: a new model of the same kind, and the one given unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sigil import attacks, models
from sigil.data import Dataset
from sigil.federation.observers import Step
from sigil.federation.recording import GradientRecorder, Recording
from sigil.keys.key import Key


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    folder = tmp_path_factory.mktemp("recording")
    recorder = GradientRecorder(folder, (16, 2, 2), clients=[0])
    generator = torch.Generator().manual_seed(0)
    for number in (1, 2):
        gradient = torch.randn(32, 16, 2, 2, generator=generator)
        recorder.on_gradient_received(Step(number, 0, 1), gradient, torch.zeros(32, dtype=torch.long))
        recorder.on_round_end(number)
    recorder.close()
    return Recording(folder)


def every_attack(digits: Dataset, recording: Recording) -> dict[str, Callable[[Any], Any]]:
    second = Key.generate("Mallory", shape=(16, 2, 2), bits=8, seed=bytes(32))
    return {
        "finetune": lambda model: attacks.finetune(model, digits, steps=1),
        "prune": lambda model: attacks.prune(model, 0.5),
        "quantize": lambda model: attacks.quantize(model, "int4"),
        "subspace": lambda model: attacks.subspace(
            model,
            recording,
            digits,
            early_rounds=[1],
            late_rounds=[2],
            main_components=4,
            epochs=1,
            cut="pool2",
        )[0],
        "overwrite": lambda model: attacks.overwrite(model, digits, second, steps=1, cut="pool2"),
        "permute": lambda model: attacks.permute(model, cut="pool2"),
        "extract": lambda model: attacks.extract(model, model, digits, epochs=1),
        "launder": lambda model: attacks.launder(model, digits, steps=1, cut="pool2"),
        "erase": lambda model: attacks.erase(
            model, digits, flatten=1.0, push=1.0, noise=0.1, steps=1, cut="pool2"
        ),
    }


def states(subject: Any) -> list[dict[str, torch.Tensor]]:
    parts = subject if isinstance(subject, tuple) else (subject,)
    return [{name: value.clone() for name, value in part.state_dict().items()} for part in parts]


@pytest.mark.parametrize("kind", ["whole", "halves"])
def test_every_attack_returns_a_new_model_and_leaves_the_given_one(
    kind: str, marked: Any, digits: Dataset, recording: Recording
) -> None:
    given = getattr(marked, kind)
    before = states(given)
    numpy_state = np.random.get_state()[1].tolist()  # noqa: NPY002
    torch_state = torch.get_rng_state()
    for name, attack in every_attack(digits, recording).items():
        attacked = attack(given)
        for old, now in zip(before, states(given), strict=True):
            assert all(torch.equal(old[key], now[key]) for key in old), name
        pairs = zip(
            *(part if isinstance(part, tuple) else (part,) for part in (given, attacked)), strict=True
        )
        changed = False
        for old_part, new_part in pairs:
            assert new_part.spec == old_part.spec, name
            assert new_part.input_shape == old_part.input_shape
            assert new_part.training == old_part.training
            memory = {value.data_ptr() for value in old_part.state_dict().values()}
            for key, value in new_part.state_dict().items():
                assert value.data_ptr() not in memory, (name, key)
                assert value.is_contiguous(), (name, key)
                changed |= not torch.equal(value, old_part.state_dict()[key])
            assert all(value.requires_grad and value.grad is None for value in new_part.parameters())
        assert changed, name
    assert np.random.get_state()[1].tolist() == numpy_state  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), torch_state)


def test_halves_and_whole_are_attacked_alike(marked: Any, digits: Dataset, recording: Recording) -> None:
    for name, attack in every_attack(digits, recording).items():
        whole = attack(marked.whole).state_dict()
        joined = models.join(*attack(marked.halves)).state_dict()
        assert all(torch.equal(whole[key], joined[key]) for key in whole), name
