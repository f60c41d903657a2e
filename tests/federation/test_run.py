"""Runs: results, resuming after any interruption, and what stops them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
import torch

from harness.training import changed
from sigil import models
from sigil.data import Inputs
from sigil.errors import ConfigError, TrainingError
from sigil.federation import Federation
from sigil.federation import checkpoint as checkpoints
from sigil.federation.from_settings import load_data, scheduled_rate
from sigil.federation.precision import choose
from sigil.federation.run import Run, open_run, train
from sigil.federation.settings import Settings
from sigil.keys.key import Key
from sigil.verdict.provability import judge_metrics
from sigil.verdict.verification import read_mark

SMALL: dict[str, Any] = {
    "model": {"name": "resnet18", "width": 4, "cut": "layer3"},
    # Three clients with four whole batches each: a last batch of a few images can throw weights out by far.
    "data": {"name": "digits", "train_limit": 192, "test_limit": 100},
    "federation": {"clients": 3, "rounds": 3, "local_epochs": 1, "batch_size": 16},
    "optimizer": {"warmup_rounds": 1, "lr": 0.05},
    "watermark": {"bits": 8, "probes": 32, "statistics_every": 2},
    "run": {"threads": 1, "workers": 1},
}
SEED = bytes(range(32))


def settings(**sections: dict[str, Any]) -> Settings:
    return changed(SMALL, **sections)


def small_key() -> Key:
    return Key.generate("ACME", shape=(16, 2, 2), bits=8, seed=SEED)


def weights(folder: Path) -> dict[str, bytes]:
    names = ("client.safetensors", "server.safetensors", "reference.safetensors")
    return {name: (folder / name).read_bytes() for name in names}


def comparable(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("seconds", "images_per_second")} for row in rows]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(settings(), folder, key=small_key())
    return folder


def test_the_run_directory_holds_what_it_should_and_no_secret(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert {"run.json", "metrics.jsonl", "checkpoint", *weights(finished)} <= names
    assert any("tfevents" in name for name in names)
    described = json.loads((finished / "run.json").read_text())
    assert described["commitment"] == small_key().commitment
    assert described["finished"] is True
    chosen = choose(settings().run.device, settings().run.precision)
    assert described["machine"] == chosen.describe() | {"threads": 1}
    assert described["machine"] == open_run(finished).machine
    for path in finished.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert SEED not in content
            assert SEED.hex().encode() not in content
            assert not content.startswith(b"\x80"), "no pickle"
    rows = comparable(finished)
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert {"loss", "accuracy", "wsr", "log10_p_before", "log10_p", "lr", "injection_cosine"} <= set(rows[-1])
    half = models.load(finished / "client.safetensors")
    assert half.spec.part == "client"
    assert half.input_shape == (1, 8, 8)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(finished: Path, tmp_path: Path) -> None:
    train(settings(), tmp_path / "again", key=small_key())
    assert weights(tmp_path / "again") == weights(finished)
    assert comparable(tmp_path / "again") == comparable(finished)
    train(settings(run={"seed": 1}), tmp_path / "other", key=small_key())
    assert weights(tmp_path / "other") != weights(finished)


# Trains, and stops for good as soon as a file of the checkpoint named last is there.
PROGRAM = """
import json, sys
from pathlib import Path
import torch
from sigil import files
from sigil.federation import checkpoint
from sigil.federation.run import train
from sigil.federation.settings import make
from sigil.keys.key import Key

folder, values, after = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]

def stopping(real):
    def call(*arguments):
        real(*arguments)
        if (folder / "checkpoint" / after).exists():
            print("there", flush=True)
            sys.stdin.read()
    return call

