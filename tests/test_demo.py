"""The demonstration keeps its promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sigil.cli.main import main
from sigil.keys.key import Key


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
    assert "demonstration seal: worth nothing outside" in page
    read = re.findall(r"<th>mark, on ([a-z ]+)</th><td>([\d.]+) %, p = 10<sup>(-?[\d.]+)</sup>", page)
    assert [kind for kind, _, _ in read] == ["noise", "real inputs"] * 2
    assert min(float(exponent) for _, _, exponent in read[:2]) < -9
    assert min(float(exponent) for _, _, exponent in read[2:]) > -6.5
    for name in ("marked.html", "clean.html"):
        assert f'href="{name}"' in page
        assert "demonstration seal: worth nothing outside" in (folder / name).read_text("utf-8")
    assert not re.search(r"https?://", re.sub(r"base64,[A-Za-z0-9+/=]+", "", page))
    key = Key.load(folder / "owner.key")
    assert (key.kind, key.fields.cut, key.fields.input_shape) == ("stamped", "layer3", (1, 8, 8))
    assert key.commitment in page
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "owner.key":
            assert key._seed not in path.read_bytes()
            assert key._seed.hex().encode() not in path.read_bytes()


def test_a_key_that_is_not_of_a_demonstration_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Key.generate("ACME", shape=(32, 2, 2), bits=64).save(tmp_path / "owner.key")
    before = (tmp_path / "owner.key").read_bytes()
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert "not the stamped key of a demonstration" in capsys.readouterr().err
    assert (tmp_path / "owner.key").read_bytes() == before
