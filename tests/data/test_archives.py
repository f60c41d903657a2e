from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from sigil.data import archives
from sigil.data.archives import unpack
from sigil.errors import DataError


def tar(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = target
    info.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    return info


def zipped(path: Path, members: dict[str, bytes], *, mode: int = 0) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, content)
    return path


def test_files_and_directories_are_written(tmp_path: Path) -> None:
    archive = tar(
        tmp_path / "a.tar.gz",
        (member("set", tarfile.DIRTYPE), b""),
        (member("set/one"), b"1"),
    )
    unpack(archive, tmp_path / "tar")
    assert (tmp_path / "tar" / "set" / "one").read_bytes() == b"1"
    unpack(zipped(tmp_path / "a.zip", {"set/": b"", "set/two": b"22"}), tmp_path / "zip")
    assert (tmp_path / "zip" / "set" / "two").read_bytes() == b"22"


@pytest.mark.parametrize("name", ["../out", "set/../../out", "/sigil-out", "..\\out"])
def test_paths_that_lead_outside_are_refused(tmp_path: Path, name: str) -> None:
    into = tmp_path / "deep" / "target"
    for archive in (
        tar(tmp_path / "a.tar.gz", (member(name), b"x")),
        zipped(tmp_path / "a.zip", {name: b"x"}),
    ):
        with pytest.raises(DataError, match="lies outside the target"):
            unpack(archive, into)
    assert [path for path in tmp_path.rglob("*out*") if path.is_file()] == []
    assert not Path("/sigil-out").exists()


@pytest.mark.parametrize(
    "info",
    [
        member("link", tarfile.SYMTYPE, "/etc/passwd"),
        member("link", tarfile.SYMTYPE, "inside"),
        member("link", tarfile.LNKTYPE, "../elsewhere"),
        member("device", tarfile.CHRTYPE),
        member("pipe", tarfile.FIFOTYPE),
    ],
)
def test_links_and_devices_are_refused(tmp_path: Path, info: tarfile.TarInfo) -> None:
    with pytest.raises(DataError, match="a link or a device"):
        unpack(tar(tmp_path / "a.tar.gz", (info, b"")), tmp_path / "into")
    assert not (tmp_path / "into" / info.name).exists()


def test_links_in_zip_archives_are_refused(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", {"link": b"/etc/passwd"}, mode=stat.S_IFLNK | 0o777)
    with pytest.raises(DataError, match="a link or a device"):
        unpack(archive, tmp_path / "into")


@pytest.mark.parametrize(("limit", "value"), [("MAX_BYTES", 10**6), ("MAX_MEMBERS", 2)])
def test_size_and_number_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(archives, limit, value)
    zeros = bytes(400_000)
    for archive in (
        tar(tmp_path / "a.tar.gz", *((member(f"{n}"), zeros) for n in range(3))),
        zipped(tmp_path / "a.zip", {f"{n}": zeros for n in range(3)}),
    ):
        with pytest.raises(DataError, match="it holds more than"):
            unpack(archive, tmp_path / "into")


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
def test_damaged_archives_are_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"no archive at all")
    with pytest.raises(DataError, match=name):
        unpack(path, tmp_path / "into")
    if name.endswith("zip"):
        zipped(path, {"one": bytes(range(256)) * 50})
    else:
        tar(path, (member("one"), bytes(range(256)) * 50))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=name):
        unpack(path, tmp_path / "into")
