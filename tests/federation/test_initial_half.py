"""The weights that a run began with, made again from its settings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sigil.errors import SigilError
from sigil.federation import train
from sigil.federation.federation import Federation
from sigil.federation.from_settings import load_data
from sigil.federation.run import initial_half
from sigil.federation.settings import make
from sigil.lineage import trace

SETTINGS = {
    "model": {"width": 4},
    "data": {"train_limit": 40, "test_limit": 20},
    "federation": {"clients": 2, "rounds": 1, "batch_size": 10},
    "optimizer": {"warmup_rounds": 0},
    "watermark": {"strength": 0.0},
    "run": {"workers": 1, "threads": 1, "seed": 5},
}


def test_it_is_what_the_federation_began_with(tmp_path: Path) -> None:
    settings = make(SETTINGS)
    began = Federation(settings, load_data(settings)).client_state
    run = train(settings, tmp_path / "run")
    again = initial_half(tmp_path / "run")
    for name, value in again.state_dict().items():
        torch.testing.assert_close(value, began[name], rtol=0, atol=0)
    trained = run.halves()[0]
    assert not torch.equal(trained.state_dict()["conv1.weight"], began["conv1.weight"])
    found = trace(trained, again)
    assert found.believed
    assert found.order.tolist() == list(range(16))


def test_a_folder_without_a_run_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SigilError, match=str(tmp_path)):
        initial_half(tmp_path)
