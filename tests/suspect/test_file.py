"""The file of a suspect: what is refused before anything in it is interpreted."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from sigil.errors import SuspectError
from sigil.keys.key import Key
from sigil.suspect import file as suspect_file
from sigil.suspect.file import LEGACY_TORCH, SuspectFile

ONNX = b"\x08\x07" + bytes(20)
SAFETENSORS = (2).to_bytes(8, "little") + b"{}"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.safetensors", SAFETENSORS, "safetensors"),
        ("a.weights", SAFETENSORS, "safetensors"),
        ("a.pt", b"PK\x03\x04" + bytes(40), "archive"),
        ("a", LEGACY_TORCH + bytes(40), "torch pickle"),
        ("a.pt", b"\x80\x04K\x01.", "bare pickle"),
        ("a.onnx", ONNX, "onnx"),
        ("a.bin", ONNX, "onnx"),
    ],
)
def test_the_content_decides_the_format(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    file = SuspectFile(path)
    assert file.format == expected
    assert file.sha256 == hashlib.sha256(content).hexdigest()
    assert file.read() == content


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.safetensors", b"\x80\x04K\x01."),
        ("a.safetensors", b"PK\x03\x04" + bytes(40)),
        ("a.onnx", LEGACY_TORCH),
        ("a.onnx", SAFETENSORS),
    ],
)
def test_a_name_that_promises_another_content_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(SuspectError, match="renamed"):
        SuspectFile(path)


def test_a_safetensors_header_longer_than_the_file_is_no_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes((3).to_bytes(8, "little") + b"{}")
    with pytest.raises(SuspectError, match="no format"):
        SuspectFile(path)


def test_an_unknown_content_names_what_can_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "weights.h5"
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    with pytest.raises(SuspectError, match=r"safetensors.*state dict.*ONNX"):
        SuspectFile(path)


def test_a_key_in_the_suspects_place_is_named(tmp_path: Path) -> None:
    path = tmp_path / "owner.key"
    Key.generate("Ada", shape=(4, 2, 2), bits=32, seed=bytes(32)).save(path)
    with pytest.raises(SuspectError, match=r"owner\.key is a file of Sigil's own: give the file that holds"):
        SuspectFile(path)


def test_what_is_no_readable_file_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pt"
    empty.touch()
    pipe = tmp_path / "pipe.pt"
    os.mkfifo(pipe)
    for path, why in [
        (tmp_path / "missing.pt", "No such file"),
        (tmp_path, "not a file"),
        (empty, "empty"),
        (pipe, "not a file"),
        (tmp_path / "a\0b", "not the name of a file"),
    ]:
        with pytest.raises(SuspectError, match=why):
            SuspectFile(path)


def test_a_file_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(SAFETENSORS)
    monkeypatch.setattr(suspect_file, "MAX_FILE_BYTES", len(SAFETENSORS))
    SuspectFile(path)
    monkeypatch.setattr(suspect_file, "MAX_FILE_BYTES", len(SAFETENSORS) - 1)
    with pytest.raises(SuspectError, match="limit"):
        SuspectFile(path)


def test_a_symbolic_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(SAFETENSORS)
    link = tmp_path / "link.safetensors"
    link.symlink_to("a.safetensors")
    assert SuspectFile(link).format == "safetensors"


def test_a_file_that_changes_while_it_is_copied_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(SAFETENSORS)
    read = os.read

    def append_then_read(source: int, length: int) -> bytes:
        with path.open("ab") as file:
            file.write(b"more")
        return read(source, length)

    monkeypatch.setattr(os, "read", append_then_read)
    with pytest.raises(SuspectError, match="changed"):
        SuspectFile(path)

    def truncate_then_read(source: int, length: int) -> bytes:
        os.truncate(path, 0)
        return read(source, length)

    monkeypatch.setattr(os, "read", truncate_then_read)
    with pytest.raises(SuspectError, match="changed"):
        SuspectFile(path)


def test_a_file_that_is_swapped_after_it_was_copied_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(SAFETENSORS)
    with SuspectFile(path) as file:
        path.write_bytes(b"something else")
        path.unlink()
        assert file.read() == SAFETENSORS
        assert os.pread(file.descriptor(), 100, 0) == SAFETENSORS
        assert file.sha256 == hashlib.sha256(SAFETENSORS).hexdigest()


def test_a_pipe_that_takes_the_place_of_the_file_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(SAFETENSORS)
    open_ = os.open

    def swap_then_open(name: object, flags: int, *rest: int) -> int:
        if name == path:
            path.unlink()
            os.mkfifo(path)
        return open_(name, flags, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", swap_then_open)
    with pytest.raises(SuspectError, match="not a file"):
        SuspectFile(path)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/stdin", "/proc/self/mem"])
def test_devices_are_not_read(device: str) -> None:
    with pytest.raises(SuspectError, match=r"not a file|empty"):
        SuspectFile(device)


def test_a_huge_file_without_content_is_refused_before_it_is_copied(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    for size in (1 << 42, suspect_file.MAX_FILE_BYTES):
        with path.open("wb") as file:
            file.truncate(size)
        with pytest.raises(SuspectError, match=r"limit|no format"):
            SuspectFile(path)


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(SAFETENSORS)

    def full(**_: object) -> object:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(suspect_file.tempfile, "TemporaryFile", full)
    with pytest.raises(SuspectError, match="No space left on device"):
        SuspectFile(path)