checkpoint.save_file = stopping(checkpoint.save_file)
files.flush = stopping(files.flush)
torch.set_num_threads(1)
key = Key.generate("ACME", shape=(16, 2, 2), bits=8, seed=bytes(range(32)))
train(make(values), folder, key=key)
"""


@contextmanager
def training_elsewhere(folder: Path, after: str) -> Iterator[None]:
    """A process that trains the run until this part of a checkpoint is written, killed at the end."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(folder), json.dumps(SMALL), after]
    with subprocess.Popen(command, env=environment, stdin=PIPE, stdout=PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "there\n"
            yield
        finally:
            process.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("after", ["round-00001", ".round-00002.partial"])
def test_killed_at_any_instant_it_ends_bit_identical(finished: Path, tmp_path: Path, after: str) -> None:
    """Kill -9 at the first checkpoint or in the middle of the second one, then start again, here."""
    folder = tmp_path / "killed"
    with training_elsewhere(folder, after), pytest.raises(TrainingError, match="Another process"):
        train(settings(), folder, key=small_key())
    with pytest.raises(TrainingError, match="not finished"):
        open_run(folder)
    assert (folder / "checkpoint" / after).exists()
    train(settings(), folder, key=small_key())
    assert weights(folder) == weights(finished)
    assert comparable(folder) == comparable(finished)


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(finished, folder)
    described = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(described | {"finished": False}))
    for file in (folder / "checkpoint" / "round-00003").iterdir():
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    train(settings(), folder, key=small_key())
    assert weights(folder) == weights(finished)
    assert comparable(folder) == comparable(finished)


def test_a_full_disk_keeps_the_last_checkpoint(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "full"
    real = checkpoints.save_file

    def save_or_fail(tensors: Any, path: Path) -> None:
        if "round-00002" in str(path) and path.name == "server.safetensors":
            raise OSError(28, "No space left on device")
        real(tensors, path)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save_file", save_or_fail)
        with pytest.raises(TrainingError, match="No space left"):
            train(settings(), folder, key=small_key())
    assert [path.name for path in (folder / "checkpoint").iterdir()] == ["round-00001"]
    train(settings(), folder, key=small_key())
    assert weights(folder) == weights(finished)


def test_a_loss_that_is_not_a_number_stops_with_a_sentence_and_keeps_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sigil.federation.federation.scheduled_rate",
        lambda settings, number: 1e30 if number == 2 else scheduled_rate(settings, number),
    )
    with pytest.raises(TrainingError, match=r"loss of client \d+ is .* in round 2.*lower optimizer.lr"):
        train(settings(), tmp_path / "nan", key=small_key())
    found = checkpoints.read_latest(tmp_path / "nan" / "checkpoint")
    assert found is not None
    assert found.round == 1
    assert all(bool(torch.isfinite(value).all()) for value in found.client.values())


