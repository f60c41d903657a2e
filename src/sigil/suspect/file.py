"""The file of a suspect before anything in it is interpreted: a private copy, its format, its hash.

The file is read once. What is hashed is what is copied, and everything else is done with the copy:
who swaps or rewrites the file meanwhile changes nothing.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, Self

from sigil.errors import SuspectError
from sigil.suspect.tensors import MAX_HEADER_BYTES

Format = Literal["safetensors", "archive", "torch pickle", "bare pickle", "onnx", "numbers"]

MAX_FILE_BYTES = 64 * 1024**3
_PIECE_BYTES = 1 << 20

# How torch.save began its files before they became zip archives: a pickle of one magic number.
LEGACY_TORCH = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
_ZIP = b"PK\x03\x04"
# Field 1 of an ONNX model, its IR version, as most writers put it first; and the field that is its graph.
_IR_VERSION = b"\x08"
_GRAPH = 7
_MAX_GROUPS = 100
# How the header of safetensors may begin: a JSON object, with or without space before it.
_JSON = (b"{", b" ", b"\t", b"\n", b"\r")

# What people give instead of a model, by where it begins and with which bytes.
_OTHERS = (
    (
        0,
        b"version https://git-lfs",
        "a Git LFS pointer, which names the model and does not hold it: run git lfs pull",
    ),
    (0, b"\x1f\x8b", "compressed with gzip: unpack it first"),
    (0, b"BZh", "compressed with bzip2: unpack it first"),
    (0, b"\xfd7zXZ\x00", "compressed with xz: unpack it first"),
    (0, b"\x28\xb5\x2f\xfd", "compressed with zstd: unpack it first"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it first"),
    (0, b"Rar!", "a RAR archive: unpack it first"),
    (257, b"ustar", "a tar archive: unpack it first"),
    (0, b"%PDF", "a PDF document"),
    (0, b"\x89HDF", "an HDF5 file, as Keras writes it"),
    (0, b"GGUF", "a GGUF file of a language model"),
    (0, b"\x93NUMPY", "a single array of NumPy"),
    (4, b"TFL3", "a TensorFlow Lite model"),
    (4, b"ORTM", "a model in the format of onnxruntime's own: give the ONNX model that it was made from"),
    (0, b'{"format":"sigil-', "a file of Sigil's own: give the file that holds the model"),
)
_HTML = (b"<!doctype html", b"<html", b"<head", b"<?xml", b"<!--")
_OPENED = "safetensors, a state dict of torch.save, an exported program (.pt2) or ONNX"

# Names that promise a format without Python objects: a pickle under one is no honest mistake.
_PROMISES: dict[str, Format] = {".safetensors": "safetensors", ".onnx": "onnx"}


class SuspectFile:
    """A private copy of a regular file of acceptable size, its format by content and its SHA-256.

    The copy is an unlinked temporary file, which nobody else can open and which disappears with
    :meth:`close`. A file that is ``named`` by another one is taken as mere numbers, and no link is followed
    to it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        time_limit: float = math.inf,
        named: bool = False,
        most: int | None = None,
    ) -> None:
        self._deadline = time.monotonic() + time_limit
        self._named, self._most = named, MAX_FILE_BYTES if most is None else most
        self.path = Path(path)
        try:
            with self._opened() as source:
                before = os.fstat(source.fileno())
                self.size = before.st_size
                self._check_size()
                self.format: Format = "numbers" if named else self._sniff(source.fileno())
                self._copy = tempfile.TemporaryFile(prefix="sigil-")  # noqa: SIM115
                try:
                    self.sha256 = self._fill(source.fileno())
                    if _signature(os.fstat(source.fileno())) != _signature(before):
                        raise self._changed()
                except BaseException:
                    self._copy.close()
                    raise
        except OSError as error:
            raise SuspectError(f"{self.path} cannot be read: {error.strerror}.") from error
        except ValueError as error:  # a null byte in the name
            raise SuspectError(f"{str(path)!r} is not the name of a file.") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the copy back."""
        self._copy.close()

    def descriptor(self) -> int:
        """A new file descriptor of the copy, for reading only where the system can say so."""
        try:
            return os.open(f"/proc/self/fd/{self._copy.fileno()}", os.O_RDONLY)
        except OSError:
            return os.dup(self._copy.fileno())

    def read(self) -> bytes:
        """The whole copy."""
        self._copy.seek(0)
        return self._copy.read()

    def _opened(self) -> BinaryIO:
        """The file itself; neither a pipe nor a device is opened, also not if it took the file's place."""
        if not stat.S_ISREG(self.path.stat(follow_symlinks=not self._named).st_mode):
            raise self._no_file()
        flags = os.O_RDONLY
        wanted = ("O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "O_BINARY")  # each on some systems only
        for name in (*wanted, "O_NOFOLLOW") if self._named else wanted:
            flags |= getattr(os, name, 0)
        source = os.fdopen(os.open(self.path, flags), "rb", buffering=0)
        if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
            source.close()
            raise self._no_file()
        return source

    def _no_file(self) -> SuspectError:
        return SuspectError(f"{self.path} is not a file: give the file that holds the model.")

    def _changed(self) -> SuspectError:
        return SuspectError(
            f"{self.path} was changed while it was being read: copy it to a place where "
            "nobody else writes and try again."
        )

    def _check_size(self) -> None:
        if self.size == 0:
            raise SuspectError(f"{self.path} is empty: give the file that holds the model.")
        if self.size > self._most:
            raise SuspectError(f"{self.path} has {self.size:,} bytes, more than the limit of {self._most:,}.")

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise SuspectError(f"{self.path} was not even read within the time limit (--time-limit).")

    def _fill(self, source: int) -> str:
        """Copy the file, as long as it was when it was opened; returns the hash of the copied bytes."""
        digest, left = hashlib.sha256(), self.size
        while left:
            self._check_time()
            piece = os.read(source, min(left, _PIECE_BYTES))
            if not piece:
                raise self._changed()
            digest.update(piece)
            self._copy.write(piece)
            left -= len(piece)
        self._copy.flush()
        return digest.hexdigest()

    def _sniff(self, source: int) -> Format:
        """The format that the content shows, which must be the one that the name promises."""
        start = _read_at(source, 0, 512)
        suffix = self.path.suffix.lower()
        formats: list[Format] = []
        announced = int.from_bytes(start[:8], "little")
        if start[8:9] in _JSON and announced <= self.size - 8:
            formats.append("safetensors")
        elif start.startswith(_ZIP):
            formats.append("archive")
        elif start.startswith(LEGACY_TORCH):
            formats.append("torch pickle")
        elif len(start) > 1 and start[0] == 0x80 and start[1] <= 5:
            formats.append("bare pickle")
        # The fields of an ONNX model may come in any order, and unknown ones may look like anything.
        if self._has_graph(source) or (not formats and start.startswith(_IR_VERSION)):
            formats.append("onnx")
        if not formats:
            raise SuspectError(f"{self.path} is {_described(start, announced, self.size)}")
        promised = _PROMISES.get(suffix)
        if len(formats) == 1 and promised in (None, *formats):
            return formats[0]
        if promised in formats:
            return promised
        if len(formats) > 1:
            raise SuspectError(
                f"{self.path} can be read as {' and as '.join(_WORDS[each] for each in formats)}, and "
                "nothing of it was loaded: name a copy by the format that it is used as (.onnx, "
                ".safetensors)."
            )
        raise SuspectError(
            f"{self.path} is named {suffix} but holds {_WORDS[formats[0]]}: it was renamed or is "
            "damaged, and nothing of it was loaded."
        )

    def _has_graph(self, source: int) -> bool:
        """Whether the file is fields of protobuf from its first byte to its last, one of them a graph."""
        fields = _Fields(source, self.size)
        graph, groups, count = False, 0, 0
        try:
            while fields.position < self.size:
                count += 1
                if count % 10_000 == 0:
                    self._check_time()
                tag = fields.number()
                number, kind = tag >> 3, tag & 7
                if number == 0 or groups > _MAX_GROUPS:
                    return False
                if kind == 0:
                    fields.number()
                elif kind in (1, 5):
                    fields.position += 8 if kind == 1 else 4
                elif kind == 2:
                    length = fields.number()
                    fields.position += length
                    graph |= number == _GRAPH and not groups
                elif kind in (3, 4):
                    groups += 1 if kind == 3 else -1
                if kind > 5 or groups < 0:
                    return False
        except ValueError:
            return False
        return graph and not groups and fields.position == self.size


class _Fields:
    """Numbers of protobuf in a file, from ``position`` on."""

    def __init__(self, source: int, size: int) -> None:
        self.position = 0
        self._source, self._size = source, size
        self._start, self._piece = 0, b""

    def number(self) -> int:
        """The number at the position, which moves behind it; ValueError if there is none."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a number without an end")

    def _byte(self) -> int:
        if not self._start <= self.position < self._start + len(self._piece):
            self._start = self.position
            self._piece = (
                _read_at(self._source, self.position, 1 << 16) if self.position < self._size else b""
            )
            if not self._piece:
                raise ValueError("beyond the file")
        self.position += 1
        return self._piece[self.position - 1 - self._start]


def _described(start: bytes, announced: int, size: int) -> str:
    """What a file is that is no model, and what to give instead."""
    for place, sign, what in _OTHERS:
        if start[place:].startswith(sign):
            return f"{what}." if ": " in what else f"{what}: give {_OPENED}."
    if start[8:9] in _JSON and announced <= MAX_HEADER_BYTES:
        return (
            f"truncated: {announced + 8 - size:,} bytes missing of its safetensors header alone, or in no "
            "format that can be opened: copy or download it again."
        )
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.lower().startswith(_HTML):
        return (
            "a web page (HTML), perhaps one that asks to log in or says what went wrong: download the model "
            "itself."
        )
    return f"damaged or in no format that can be opened: give {_OPENED}."


_WORDS: dict[Format, str] = {
    "safetensors": "safetensors",
    "archive": "a zip archive",
    "torch pickle": "a Python pickle",
    "bare pickle": "a Python pickle",
    "onnx": "an ONNX graph",
    "numbers": "numbers",
}


def _signature(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _read_at(source: int, place: int, size: int) -> bytes:
    """Bytes of an open file, which stays where it was."""
    with open(source, "rb", buffering=0, closefd=False) as file:
        before = file.tell()
        file.seek(place)
        found = file.read(size)
        file.seek(before)
    return found
