"""The demonstration keeps its promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sigil.cli.main import main
from sigil.key import Key


def test_the_demonstration_proves_the_marked_model_and_not_the_clean_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "demo"
    assert main(["demo", "--out", str(folder)]) == 0
    said = capsys.readouterr().out
    assert str(folder / "report.html") in said
    marked = re.search(r"marked: accuracy ([\d.]+) %.*?carries the mark.*?in ([\d.]+)%", said)
    clean = re.search(r"clean: accuracy ([\d.]+) %.*?not shown to carry", said)
    assert marked is not None
    assert clean is not None
    assert float(marked[1]) >= 95
    assert float(clean[1]) >= 95
    assert float(marked[2]) >= 95

    page = (folder / "report.html").read_text("utf-8")
    assert "ownership proven" in page
    assert "not proven" in page
    exponent = re.search(r"p-value</th><td>10<sup>(-?[\d.]+)</sup>", page)
    assert exponent is not None
    assert float(exponent[1]) < -9
    for name in ("marked.html", "clean.html"):
        assert f'href="{name}"' in page
        assert (folder / name).exists()
    assert not re.search(r"https?://", re.sub(r"base64,[A-Za-z0-9+/=]+", "", page))
    key = Key.load(folder / "owner.key")
    assert key.commitment in page
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "owner.key":
            assert key._seed not in path.read_bytes()
            assert key._seed.hex().encode() not in path.read_bytes()
