"""Runs: results, resuming after any interruption, and what stops them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from sigil import models
from sigil.errors import ConfigError, TrainingError
from sigil.federation import Federation
from sigil.federation import checkpoint as checkpoints
from sigil.federation.from_settings import scheduled_rate
from sigil.federation.precision import choose
from sigil.federation.run import open_run, train
from sigil.federation.settings import Settings, make
from sigil.key import Key

SMALL: dict[str, Any] = {
    "model": {"name": "resnet18", "width": 4, "cut": "layer3"},
    "data": {"name": "digits", "train_limit": 200, "test_limit": 100},
    "federation": {"clients": 3, "rounds": 3, "local_epochs": 1, "batch_size": 16},
    "optimizer": {"warmup_rounds": 1, "lr": 0.05},
    "watermark": {"bits": 8, "probes": 32, "statistics_every": 2},
    "run": {"threads": 1, "workers": 1},
}
SEED = bytes(range(32))


def settings(**sections: dict[str, Any]) -> Settings:
    merged = {name: dict(values) for name, values in SMALL.items()}
    for name, values in sections.items():
        merged.setdefault(name, {}).update(values)
    return make(merged)


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
    assert {"loss", "accuracy", "wsr", "log10_p", "lr", "injection_cosine"} <= set(rows[-1])
    half = models.load(finished / "client.safetensors")
    assert half.spec.part == "client"
    assert half.input_shape == (1, 8, 8)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(finished: Path, tmp_path: Path) -> None:
    train(settings(), tmp_path / "again", key=small_key())
    assert weights(tmp_path / "again") == weights(finished)
    assert comparable(tmp_path / "again") == comparable(finished)
    train(settings(run={"seed": 1}), tmp_path / "other", key=small_key())
    assert weights(tmp_path / "other") != weights(finished)


PROGRAM = """
import sys
from pathlib import Path
import torch
from sigil.federation.run import train
from sigil.federation.settings import make
from sigil.key import Key
import json
torch.set_num_threads(1)
key = Key.generate("ACME", shape=(16, 2, 2), bits=8, seed=bytes(range(32)))
train(make(json.loads(sys.argv[2])), Path(sys.argv[1]), key=key)
"""


def start(folder: Path, values: dict[str, Any]) -> subprocess.Popen[bytes]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(folder), json.dumps(values)]
    return subprocess.Popen(command, env=environment)


@pytest.mark.parametrize("after", ["round-00001", ".round-00002.partial"])
def test_killed_at_any_instant_it_ends_bit_identical(finished: Path, tmp_path: Path, after: str) -> None:
    """Kill -9 as soon as a file of the first or second checkpoint is seen, then start again, here."""
    folder = tmp_path / "killed"
    process = start(folder, SMALL)
    while not (folder / "checkpoint" / after).exists() and process.poll() is None:
        time.sleep(0.0005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    interrupted = json.loads((folder / "run.json").read_text())["finished"] is False
    train(settings(), folder, key=small_key())
    assert weights(folder) == weights(finished)
    assert comparable(folder) == comparable(finished)
    assert interrupted or after != "round-00001", "the kill came before the run was over"


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    train(settings(), folder, key=small_key())
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


def test_two_processes_cannot_train_one_run(tmp_path: Path) -> None:
    folder = tmp_path / "busy"
    process = start(folder, SMALL)
    try:
        while not (folder / "run.json").exists():
            assert process.poll() is None
            time.sleep(0.005)
        with pytest.raises(TrainingError, match="Another process"):
            train(settings(), folder, key=small_key())
    finally:
        process.kill()
        process.wait()
    with pytest.raises(TrainingError, match="not finished"):
        open_run(folder)


def test_workers_train_the_same_clients_as_one_process(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "workers"
    train(settings(run={"workers": 2, "threads": 2}), folder, key=small_key())
    ours, theirs = (models.load(path / "client.safetensors").state_dict() for path in (folder, finished))
    for name, value in theirs.items():
        # Only the order in which the average adds up differs, and that in float64.
        torch.testing.assert_close(ours[name], value, rtol=1e-5, atol=1e-6)
    again = tmp_path / "again"
    train(settings(run={"workers": 2, "threads": 2}), again, key=small_key())
    assert weights(again) == weights(folder)


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
