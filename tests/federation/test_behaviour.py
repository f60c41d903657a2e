"""What the section behaviour asks of clients is done wherever a training is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sigil import models
from sigil.attacks import NoiseInjection
from sigil.baselines import Backdoor, ParameterMark
from sigil.federation import Federation, Settings, train
from sigil.federation.observers import ClientObserver
from sigil.federation.settings import make


def settings(**asked: Any) -> Settings:
    return make(
        {
            "model": {"name": "vgg11", "width": 4, "cut": "pool2"},
            "data": {"train_limit": 60, "test_limit": 20},
            "federation": {"clients": 2, "rounds": 1, "local_epochs": 1, "batch_size": 30},
            "optimizer": {"warmup_rounds": 0, "lr": 0.01},
            "watermark": {"strength": 0, "bits": 8},
            "behaviour": asked,
            "run": {"seed": 4, "device": "cpu", "precision": "float32"},
        }
    )


@pytest.mark.parametrize(
    ("asked", "observer"),
    [
        ({"noise_snr": 0.1}, NoiseInjection(0.1, seed=4)),
        ({"noise_snr": 0.1, "noise_reading": "amplitude"}, NoiseInjection(0.1, reading="amplitude", seed=4)),
        ({"mark": "backdoor"}, Backdoor(seed=4)),
        ({"mark": "parameter"}, ParameterMark(bits=8, seed=4)),
    ],
    ids=["noise", "amplitude", "backdoor", "parameter"],
)
def test_a_run_does_what_its_settings_ask_of_clients(
    tmp_path: Path, asked: dict[str, Any], observer: ClientObserver
) -> None:
    by_setting = train(settings(**asked), tmp_path / "setting")
    by_hand = train(settings(), tmp_path / "hand", client_observers=[observer])
    plain = train(settings(), tmp_path / "plain")
    states = [models.load(run.folder / "client.safetensors").state_dict() for run in (by_setting, by_hand)]
    clean = models.load(plain.folder / "client.safetensors").state_dict()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert any(not torch.equal(value, clean[name]) for name, value in states[0].items())


def test_a_federation_without_a_run_does_it_too() -> None:
    from sigil.federation.from_settings import load_data

    chosen = settings(noise_snr=0.1, mark="backdoor")
    federation = Federation(chosen, load_data(chosen))
    assert [type(observer) for observer in federation.client_observers] == [Backdoor, NoiseInjection]
