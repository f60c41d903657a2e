"""The file of a suspect before anything in it is interpreted: what it is, its format, its hash."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Literal

from sigil.errors import SuspectError

Format = Literal["safetensors", "archive", "torch pickle", "bare pickle", "onnx"]

MAX_FILE_BYTES = 4 * 1024**3

# How torch.save began its files before they became zip archives: a pickle of one magic number.
LEGACY_TORCH = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
_ZIP = b"PK\x03\x04"
# Field 1 of an ONNX model, its IR version, as every writer puts it first.
_ONNX = b"\x08"

# Names that promise a format without Python objects: a pickle under one is no honest mistake.
_PROMISES: dict[str, Format] = {".safetensors": "safetensors", ".onnx": "onnx"}


class SuspectFile:
    """A regular file of acceptable size, its format by content and the SHA-256 of its bytes.

    :meth:`unchanged` is asked once the file has been read: a file that was replaced in between is
    not the one that was hashed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            status = self.path.stat()
        except OSError as error:
            raise SuspectError(f"{self.path} cannot be read: {error.strerror}.") from error
        except ValueError as error:  # a null byte in the name
            raise SuspectError(f"{str(path)!r} is not the name of a file.") from error
        if not stat.S_ISREG(status.st_mode):
            raise SuspectError(f"{self.path} is not a file: give the file that holds the model.")
        self.size = status.st_size
        if self.size == 0:
            raise SuspectError(f"{self.path} is empty: give the file that holds the model.")
        if self.size > MAX_FILE_BYTES:
            raise SuspectError(
                f"{self.path} has {self.size:,} bytes, more than the limit of {MAX_FILE_BYTES:,}."
            )
        self._signature = _signature(status)
        try:
            with self.path.open("rb") as file:
                self.format = self._sniff(file.read(64))
                file.seek(0)
                self.sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise SuspectError(f"{self.path} cannot be read: {error.strerror}.") from error

    def read(self) -> bytes:
        """The whole file."""
        try:
            with self.path.open("rb") as file:
                return file.read(self.size)
        except OSError as error:
            raise SuspectError(f"{self.path} cannot be read: {error.strerror}.") from error

    def unchanged(self) -> None:
        """Raise if the file on disk is no longer the one that was hashed."""
        try:
            same = _signature(self.path.stat()) == self._signature
        except OSError:
            same = False
        if not same:
            raise SuspectError(
                f"{self.path} was changed while it was being read: copy it to a place where "
                "nobody else writes and try again."
            )

    def _sniff(self, start: bytes) -> Format:
        """The format that the first bytes show, which must be the one that the name promises."""
        suffix = self.path.suffix.lower()
        found: Format | None = None
        if start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= self.size - 8:
            found = "safetensors"
        elif start.startswith(_ZIP):
            found = "archive"
        elif start.startswith(LEGACY_TORCH):
            found = "torch pickle"
        elif len(start) > 1 and start[0] == 0x80 and start[1] <= 5:
            found = "bare pickle"
        elif start.startswith(_ONNX):
            found = "onnx"
        if found is None:
            raise SuspectError(
                f"{self.path} is damaged or in no format that can be opened: give safetensors, a "
                "state dict of torch.save, an exported program (.pt2) or ONNX."
            )
        if _PROMISES.get(suffix, found) != found:
            raise SuspectError(
                f"{self.path} is named {suffix} but holds {_WORDS[found]}: it was renamed or is "
                "damaged, and nothing of it was loaded."
            )
        return found


_WORDS: dict[Format, str] = {
    "safetensors": "safetensors",
    "archive": "a zip archive",
    "torch pickle": "a Python pickle",
    "bare pickle": "a Python pickle",
    "onnx": "something else",
}


def _signature(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
