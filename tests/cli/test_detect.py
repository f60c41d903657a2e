"""`sigil detect` over a small recorded run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from harness.commands import Command
from sigil.cli import detect
from sigil.cli import main as module
from sigil.cli.main import main
from sigil.federation import train
from sigil.federation.from_settings import what_a_key_states
from sigil.federation.settings import make
from sigil.keys.key import Key

SETTINGS: dict[str, Any] = {
    "model": {"name": "resnet18", "width": 4, "cut": "layer2"},
    "data": {"name": "digits", "train_limit": 200, "test_limit": 50},
    "federation": {"clients": 1, "rounds": 2, "local_epochs": 2, "batch_size": 16},
    "optimizer": {"warmup_rounds": 1, "lr": 0.05},
    "watermark": {"strength": 0.0},
    "record": {"clients": [0]},
    "run": {"threads": 1, "workers": 1, "evaluate_every": 2, "precision": "float32"},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "recorded"
    train(make(SETTINGS), folder)
    return folder


@pytest.fixture(autouse=True)
def _only_this_command(monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()
    app.callback()(lambda: None)
    app.command()(detect.detect)
    monkeypatch.setattr(module, "app", app)


def test_it_prints_a_table_and_draws_the_curves(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["detect", str(run), "--share", "0.2"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].split() == ["detector", "score", "alarm", "first", "alarm", "suspicious", "scores"]
    rows = {line.split()[0]: line.split() for line in lines[1:3]}
    assert set(rows) == {"gradient-scrutinizer", "splitout"}
    assert 0 <= float(rows["splitout"][1]) <= 1
    assert rows["splitout"][-1] == "52"  # one per step: 200 images in 13 batches, 4 times
    assert rows["gradient-scrutinizer"][-1] == "1"
    assert "Client 0, 52 recorded steps" in out
    assert "A share of" not in out
    assert (run / "detectors.png").read_bytes().startswith(b"\x89PNG")


def test_an_alarm_says_what_it_rests_on_and_what_honest_servers_give(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = ["--detector", "gradient-scrutinizer"]
    assert main(["detect", str(run), *ask]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "yes step 51 1 of 1" in out  # a score of 0.06, far below 0.5
    assert "gradient-scrutinizer: 1 score, one every 50 steps; at cuts like layer3" in out
    assert "an honest server is below the threshold too (docs/attacks.md)." in out
    assert "The server of this run marked nothing: no alarm here is about a mark." in out

    marked = SETTINGS | {"watermark": {"strength": 0.1, "bits": 8}}
    train(
        make(marked),
        tmp_path,
        key=Key.generate("ACME", what_a_key_states(make(marked))["shape"], bits=8, seed=bytes(32)),
    )
    assert main(["detect", str(tmp_path), *ask]) == 0
    out = capsys.readouterr().out
    assert "ask the same of a run with --set watermark.strength=0" in out
    assert "marked nothing" not in out


def test_without_an_alarm_nothing_is_said_of_one() -> None:
    assert detect._caveats([], marked=False) == []


def test_of_a_sparse_recording_it_says_which_steps_it_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = SETTINGS | {"record": {"clients": [0], "share": 0.25}}
    train(make(settings), tmp_path)
    assert main(["detect", str(tmp_path), "--detector", "gradient-scrutinizer"]) == 0
    assert "A share of 0.25 of the client's steps was recorded" in capsys.readouterr().out
    assert main(["detect", str(tmp_path), "--detector", "gradient-scrutinizer", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["share"] == 0.25


def test_json_holds_everything(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "curves.svg"
    command = ["detect", str(run), "--detector", "gradient-scrutinizer", "--out", str(picture), "--json"]
    reports = []
    for extra in ([], ["--compat", "--force"]):
        assert main([*command, *extra]) == 0
        reports.append(json.loads(capsys.readouterr().out))
    assert picture.exists()
    (right,), (published,) = (report["detectors"] for report in reports)
    assert reports[0]["client"] == 0
    assert right["detector"] == "gradient-scrutinizer"
    assert right["steps"] == 52
    assert right["curves"]["scored_step"] == [51]
    assert right["alarm"] == (right["score"] < 0.5) == (right["first_alarm"] is not None)
    assert right["curves"]["overlap"][0] < published["curves"]["overlap"][0]
    assert right["curves"]["same"] == published["curves"]["same"]


OWN = """
from sigil.detectors import Detector

