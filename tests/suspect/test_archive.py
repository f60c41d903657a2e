"""Zip archives: read as PyTorch reads them, nothing twice, nothing larger than the file or than unpacked."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

from sigil.errors import SuspectError
from sigil.suspect import archive as suspect_archive
from sigil.suspect.archive import Archive


def opened(path: Path) -> Archive:
    return Archive(memoryview(path.read_bytes()), path)


def write(path: Path, entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path


def test_entries_are_read_below_their_common_folder(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pt", {"model/data.pkl": b"abc", "model/data/0": b"12345"})
    archive = opened(path)
    assert archive.names() == ["data.pkl", "data/0"]
    assert archive.read("data/0") == b"12345"
    with pytest.raises(SuspectError, match="limit"):
        archive.read("data/0", limit=4)
    with pytest.raises(SuspectError, match="no entry"):
        archive.read("data/1")
    flat = write(tmp_path / "b.pt2", {"version": b"8", "extra/a": b""})
    assert opened(flat).names() == ["version", "extra/a"]


def test_a_zip_bomb_is_refused_unopened(tmp_path: Path) -> None:
    bomb = write(tmp_path / "bomb.pt", {"a/data.pkl": bytes(10**7)}, zipfile.ZIP_DEFLATED)
    assert bomb.stat().st_size < 10**5
    with pytest.raises(SuspectError, match="compressed"):
        opened(bomb).read("data.pkl")


def test_an_entry_that_claims_more_than_the_file_has_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pt", {"a/data.pkl": bytes(100)})
    content = bytearray(path.read_bytes())
    entry = content.index(b"PK\x01\x02")  # the central directory holds the sizes that count
    content[entry + 20 : entry + 28] = (2 * (10**9).to_bytes(4, "little"))[:8]
    path.write_bytes(content)
    with pytest.raises(SuspectError, match="more than the file has"):
        opened(path)


def test_two_entries_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("a/data.pkl", b"harmless")
        archive.writestr("a/data.pkl", b"something else")
    with pytest.raises(SuspectError, match="two entries"):
        opened(path)


def test_too_many_entries_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.pt", {f"a/{index}": b"" for index in range(11)})
    monkeypatch.setattr(suspect_archive, "MAX_ENTRIES", 10)
    with pytest.raises(SuspectError, match="entries"):
        opened(path)


def test_a_changed_byte_in_a_read_entry_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pt", {"a/data.pkl": b"abcdefgh"})
    path.write_bytes(path.read_bytes().replace(b"abcdefgh", b"abcdeFgh"))
    archive = opened(path)
    assert archive.read("data.pkl") == b"abcdeFgh"
    assert archive.changed == ["data.pkl"]


@pytest.mark.parametrize("how", ["script", "trace"])
def test_torchscript_is_refused_as_code(tmp_path: Path, how: str) -> None:
    path = tmp_path / "scripted.pt"
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if how == "script":
            torch.jit.script(module).save(str(path))
        else:
            torch.jit.trace(module, torch.zeros(1, 3, 8, 8)).save(str(path))
    with pytest.raises(SuspectError, match="TorchScript archive, which holds code"):
        opened(path)
