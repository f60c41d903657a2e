"""Files that appear whole or not at all and never in the place of something else; digests, and locks.

Every file that Sigil writes goes through :func:`draft` or :func:`write`: into a draft in the same folder,
flushed to the disk, then moved to its name in one step. A name that is taken is refused, unless the caller
allows it to be replaced: always, or only if the file there carries a :class:`Magic` by which Sigil knows its
own. A link is replaced itself; what it points to stays as it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any

from sigil.errors import OutputError, SigilError, TrainingError, reason

if TYPE_CHECKING:
    from torch import Tensor

# Each exists on some systems only: the first on Linux and macOS, the second on Windows.
fcntl: Any
msvcrt: Any
try:
    import fcntl
except ImportError:
    fcntl = None
try:
    import msvcrt
except ImportError:
    msvcrt = None

AnyPath = str | os.PathLike[str]

_HEAD_BYTES, _TAIL_BYTES = 4096, 65536
_DRAFT = f".sigil-{'[0-9a-f]' * 16}.tmp"
_STALE_SECONDS = 24 * 3600
_LONGEST_NAME = 255


@dataclass(frozen=True)
class Magic:
    """How Sigil knows a file that it wrote: by its first bytes, and by others further on.

    ``head`` must be within the first 4 KB and ``tail`` within the last 64 KB; an empty one always is.
    """

    start: bytes
    head: bytes = b""
    tail: bytes = b""

    def matches(self, path: AnyPath) -> bool:
        """Whether there is a regular file at `path` that begins and ends like this."""
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                return False
            with open(path, "rb") as file:
                first = file.read(_HEAD_BYTES)
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
                last = file.read(_TAIL_BYTES)
        except OSError:
            return False
        return first.startswith(self.start) and self.head in first and self.tail in last


PAGE = Magic(b"<!DOCTYPE html>", head=b'<meta name="generator" content="Sigil">')
"""What every page begins with that Sigil writes for people."""

PICTURES = {
    ".png": Magic(b"\x89PNG\r\n\x1a\n", head=b"Software\0Sigil"),
    ".svg": Magic(b"<?xml", head=b"<dc:title>Sigil</dc:title>"),
    ".pdf": Magic(b"%PDF", tail=b"/Creator (Sigil)"),
}


def picture_magic(path: AnyPath) -> Magic:
    """What a picture of this name begins with, if matplotlib was given :func:`picture_metadata`."""
    return PICTURES.get(Path(path).suffix.lower(), PICTURES[".png"])


def picture_metadata(path: AnyPath) -> dict[str, str]:
    """What matplotlib must write into a picture so that it is known as one of Sigil's."""
    return {"Software" if Path(path).suffix.lower() == ".png" else "Creator": "Sigil"}


