"""`sigil join` from the command line: what it refuses before it starts anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sigil.cli.main import main
from sigil.transport.flower.only_process import only_process


@pytest.fixture(autouse=True)
def _surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (
        "HOME",
        "TELEMETRY_ENABLED",
        "DISABLE_UPDATE_CHECK",
        "DISABLE_RUNTIME_DEPENDENCY_INSTALLATION",
    ):
        monkeypatch.setenv(f"FLWR_{name}", "as before")


@pytest.mark.parametrize("content", [None, "", "{}", '{"client": 0}', '{"client": "x"}'])
def test_a_folder_that_is_no_bundle_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    if content is not None:
        (bundle / "join.json").write_text(content)
    assert main(["join", str(bundle)]) == 2
    error = capsys.readouterr().err.strip()
    assert "is not a client's folder" in error
    assert "\n" not in error


def test_an_address_that_is_none_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "join.json").write_text(json.dumps({"client": 0, "server": "127.0.0.1:9092"}))
    assert main(["join", str(tmp_path), "--server", "somewhere"]) == 2
    assert "host:port" in capsys.readouterr().err


def test_a_part_that_is_none_is_refused_before_anything_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    invitation = {"client": 1, "clients": 2, "server": "127.0.0.1:9092"}
    (tmp_path / "join.json").write_text(json.dumps(invitation))
    assert main(["join", str(tmp_path), "--part", "9"]) == 2
    assert "--part is 0 to 1, and 1 is the one that goes with this folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [tmp_path / "join.json"]


def test_a_second_process_for_the_same_client_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "join.json").write_text(json.dumps({"client": 0, "server": "127.0.0.1:9092"}))
    with only_process(tmp_path, take_over=False):
        assert main(["join", str(tmp_path)]) == 2
    assert "add --take-over" in capsys.readouterr().err


@pytest.mark.parametrize(("folder", "words"), [("missing", "cannot be read"), ("empty", "is empty")])
def test_a_folder_without_pictures_is_refused_before_anything_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: str, words: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "join.json").write_text(json.dumps({"client": 0, "server": "127.0.0.1:9092"}))
    assert main(["join", str(tmp_path), "--data", f"folder:{tmp_path / folder}"]) == 2
    assert words in capsys.readouterr().err
