"""The record of global models: what a run with shares writes, through interruptions and for one roster."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from sigil.errors import TrainingError
from sigil.federation import checkpoint as checkpoints
from sigil.federation.run import train
from sigil.federation.settings import Settings, make
from sigil.federation.trainer import LocalTrainer, RoundStart, RoundSums
from sigil.keys.key import Key
from sigil.tracing.leak import trace
from sigil.tracing.record import read_record

CLIENTS, ROUNDS = 4, 3


def settings(scheme: str = "shares") -> Settings:
    return make(
        {
            "model": {"name": "resnet18", "width": 4, "cut": "layer2"},
            "data": {"name": "digits", "train_limit": 160},
            "federation": {"clients": CLIENTS, "rounds": ROUNDS, "local_epochs": 1, "batch_size": 16},
            "optimizer": {"lr": 0.05, "warmup_rounds": 1},
            "watermark": {"scheme": scheme, "probes": 16},
            "run": {"threads": 1, "workers": 1, "precision": "float32"},
        }
    )


def small_key(scheme: str = "shares") -> Key:
    chosen: Any = scheme
    return Key.generate("ACME", shape=(8, 4, 4), bits=32, seed=bytes(range(32)), scheme=chosen)


class Stopping(LocalTrainer):
    """Is interrupted in the third round."""

    def train(self, start: RoundStart, **options: Any) -> RoundSums:
        if start.number == ROUNDS:
            raise KeyboardInterrupt
        return super().train(start, **options)


ROSTER = {client: f"{client:064x}" for client in range(CLIENTS)}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(settings(), folder, key=small_key(), roster=ROSTER)
    return folder


def test_every_round_is_recorded_and_the_last_is_the_model_of_the_run(finished: Path) -> None:
    found = read_record(finished)
    assert list(found.rounds) == [0, 1, 2, 3]
    assert found.counted == {"noise": 256, "inputs": 256}
    assert (found.clients, found.carriers_per_bit, found.bits) == (CLIENTS, 1, 32)
    assert found.roster == ROSTER
    assert len({counts["inputs"] for counts in found.rounds.values()}) == 4, "each round differs"
    traced = trace(finished / "client.safetensors", small_key(), finished)
    assert (traced.round, traced.difference) == (ROUNDS, 0.0)
    assert traced.named is None


def test_an_interrupted_run_records_the_same(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(settings(), tmp_path / "a", key=small_key(), roster=ROSTER, trainer=Stopping)
    assert list(read_record(tmp_path / "a").rounds) == [0, 1, 2]
    latest = checkpoints.read_latest(tmp_path / "a" / "checkpoint")
    assert latest is not None
    assert latest.round == 2
    train(settings(), tmp_path / "a", key=small_key(), roster=ROSTER)
    assert read_record(tmp_path / "a") == read_record(finished)


def test_a_record_that_is_ahead_of_the_checkpoint_goes_back_to_it(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(settings(), tmp_path / "a", key=small_key(), roster=ROSTER, trainer=Stopping)
    ahead = read_record(tmp_path / "a")
    wrong = dict.fromkeys(("noise", "inputs"), (0,) * 32)
    dataclasses.replace(ahead, rounds={**ahead.rounds, 3: wrong}).write(tmp_path / "a" / "agreement.json")
    train(settings(), tmp_path / "a", key=small_key(), roster=ROSTER)
    assert read_record(tmp_path / "a") == read_record(finished)


def test_a_run_goes_on_with_the_clients_it_began_with(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(settings(), tmp_path / "a", key=small_key(), roster=ROSTER, trainer=Stopping)
    swapped = ROSTER | {1: ROSTER[2], 2: ROSTER[1]}
    with pytest.raises(TrainingError, match="certificates of client 1, 2 are not those"):
        train(settings(), tmp_path / "a", key=small_key(), roster=swapped)


def test_without_shares_nothing_is_recorded(tmp_path: Path) -> None:
    train(settings("paper"), tmp_path / "a", key=small_key("paper"))
    assert not (tmp_path / "a" / "agreement.json").exists()
