"""Official data sets from their official addresses: checked, resumed, unpacked safely."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sigil.data import archives, cifar10, fashion_mnist, tiny_imagenet, transfer
from sigil.data.locations import data_directory
from sigil.errors import DataError


@dataclass(frozen=True)
class File:
    """One official file: its name below the address, its MD5 and its exact size in bytes."""

    name: str
    md5: str
    size: int


@dataclass(frozen=True)
class Official:
    """Where an official data set comes from, and the directory that it becomes."""

    address: str
    files: tuple[File, ...]
    directory: str
    archive: bool


OFFICIAL = {
    "cifar10": Official(
        address="https://www.cs.toronto.edu/~kriz",
        files=(File("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 170_498_071),),
        directory=cifar10.DIRECTORY,
        archive=True,
    ),
    "tiny-imagenet": Official(
        address="http://cs231n.stanford.edu",
        files=(File("tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de", 248_100_043),),
        directory=tiny_imagenet.DIRECTORY,
        archive=True,
    ),
    "fashion-mnist": Official(
        address="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        files=(
            File("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
            File("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe", 29_515),
            File("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79", 4_422_102),
            File("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310", 5_148),
        ),
        directory=fashion_mnist.DIRECTORIES[0],
        archive=False,
    ),
}


def fetch(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    progress: bool = True,
    base_url: str | None = None,
) -> Path:
    """Download an official data set into `data_dir` (or `SIGIL_DATA`) and give its directory.

    A set that is there already is left alone. An interrupted download goes on where it stopped when
    the same command is given again. The directory appears only when all files have the published
    MD5 and are unpacked. `base_url` takes the place of the official address (a mirror).
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
    # Beside the target, because a rename must not cross file systems.
    waiting = target.parent / f".{official.directory}.fetch"
    try:
        waiting.mkdir(parents=True, exist_ok=True)
        for file in official.files:
            transfer.download(
                f"{address}/{file.name}",
                waiting / file.name,
                md5=file.md5,
                size=file.size,
                progress=progress,
            )
        with tempfile.TemporaryDirectory(prefix="unpack-", dir=waiting) as unpacked:
            ready = Path(unpacked) / official.directory
            if official.archive:
                archive = waiting / official.files[0].name
                _unpack(archive, Path(unpacked), directory=official.directory)
            else:
                ready.mkdir()
                for file in official.files:
                    (waiting / file.name).rename(ready / file.name)
            _install(ready, target)
        shutil.rmtree(waiting, ignore_errors=True)
    except OSError as error:
        raise DataError(
            f"{name} cannot be stored in {target.parent} ({error.strerror or error}): make room or "
            "choose another --data-dir."
        ) from error
    finally:
        # Stays only as long as it holds what a later call can go on with.
        with contextlib.suppress(OSError):
            waiting.rmdir()
    return target


def _unpack(archive: Path, into: Path, *, directory: str) -> None:
    """Unpack an archive that must hold `directory`; one that is refused is not kept for later."""
    try:
        archives.unpack(archive, into)
        if not (into / directory).is_dir():
            raise DataError(
                f"{archive.name} holds no directory {directory}, although its checksum is right: "
                "nothing was kept, try again."
            )
    except DataError:
        archive.unlink()
        raise


def _install(ready: Path, target: Path) -> None:
    """Put a complete directory in its place at once."""
    try:
        ready.rename(target)
    except OSError:
        # Another process may have put the same files there meanwhile; they are as good.
        if not target.is_dir():
            raise
