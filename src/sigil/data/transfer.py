"""One file over HTTP: resumed where it stopped, never larger than announced, checked at the end."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from sigil.errors import DataError

_ATTEMPTS = 5
_PAUSE_SECONDS = 1.0
_TIMEOUT_SECONDS = 60
_CHUNK = 2**18


def download(url: str, target: Path, *, md5: str, size: int, progress: bool = True) -> None:
    """Download `url` to `target`, which appears only when it has exactly this size and MD5.

    What has arrived waits in `target`.part; a broken connection is tried again a few times, and a
    later call goes on from there if the server can send ranges (it starts over if not).
    """
    if target.is_file() and checksum(target) == md5:
        return
    part = target.with_name(f"{target.name}.part")
    with _bar(target.name, size, shown=progress) as report:
        for attempt in range(_ATTEMPTS):
            try:
                _receive(url, part, size=size, report=report)
                break
            except _Interrupted as error:
                reason = str(error)
            time.sleep(_PAUSE_SECONDS * attempt)
        else:
            raise DataError(
                f"{url} could not be downloaded ({reason}): give the same command again to go on, or "
                "put the files in place by hand."
            )
    found = checksum(part)
    if found != md5:
        part.unlink()
        raise DataError(
            f"{url} has the MD5 {found}, but {md5} is published: nothing was kept, try again or use "
            "another address."
        )
    part.replace(target)


def checksum(path: Path) -> str:
    """Give the MD5 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, _md5).hexdigest()


def _md5() -> hashlib._Hash:
    # Not to keep an attacker out but because it is what the authors of the sets publish.
    return hashlib.md5(usedforsecurity=False)


class _Interrupted(Exception):
    """The transfer stopped in a way that trying again may cure."""


def _receive(url: str, part: Path, *, size: int, report: Callable[[int], None]) -> None:
    """Bring `part` to `size` bytes, from where it is."""
    have = part.stat().st_size if part.exists() else 0
    if have > size:
        part.unlink()
        have = 0
    if have == size:
        return
    request = urllib.request.Request(url, headers={"User-Agent": "sigil"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with contextlib.closing(_open(request, part)) as response:
        if response.status != 206:
            # The server sends the whole file whatever was asked for.
            have = 0
        elif not re.match(rf"bytes {have}-", response.headers.get("Content-Range", "")):
            part.unlink()
            raise _Interrupted("the server sent another range than the one asked for")
        with part.open("ab" if have else "wb") as file:
            report(have)
            while chunk := _read(response):
                have += len(chunk)
                if have > size:
                    file.truncate(0)
                    raise DataError(
                        f"{url} is larger than the published {size:,} bytes: nothing was kept, use "
                        "another address."
                    )
                file.write(chunk)
                report(have)
    if have < size:
        raise _Interrupted(f"the connection closed after {have:,} of {size:,} bytes")


def _open(request: urllib.request.Request, part: Path) -> http.client.HTTPResponse:
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
        return response
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:
            part.unlink(missing_ok=True)
        elif error.code < 500:
            raise DataError(
                f"{request.full_url} could not be downloaded (the server says {error.code} "
                f"{error.reason}): use another address or put the files in place by hand."
            ) from error
        raise _Interrupted(f"the server says {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(str(getattr(error, "reason", error)) or type(error).__name__) from error


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read(_CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(str(error) or type(error).__name__) from error


@contextlib.contextmanager
def _bar(name: str, size: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error and give the function that moves it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as bar:
        task = bar.add_task(name, total=size)
        yield lambda have: bar.update(task, completed=have)