def test_finished_work_is_not_redone(finished: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*.safetensors")}
    again = train(settings(), finished, key=small_key())
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*.safetensors")} == before
    assert again.final == open_run(finished).final


def test_another_setting_or_key_is_refused(finished: Path) -> None:
    with pytest.raises(TrainingError, match=r"federation.rounds = 3, not 4"):
        train(settings(federation={"rounds": 4}), finished, key=small_key())
    with pytest.raises(TrainingError, match="another key"):
        train(settings(), finished, key=Key.generate("ACME", shape=(16, 2, 2), bits=8))


def key_of_shares() -> Key:
    return Key.generate("ACME", shape=(16, 2, 2), bits=8, seed=SEED, scheme="shares")


def in_workers(folder: Path, workers: int) -> Run:
    """Two rounds: a worker is given the weights of the second one by the first."""
    changed = settings(
        data={"test_limit": 300},
        federation={"rounds": 2},
        watermark={"scheme": "shares", "strength": 0.5},
        run={"workers": workers, "threads": 1},
    )
    return train(changed, folder, key=key_of_shares())


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A training by two processes."""
    return in_workers(tmp_path_factory.mktemp("workers") / "two", 2)


def test_workers_train_the_same_clients_as_one_process(by_two: Run, tmp_path: Path) -> None:
    """Each client with its share of the bits; that all carry all of them is the simpler case."""
    for name, workers in (("alone", 1), ("again", 2)):
        in_workers(tmp_path / name, workers)
    ours, theirs = (
        models.load(folder / "client.safetensors").state_dict()
        for folder in (by_two.folder, tmp_path / "alone")
    )
    for name, value in theirs.items():
        # Only the order in which the average adds up differs, and that in float64.
        torch.testing.assert_close(ours[name], value, rtol=1e-5, atol=1e-6)
    assert weights(tmp_path / "again") == weights(by_two.folder)


def test_the_mark_is_read_on_noise_and_on_test_images(by_two: Run) -> None:
    run, changed, key = by_two, by_two.settings, key_of_shares()
    digits = load_data(changed)
    noise, inputs = read_mark(
        run.halves()[0],
        key,
        Inputs(digits.test.images, normalisation=(digits.mean, digits.std)),
        input_shape=digits.shape,
        probes=changed.watermark.probes,
    )
    # Another memory layout may round an answer next to zero to the other side.
    for end, reading in (("", noise), ("_inputs", inputs)):
        assert run.final[f"wsr{end}"] == pytest.approx(reading.wsr, abs=0.02)
        assert run.final[f"log10_p_before{end}"] == pytest.approx(reading.log10_p_before, abs=0.3)
    assert noise.wsr != inputs.wsr
    found = judge_metrics(run.final, key, "resnet18")
    assert [reading.kind for reading in found.readings] == ["noise", "inputs"]


def test_a_key_for_another_cut_is_refused(tmp_path: Path) -> None:
    wrong = Key.generate("ACME", shape=(16, 4, 4), bits=8)
    with pytest.raises(ConfigError, match="cut at 'layer3'"):
        train(settings(), tmp_path / "wrong", key=wrong)
    with pytest.raises(ConfigError, match="no key"):
        train(settings(), tmp_path / "none")


def test_a_run_from_before_a_setting_existed_is_still_the_same_run(finished: Path, tmp_path: Path) -> None:
    described = json.loads((finished / "run.json").read_text())
    del described["settings"]["watermark"]["per_sample"]
    older = tmp_path / "older"
    older.mkdir()
    (older / "run.json").write_text(json.dumps(described))
    (older / "metrics.jsonl").write_bytes((finished / "metrics.jsonl").read_bytes())
    assert train(settings(), older, key=small_key()).settings == settings()


def test_a_round_that_answers_with_infinities_is_discarded_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: Path
) -> None:
    plain = Federation.run_round

    def ruined(self: Federation, *arguments: Any) -> Any:
        result = plain(self, *arguments)
        if result.round == 2:
            self.client_state = {
                name: value * 1e30 if value.is_floating_point() else value
                for name, value in self.client_state.items()
            }
        return result

    monkeypatch.setattr(Federation, "run_round", ruined)
    run = train(settings(), tmp_path / "run", key=small_key())
    first, second, third = run.metrics
    assert second["discarded"] is True
    assert "not finite" in second["evaluation_failed"]
    assert "accuracy" not in second
    assert "wsr" not in second
    assert first["accuracy"] == comparable(finished)[0]["accuracy"]
    assert run.final is third
    assert all(torch.isfinite(value).all() for half in run.halves() for value in half.parameters())


def test_a_failed_evaluation_does_not_end_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: Path
) -> None:
    plain = Federation.accuracy

    def fails(self: Federation) -> float:
        if self.round == 3:
            raise OSError(5, "Input/output error")
        return plain(self)

    monkeypatch.setattr(Federation, "accuracy", fails)
    run = train(settings(), tmp_path / "run", key=small_key())
    assert run.metrics[2]["evaluation_failed"] == "Input/output error"
    assert "discarded" not in run.metrics[2]
    assert run.final["round"] == 2, "the last round that could be evaluated"
    assert weights(run.folder) == weights(finished), "what was trained is kept"
