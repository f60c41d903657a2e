"""Ctrl-C: one line that says where a training stopped and how to go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from sigil.cli import interruption, main
from sigil.cli.interruption import Interrupted, going_on


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
    with pytest.raises(Interrupted) as stop, going_on(tmp_path, rounds=5, more="clients wait"):
        raise KeyboardInterrupt
    assert str(stop.value) == words


def test_the_command_prints_it_and_ends_with_130(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sigil.federation.run.train", interrupted)
    monkeypatch.chdir(tmp_path)
    assert main.main(["train", "--set", "watermark.strength=0", "-o", "a"]) == 130
    error = capsys.readouterr().err.splitlines()
    assert error[-1] == "sigil: Stopped in round 1 of 8; no round was finished. The same command goes on."
    assert interruption.finished_rounds(tmp_path / "a") == 0
