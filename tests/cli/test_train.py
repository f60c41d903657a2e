"""`sigil train` from the command line, and what is said when it is interrupted."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from harness.commands import Command
from sigil.cli.main import main
from sigil.cli.train import Interrupted, find_key, finished_rounds, resumable, save_key
from sigil.federation.settings import make

SMALL = [
    "--set", "model.width=4", "--set", "data.train_limit=60", "--set", "data.test_limit=30",
    "--set", "federation.clients=2", "--set", "federation.rounds=2", "--set", "federation.local_epochs=1",
    "--set", "federation.batch_size=16", "--set", "watermark.bits=8", "--set", "run.threads=1",
]  # fmt: skip


def test_train_then_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "runs" / "a"
    assert main(["train", "--out", str(run), "--owner", "ACME", *SMALL]) == 0
    output = capsys.readouterr()
    assert '"owner":"ACME"' in output.out
    assert "accuracy" in output.out
    assert re.search(r"WSR .* % on noise \(p = 1 after correction; proof asks for 3e-07\)", output.out)
    assert "A plain key of 8 bits proves nothing, however well a model answers" in output.err
    assert "give a larger model.width, take a cut with more activations or have the key stamped" in output.err
    assert (
        "The mark is NOT provable: a plain key of 8 bits proves nothing, however well a model answers"
        in output.out
    )
    assert '"cut":"layer3"' in output.out
    assert '"input_shape":[1,8,8]' in output.out
    assert "round 2/2" in output.err, "plain lines where there is no terminal"
    assert not list(run.rglob("*.key"))
    key = run.with_name("a.key")
    assert key.stat().st_mode & 0o777 == 0o600
    status = main(["verify", str(run / "client.safetensors"), "--key", str(key), "--json"])
    verdict = json.loads(capsys.readouterr().out)
    assert status == (0 if verdict["owned"] else 1)
    assert verdict["bits"] == 8

    # The same command again finds the key and the finished run, and trains nothing.
    before = (run / "client.safetensors").stat().st_mtime_ns
    assert main(["train", "--out", str(run), "--quiet", *SMALL]) == 0
    output = capsys.readouterr()
    assert output.out == output.err == ""
    assert (run / "client.safetensors").stat().st_mtime_ns == before


def test_a_longer_key_is_advised_only_where_it_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At width 8 it advised 128 bits in 128 dimensions, with which no training ends in a proof."""
    for width, advice in (
        (8, "give a larger model.width, take"),
        (16, "give --set watermark.bits=128, take"),
    ):
        settings = make({"model": {"width": width}, "watermark": {"bits": 64}})
        out = tmp_path / f"w{width}"
        key, _ = find_key(settings, out, None, "ACME", None, False, None, quiet=True)
        assert key is not None
        save_key(key, out, quiet=False)
        assert advice in capsys.readouterr().err


def test_a_clean_training_needs_and_makes_no_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "clean"
    assert main(["train", "--out", str(run), *SMALL, "--set", "watermark.strength=0"]) == 0
    assert "WSR" not in capsys.readouterr().out
    assert not run.with_name("clean.key").exists()
    assert json.loads((run / "run.json").read_text())["commitment"] is None


def test_settings_can_be_printed_and_given_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--settings", "--set", "federation.clients=3"]) == 0
    printed = capsys.readouterr().out
    assert tomllib.loads(printed)["federation"]["clients"] == 3
    (tmp_path / "my.toml").write_text(printed)
    assert main(["train", "--settings", "--config", str(tmp_path / "my.toml")]) == 0
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "federation.client=3"], "did you mean 'federation.clients'"),
        (["--set", "model.name=alexnet"], "alexnet"),
        (["--set", "model.cut=layer9"], "layer9"),
        (["--set", "data.name=cifar10"], "sigil data fetch cifar10"),
        (["--set", "run.device=nowhere"], "nowhere"),
        (["--config", "missing.toml"], "cannot be read"),
        (["--key", "missing.key"], "missing.key"),
    ],
)
def test_bad_use_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Command,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    error = refused("train", "--out", "bad", *SMALL, *arguments)
    assert words in error
    assert not (tmp_path / "bad" / "client.safetensors").exists()


def test_a_training_without_settings_is_the_small_one(capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*arguments: str) -> dict[str, dict[str, object]]:
        assert main(["train", "--settings", *arguments]) == 0
        return tomllib.loads(capsys.readouterr().out)

    small = printed()
    assert small["federation"]["rounds"] == 8
    assert small["model"]["width"] == 16
    paper = printed("--preset", "paper")
    assert paper["federation"]["rounds"] == 80
    assert "width" not in paper["model"]
    assert printed("--set", "data.name=cifar10") == paper | {"data": {**paper["data"], "name": "cifar10"}}
    assert printed("--set", "federation.clients=3")["federation"]["rounds"] == 8
    assert printed("--preset", "digits") == small


def test_presets_are_listed_in_the_help_and_where_one_is_misspelt(
    capsys: pytest.CaptureFixture[str], refused: Command
) -> None:
    error = refused("train", "--preset", "papr")
    assert "no preset 'papr'; choose digits (" in error
    assert "paper (" in error
    assert main(["train", "--help"]) == 0
    assert "digits (a small ResNet-18" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_no_key_is_left_behind_by_a_refused_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "first"
    # Everything that is found out late: data, model, device.
    for change in ("data.name=cifar10", "model.cut=layer9", "run.device=nowhere"):
        assert main(["train", "--out", str(run), *SMALL, "--set", change]) == 2
        assert "publish" not in capsys.readouterr().out
    assert not run.with_name("first.key").exists()
    # An existing run whose key lies elsewhere.
    assert main(["key", "new", str(tmp_path / "own.key"), "--owner", "A", "--shape", "16,2,2"]) == 0
    assert main(["train", "--out", str(run), "--key", str(tmp_path / "own.key"), *SMALL]) == 0
    capsys.readouterr()
    assert main(["train", "--out", str(run), *SMALL, "--set", "federation.rounds=3"]) == 2
    printed = capsys.readouterr()
    assert "publish" not in printed.out
    assert "--key" in printed.err
    assert not run.with_name("first.key").exists()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("optimizer.learning_rate", "optimizer.lr"),
        ("watermark.lambda", "watermark.strength"),
        ("federation.epochs", "federation.local_epochs"),
        ("data.dataset", "data.name"),
    ],
)
def test_usual_names_of_settings_are_understood(given: str, meant: str, refused: Command) -> None:
    assert f"did you mean '{meant}'?" in refused("train", "--settings", "--set", f"{given}=1")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (None, "Stopped in round 1 of 5; no round was finished. The same command goes on, and clients wait."),
        (2, "Stopped in round 3 of 5; round 2 is kept. The same command goes on, and clients wait."),
        (5, "Stopped in round 5 of 5; round 5 is kept. The same command goes on, and clients wait."),
    ],
)
def test_the_sentence_names_the_round(tmp_path: Path, lines: int | None, words: str) -> None:
    if lines is not None:
        (tmp_path / "metrics.jsonl").write_text("{}\n" * lines)
    with pytest.raises(Interrupted) as stop, resumable(tmp_path, rounds=5, more="clients wait"):
        raise KeyboardInterrupt
    assert str(stop.value) == words


def test_the_command_prints_it_and_ends_with_130(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sigil.federation.run.train", interrupted)
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--set", "watermark.strength=0", "-o", "a"]) == 130
    error = capsys.readouterr().err.splitlines()
    assert error[-1] == "sigil: Stopped in round 1 of 8; no round was finished. The same command goes on."
    assert finished_rounds(tmp_path / "a") == 0