class Size(Detector):
    name = "splitout"  # that of another, of which more is known

    def __init__(self, *, threshold=0.0, client=0):
        super().__init__(threshold=threshold, client=client)

    def look(self, rows, labels):
        return float(rows.abs().mean())

    def suspicious(self, score):
        return score > self.threshold

class Nameless(Detector):
    pass

class Numbered(Size):
    name = 7

class Endless(Size):
    def look(self, rows, labels):
        return float("inf")

class Speaks(Size):
    def look(self, rows, labels):
        return "high"

    def suspicious(self, score):
        return False

class Fails(Size):
    def look(self, rows, labels):
        return 1 / 0

def function():
    return None
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.py").write_text(OWN)


@pytest.mark.usefixtures("own")
def test_a_detector_of_ones_own(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["detect", str(run), "--detector", "my.py:Size"]
    assert main([*command, "--detector", "gradient-scrutinizer"]) == 0
    out = capsys.readouterr().out
    assert "52 of 52" in out
    assert "splitout: 52 scores; ask it of honest servers too" in " ".join(out.split())
    assert main([*command, "--set", "threshold=1e9", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["detectors"]
    assert (found["threshold"], found["alarm"], found["steps"]) == (1e9, False, 52)
    assert [path.name for path in Path().iterdir()] == ["my.py"]


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["gone.py:Size"], "gone.py cannot be read: it does not exist"),
        (["my.py:Sizes"], "There is no Sizes in my.py"),
        (["my.py:function"], "my.py:function is not a detector"),
        (["my.py:Detector"], "my.py:Detector is not a detector"),
        (["my.py:Nameless"], "my.py:Nameless is not a detector: a class with a name"),
        (["my.py:Numbered"], "my.py:Numbered is not a detector: a class with a name"),
        (["my.py:Endless"], "A score or a curve of my.py:Endless is not a finite number"),
        (["my.py:Speaks"], "A score or a curve of my.py:Speaks is not a finite number"),
        (["my.py:Fails"], "my.py failed in line 35 (ZeroDivisionError: division by zero)"),
        (["my.py:Size", "--set", "limit=1"], "unexpected keyword argument 'limit'"),
        (["my.py:Size", "--set", "threshold=high"], "my.py failed in line 14 (TypeError: "),
        (["splitout", "--set", "threshold=1"], "--set is for a detector of your own"),
        (["my.py:Size", "--out", "my.py"], "my.py does not end in .png"),
    ],
)
def test_what_is_wrong_with_an_own_detector_is_one_sentence(
    arguments: list[str], sentence: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["detect", str(run), "--detector", *arguments]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--detector", "splitguard"], "SplitGuard cannot judge a recording"),
        (["--detector", "magic"], "There is no detector 'magic'; choose gradient-scrutinizer or splitout."),
        (["--client", "3"], "Client 3 recorded nothing; choose one of 0"),
        (["--detector", "splitout"], "is 2, but at least 10 are needed for local gradients; give a share of"),
        (["--share", "2"], "The share of the client's data is 2, but it must be more than 0 and at most 1"),
        (["--detector", "gradient-scrutinizer", "--out", "x.txt"], "x.txt does not end in .png"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    arguments: list[str], sentence: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["detect", str(run), *arguments]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_run_that_is_missing_or_recorded_nothing_says_so(
    run: Path, tmp_path: Path, refused: Command
) -> None:
    assert "There is no run in" in refused("detect", tmp_path)
    for name in ("run.json", "metrics.jsonl"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    assert "record.clients=[0]" in refused("detect", tmp_path)


def test_help_teaches_by_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["detect", "--help"]) == 0
    out = capsys.readouterr().out
    assert out.count("sigil detect ") >= 2
    assert "record.clients" in out
