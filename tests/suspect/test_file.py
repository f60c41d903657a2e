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


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n",
            r"Git LFS pointer.*git lfs pull",
        ),
        (b"<!DOCTYPE html>\n<html><body>Log in</body></html>", r"web page \(HTML\).*download the model"),
        (b"\n  <html>", r"web page \(HTML\)"),
        (b"\x1f\x8b\x08\x00" + bytes(40), "compressed with gzip: unpack it first"),
        (b"\x28\xb5\x2f\xfd" + bytes(40), "compressed with zstd"),
        (bytes(257) + b"ustar" + bytes(300), "a tar archive: unpack it"),
        (b"\x89HDF\r\n\x1a\n" + bytes(40), "HDF5 file, as Keras"),
        (b"GGUF" + bytes(40), "GGUF"),
        (b"\x93NUMPY" + bytes(40), "single array of NumPy"),
        (b"\x1c\0\0\0TFL3" + bytes(40), "TensorFlow Lite"),
        (b"\x1c\0\0\0ORTM" + bytes(40), "onnxruntime's own"),
        (b"%PDF-1.7" + bytes(40), "PDF"),
        (
            (900).to_bytes(8, "little") + b'{"a": ' + bytes(86),
            "truncated: 808 bytes missing of its safetensors",
        ),
    ],
)
@pytest.mark.parametrize("name", ["a.safetensors", "a.pt", "a.onnx", "a"])
def test_what_is_no_model_is_called_what_it_is(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(SuspectError, match=words) as caught:
        SuspectFile(path)
    assert str(caught.value).startswith(f"{path} is ")


# Fields of ONNX in another order, and unknown ones that look like the beginning of something else.
GRAPH = b"\x3a\x00"


@pytest.mark.parametrize(
    "content",
    [
        GRAPH + b"\x08\x07",
        b"\x12\x01a" + GRAPH,
        b"\x42\x02\x10\x11" + GRAPH,
        b"\x80\x02\x01" + GRAPH,
        b"\x79" + bytes(7) + b"{" + GRAPH + b"\x12\x7d" + bytes(125),
        b"\x7b\x7b\x7c\x7c" + GRAPH,
    ],
    ids=["last", "name", "opset", "like a pickle", "like safetensors", "groups"],
)
def test_the_fields_of_onnx_may_come_in_any_order(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.onnx"
    path.write_bytes(content)
    assert SuspectFile(path).format == "onnx"


def test_a_file_of_two_formats_is_read_as_its_name_says_or_not_at_all(tmp_path: Path) -> None:
    content = b"\x79" + bytes(7) + b"{" + GRAPH + b"\x12\x7d" + bytes(125)
    for name in ("a.onnx", "a.safetensors"):
        (tmp_path / name).write_bytes(content)
        assert SuspectFile(tmp_path / name).format == name.partition(".")[2]
    (tmp_path / "a.bin").write_bytes(content)
    with pytest.raises(SuspectError, match="can be read as safetensors and as an ONNX graph"):
        SuspectFile(tmp_path / "a.bin")


@pytest.mark.parametrize(
    "content",
    [b"\x12\x01", b"\x3a\x05ab", b"\x3a\x00\x00", b"\x3a\x00\x0c", b"\xff" * 30, b"\x7b" * 300 + GRAPH],
)
def test_what_is_no_protobuf_with_a_graph_is_no_onnx(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    with pytest.raises(SuspectError, match="no format"):
        SuspectFile(path)


def test_fields_without_end_keep_their_time_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    path.write_bytes(b"\x28\x01" * 20_000)
    with pytest.raises(SuspectError, match="not even read within the time limit"):
        SuspectFile(path, time_limit=0.0)


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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.safetensors"
    path.write_bytes(SAFETENSORS)
    return path


def test_a_file_that_changes_while_it_is_copied_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_file_that_is_swapped_after_it_was_copied_changes_nothing(path: Path) -> None:
    with SuspectFile(path) as file:
        path.write_bytes(b"something else")
        path.unlink()
        assert file.read() == SAFETENSORS
        assert os.pread(file.descriptor(), 100, 0) == SAFETENSORS
        assert file.sha256 == hashlib.sha256(SAFETENSORS).hexdigest()


def test_a_pipe_that_takes_the_place_of_the_file_is_not_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