def write(
    path: AnyPath,
    content: bytes | str,
    *,
    replace: bool | Magic = False,
    mode: int = 0o666,
    raises: type[SigilError] = OutputError,
) -> None:
    """Write a file that appears at `path` whole or not at all; text is written as UTF-8.

    A file that is there is refused unless `replace` is true or what the file is known by. `mode` is narrowed
    by the umask. Every failure is an error of the class `raises`, with one sentence.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        with draft(path, replace=replace, mode=mode) as drafted, drafted.open("r+b") as file:
            file.write(data)
    except (OSError, ValueError) as error:
        raise raises(f"{os.fspath(path)} cannot be written: {refusal(error)}.") from None


@contextlib.contextmanager
def draft(path: AnyPath, *, replace: bool | Magic = False, mode: int = 0o666) -> Iterator[Path]:
    """Give an empty file beside `path` to write to; at the end it is flushed and moved to `path`.

    If anything fails, `path` is as it was and the draft is gone. A name that is taken raises
    `FileExistsError`, unless `replace` is true or what the file there is known by.
    """
    target = Path(path)
    if not target.name:
        raise IsADirectoryError(21, "Is a directory", str(target))
    drafted = target.parent / f".sigil-{secrets.token_hex(8)}.tmp"
    # The mode is right from the first instant: a secret is never readable by others.
    descriptor = os.open(drafted, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        os.close(descriptor)
        yield drafted
        flush(drafted)
        _move(drafted, target, replace=replace, mode=mode)
    finally:
        drafted.unlink(missing_ok=True)
    # The name must outlive a power cut as the content does; not every system can promise that.
    with contextlib.suppress(OSError):
        flush(target.parent)
    remove_stale(target.parent, _DRAFT)


def check(
    path: AnyPath,
    *,
    replace: bool | Magic = False,
    kind: str = "file",
    raises: type[SigilError] = OutputError,
) -> None:
    """Raise unless :func:`write` could write there: to be called before the work, not after it."""
    target = Path(path)
    try:
        taken = target.lstat().st_mode if os.path.lexists(target) else None
        if target.is_dir():
            raise raises(f"{target} is a directory; give the name of a file.")
        if not target.parent.is_dir():
            raise raises(f"{target} cannot be written: {target.parent} is not a directory; make it first.")
        if taken is not None and not stat.S_ISREG(os.stat(target).st_mode):
            raise raises(f"{target} is a pipe or a device, not a file; give the name of a file.")
        if not os.access(target.parent, os.W_OK | os.X_OK):
            raise raises(f"{target} cannot be written: you may not write to {target.parent}; choose another.")
        if len(os.fsencode(target.name)) > _LONGEST_NAME:
            raise raises(f"{target} cannot be written: the name is too long; choose another.")
    except FileNotFoundError:  # a link that leads nowhere
        raise raises(f"{target} is a link to a file that does not exist; choose another name.") from None
    except (OSError, ValueError) as error:
        raise raises(f"{os.fspath(path)} cannot be written: {refusal(error)}.") from None
    if taken is not None and replace is False:
        raise raises(f"{target} exists, and a {kind} is never overwritten; choose another name.")
    if taken is not None and isinstance(replace, Magic) and not replace.matches(target):
        raise raises(f"{target} exists and is not a {kind} that Sigil wrote; choose another name.")


def check_folder(path: AnyPath, *, raises: type[SigilError] = OutputError) -> None:
    """Raise unless there is a folder that can be written to, or one can be made."""
    target = Path(path)
    try:
        nearest = next(path for path in (target, *target.absolute().parents) if os.path.lexists(path))
        if not nearest.is_dir():
            what = "is a file" if nearest == target else f"cannot be made: {nearest} is a file"
            raise raises(f"{target} {what}; give the name of a directory.")
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise raises(f"{target} cannot be written to: permission is denied; choose another directory.")
    except (OSError, ValueError) as error:
        raise raises(f"{os.fspath(path)} cannot be written to: {refusal(error)}.") from None


def make_folder(path: AnyPath, *, mode: int = 0o777, raises: type[SigilError] = OutputError) -> None:
    """Make a folder, and those that it lies in, unless it is there already."""
    try:
        Path(path).mkdir(mode=mode, parents=True, exist_ok=True)
    except FileNotFoundError:  # the folders above were made: a place such as /proc lets nobody make any
        raise raises(f"{os.fspath(path)} cannot be made here; choose another directory.") from None
    except OSError as error:
        raise raises(f"{os.fspath(path)} cannot be made: {refusal(error)}.") from None


def refusal(error: OSError | ValueError) -> str:
    """Why a file could not be written and what to do, as the end of a sentence."""
    if isinstance(error, FileExistsError):
        return "it exists already; choose another name"
    if isinstance(error, FileNotFoundError):
        return "its directory does not exist; make the directory first"
    if isinstance(error, PermissionError):
        return "permission is denied; choose a directory that you may write to"
    text = reason(error)
    return f"{text[:1].lower()}{text[1:]}; choose another path"


def flush(path: AnyPath) -> None:
    """Have the content of a file, or the names in a folder, on the disk before going on."""
    folder = os.path.isdir(path)
    if folder and not hasattr(os, "O_DIRECTORY"):
        return  # Windows flushes no folders
    # Windows flushes only what is open for writing.
    descriptor = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest(parts: Iterable[str | bytes | Tensor]) -> str:
    """SHA-256, in hex, of texts (as UTF-8), bytes and the values of tensors, one after the other.

    A tensor counts with its values in row-major order, in its own number format; names, formats and shapes
    are the caller's to add.
    """
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, str | bytes):
            total.update(part.encode() if isinstance(part, str) else part)
        else:
            import torch

            # Seen as bytes, because NumPy does not know every number format (bfloat16).
            values = part.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            total.update(values.numpy().tobytes())
    return total.hexdigest()


def sha256_of(path: AnyPath) -> str:
    """SHA-256 of a file's content, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _move(drafted: Path, target: Path, *, replace: bool | Magic, mode: int) -> None:
    if replace is True or (isinstance(replace, Magic) and replace.matches(target)):
        drafted.replace(target)
        return
    try:
        os.link(drafted, target)  # fails if `target` exists, which a rename would not
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: claim the name, then replace it
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        try:
            drafted.replace(target)
        except OSError:
            target.unlink()
            raise


def remove_stale(folder: Path, pattern: str) -> None:
    """Remove what processes that were killed left unfinished in a folder, a day later."""
    for left in folder.glob(pattern):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(left) if left.is_dir() else left.unlink()


LOCK_PAUSE = 0.5  # seconds between two tries, where the system cannot wait by itself


@contextmanager
def locked(folder: Path, *, wait: bool) -> Iterator[None]:
    """Hold the lock of a run's folder; if another process has it, wait for that one or raise an error.

    The system releases it when the process ends, however that ends: a crash leaves nothing to clean up.
    Where the system has no locks at all, nothing is locked.
    """
    # Appended to, because a file of which a part is locked must not be truncated on Windows.
    with (folder / ".lock").open("ab") as file:
        try:
            lock(file, wait=wait)
        except OSError:
            raise TrainingError(
                f"Another process is training the run in {folder}; wait for it or choose another --out."
            ) from None
        yield


def lock(file: IO[bytes], *, wait: bool) -> None:
    """Take the lock of an open file; OSError if another process has it and this one does not wait."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    elif msvcrt is not None:
        _take_byte(msvcrt, file, wait)


def _take_byte(windows: ModuleType, file: IO[bytes], wait: bool) -> None:
    """Lock the file's first byte, which need not exist; Windows' own waiting gives up after ten seconds."""
    while True:
        file.seek(0)
        try:
            windows.locking(file.fileno(), windows.LK_NBLCK, 1)
            return
        except OSError:
            if not wait:
                raise
        time.sleep(LOCK_PAUSE)
