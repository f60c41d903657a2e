"""Official data sets from their official addresses: never larger than published, checked, then unpacked."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import wrap_file

from sigil.data.cache import data_directory
from sigil.data.official import OFFICIAL, File
from sigil.errors import DataError

_ATTEMPTS = 5
_PAUSE_SECONDS = 1.0
_TIMEOUT_SECONDS = 60
_CHUNK = 2**18


def fetch(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    progress: bool = True,
    base_url: str | None = None,
) -> Path:
    """Download an official data set into `data_dir` (or `SIGIL_DATA`) and give its directory.

    A set that is there already is left alone. A broken connection is tried again a few times. The directory
    appears only when all files have the published MD5 and are unpacked. `base_url` takes the place of the
    official address (a mirror).
    """
    if name not in OFFICIAL:
        raise DataError(
            f"'{name}' cannot be fetched: the sets with an official address are "
            f"{', '.join(OFFICIAL)}; digits needs none, and hub:NAME is fetched when it is loaded."
        )
    official = OFFICIAL[name]
    target = data_directory(data_dir, name=name) / official.directory
    if target.is_dir():
        return target
    address = (base_url or official.address).rstrip("/")
    if not address.startswith(("http://", "https://")):
        raise DataError(f"The address '{address}' is no http or https address: give one that is.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Beside the target, because a rename must not cross file systems.
        with tempfile.TemporaryDirectory(prefix=f".{official.directory}-", dir=target.parent) as folder:
            files = [
                _download(f"{address}/{file.name}", Path(folder) / file.name, file, progress=progress)
                for file in official.files
            ]
            ready = Path(folder) / official.directory
            if files[0].name.endswith((".tar.gz", ".zip")):
                _unpack(files[0], ready)
            else:
                ready.mkdir()
                for file in files:
                    file.rename(ready / file.name)
            _install(ready, target)
    except OSError as error:
        raise DataError(
            f"{name} cannot be stored in {target.parent} ({error.strerror or error}): make room or "
            "choose another --data-dir."
        ) from error
    return target


class _Interrupted(Exception):
    """The transfer stopped in a way that trying again may cure."""


def _download(url: str, target: Path, file: File, *, progress: bool) -> Path:
    """Download `url` to `target`; raises unless it has the published size and MD5."""
    for attempt in range(_ATTEMPTS):
        time.sleep(_PAUSE_SECONDS * attempt)
        # Not to keep an attacker out but because it is what the authors of the sets publish.
        digest = hashlib.md5(usedforsecurity=False)
        try:
            with target.open("wb") as stream:
                for chunk in _received(url, file, progress=progress):
                    digest.update(chunk)
                    stream.write(chunk)
            break
        except _Interrupted as error:
            reason = str(error)
    else:
        raise DataError(
            f"{url} could not be downloaded ({reason}): try again later, or put the files in place by hand."
        )
    if digest.hexdigest() != file.md5:
        raise DataError(
            f"{url} has the MD5 {digest.hexdigest()}, but {file.md5} is published: nothing was kept, try "
            "again or use another address."
        )
    return target


def _received(url: str, file: File, *, progress: bool) -> Iterator[bytes]:
    """What the server sends, never more than the published size, with a bar on standard error."""
    request = urllib.request.Request(url, headers={"User-Agent": "sigil"})
    bar = partial(wrap_file, description=file.name, console=Console(stderr=True), disable=not progress)
    have = 0
    try:
        with (
            urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response,
            bar(response, file.size) as reader,
        ):
            while chunk := reader.read(_CHUNK):
                have += len(chunk)
                if have > file.size:
                    raise DataError(
                        f"{url} is larger than the published {file.size:,} bytes: nothing was kept, use "
                        "another address."
                    )
                yield chunk
    except urllib.error.HTTPError as error:
        error.close()
        if error.code < 500:
            raise DataError(
                f"{url} could not be downloaded (the server says {error.code} {error.reason}): use another "
                "address or put the files in place by hand."
            ) from error
        raise _Interrupted(f"the server says {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(str(getattr(error, "reason", error)) or type(error).__name__) from error
    if have < file.size:
        raise _Interrupted(f"the connection closed after {have:,} of {file.size:,} bytes")


def _unpack(archive: Path, ready: Path) -> None:
    """Unpack an archive that must hold the directory `ready`, into its parent.

    Its checksum is right by now. Paths that lead outside are not written all the same, nor are links.
    """
    try:
        if archive.suffix == ".zip":
            shutil.unpack_archive(archive, ready.parent)
        else:
            shutil.unpack_archive(archive, ready.parent, filter=_only_plain)
    except (shutil.ReadError, tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DataError(f"{archive.name} cannot be unpacked ({error}): fetch it again.") from error
    if not ready.is_dir():
        raise DataError(f"{archive.name} holds no directory {ready.name}: nothing was kept, try again.")


def _only_plain(member: tarfile.TarInfo, into: str) -> tarfile.TarInfo | None:
    """A member of a tar archive as it may be written; raises for links, devices and paths outside."""
    if not (member.isreg() or member.isdir()):
        raise tarfile.SpecialFileError(member)
    return tarfile.data_filter(member, into)


def _install(ready: Path, target: Path) -> None:
    """Put a complete directory in its place at once."""
    try:
        ready.rename(target)
    except OSError:
        # Another process may have put the same files there meanwhile; they are as good.
        if not target.is_dir():
            raise
