"""Unpack tar and zip archives without trusting what they say."""

from __future__ import annotations

import gzip
import stat
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from sigil.errors import DataError

MAX_MEMBERS = 500_000
MAX_BYTES = 4 * 2**30


def unpack(archive: Path, into: Path) -> None:
    """Unpack a .zip or .tar.gz archive into the directory `into`.

    Only plain files and directories inside `into` are written: links, devices, absolute paths and
    paths with `..` are refused, and so are archives beyond 500,000 members or 4 GiB.
    """
    budget = _Budget(archive)
    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as zipped:
                for info in zipped.infolist():
                    mode = stat.S_IFMT(info.external_attr >> 16)
                    plain = mode in (0, stat.S_IFREG, stat.S_IFDIR)
                    budget.admit(info.filename, size=info.file_size, plain=plain)
                    zipped.extract(info, into)
        else:
            with tarfile.open(archive, "r:gz") as tarred:
                for member in tarred:
                    plain = member.isreg() or member.isdir()
                    budget.admit(member.name, size=member.size, plain=plain)
                    tarred.extract(member, into, filter="data")
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        gzip.BadGzipFile,
        zlib.error,
        EOFError,
        RuntimeError,
    ) as error:
        raise DataError(
            f"{archive.name} cannot be unpacked ({error}): remove it and fetch it again."
        ) from error


class _Budget:
    """What an archive has been allowed so far."""

    def __init__(self, archive: Path) -> None:
        self._name = archive.name
        self._members = 0
        self._bytes = 0

    def admit(self, member: str, *, size: int, plain: bool) -> None:
        """Let a member pass or raise."""
        path = PurePosixPath(member.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts:
            raise DataError(
                f"{self._name} was not unpacked: its member '{member[:80]}' lies outside the target."
            )
        if not plain:
            raise DataError(
                f"{self._name} was not unpacked: its member '{member[:80]}' is a link or a device."
            )
        self._members += 1
        self._bytes += size
        if self._members > MAX_MEMBERS or self._bytes > MAX_BYTES:
            raise DataError(
                f"{self._name} was not unpacked: it holds more than {MAX_MEMBERS:,} members or "
                f"{MAX_BYTES // 2**30} GiB."
            )
