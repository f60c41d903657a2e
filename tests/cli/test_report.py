"""`sigil report`: one page of runs, complete in itself; results need another package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.commands import Command
from sigil.cli import report
from sigil.cli.main import main
from sigil.federation.from_settings import what_a_key_states
from sigil.federation.run import train
from sigil.federation.settings import make
from sigil.keys.key import Key


def section(page: str, name: str) -> str:
    found = re.search(rf'<section id="{name}">.*?</section>', page, re.DOTALL)
    assert found is not None
    return found[0]


def test_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Command) -> None:
    def settings(strength: float) -> dict[str, dict[str, object]]:
        return {
            "model": {"width": 8, "cut": "layer1"},
            "data": {"train_limit": 40, "test_limit": 20},
            "federation": {"clients": 2, "rounds": 2, "local_epochs": 1, "batch_size": 16},
            "watermark": {"strength": strength, "probes": 8},
            "run": {"workers": 1, "threads": 1},
        }

    marked = make(settings(0.1))
    key = Key.generate("ACME <b>", shape=what_a_key_states(marked)["shape"], bits=8, seed=bytes(32))
    train(marked, tmp_path / "marked", key=key)
    train(make(settings(0.0)), tmp_path / "clean")
    assert "A page about 2 runs belongs to none of them" in refused(
        "report", str(tmp_path / "marked"), str(tmp_path / "clean")
    )
    assert not (tmp_path / "marked" / "report.html").exists()
    out = tmp_path / "both.html"
    assert main(["report", str(tmp_path / "marked"), str(tmp_path / "clean"), "--out", str(out)]) == 0
    assert str(out) in capsys.readouterr().out
    text = out.read_text("utf-8")
    assert key.commitment in section(text, "marked")
    assert "ACME &lt;b&gt;" in text
    assert "no key" in section(text, "clean")
    assert "<code>federation.rounds</code>" in text
    assert section(text, "curves").count("<svg") == 1
    model = tmp_path / "clean" / "client.safetensors"
    assert f"{model} is a file: give the folder of a run or of results, such as {model.parent}." in refused(
        "report", str(model)
    ), "it was: .../client.safetensors is not a directory; make it first"
    assert main(["report", str(tmp_path / "clean")]) == 0
    assert "<svg" in (tmp_path / "clean" / "report.html").read_text("utf-8")


def test_results_without_their_package_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "GROUP", "sigil.commands that nobody brings")
    assert main(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"sigil: {tmp_path} is not a finished run. The paper's tables and figures come with a package of "
        "their own; install it with: pip install sigil-reproduction\n"
    )
    assert not list(tmp_path.iterdir())
