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

Format = Literal["safetensors", "archive", "torch pickle", "bare pickle", "onnx"]

MAX_FILE_BYTES = 64 * 1024**3
_PIECE_BYTES = 1 << 20

# How torch.save began its files before they became zip archives: a pickle of one magic number.
LEGACY_TORCH = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
_ZIP = b"PK\x03\x04"
# Field 1 of an ONNX model, its IR version, as every writer puts it first.
_ONNX = b"\x08"

# Names that promise a format without Python objects: a pickle under one is no honest mistake.
_PROMISES: dict[str, Format] = {".safetensors": "safetensors", ".onnx": "onnx"}


class SuspectFile:
    """A private copy of a regular file of acceptable size, its format by content and its SHA-256.

    The copy has no name, so that nobody else can open it, and disappears with :meth:`close`.
    """

    def __init__(self, path: str | os.PathLike[str], *, time_limit: float = math.inf) -> None:
        self._deadline = time.monotonic() + time_limit
        self.path = Path(path)
        try:
            with self._opened() as source:
                before = os.fstat(source.fileno())
                self.size = before.st_size
                self._check_size()
                self.format = self._sniff(os.pread(source.fileno(), 64, 0))
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
        if not stat.S_ISREG(self.path.stat().st_mode):
            raise self._no_file()
        flags = os.O_RDONLY
        for name in ("O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "O_BINARY"):  # each on some systems only
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
        if self.size > MAX_FILE_BYTES:
            raise SuspectError(
                f"{self.path} has {self.size:,} bytes, more than the limit of {MAX_FILE_BYTES:,}."
            )

    def _fill(self, source: int) -> str:
        """Copy the file, as long as it was when it was opened; returns the hash of the copied bytes."""
        digest, left = hashlib.sha256(), self.size
        while left:
            if time.monotonic() > self._deadline:
                raise SuspectError(f"{self.path} was not even read within the time limit (--time-limit).")
            piece = os.read(source, min(left, _PIECE_BYTES))
            if not piece:
                raise self._changed()
            digest.update(piece)
            self._copy.write(piece)
            left -= len(piece)
        self._copy.flush()
        return digest.hexdigest()

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
        if found is None and start.startswith(b'{"format":"sigil-'):
            raise SuspectError(f"{self.path} is a file of Sigil's own: give the file that holds the model.")
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
