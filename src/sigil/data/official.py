"""CIFAR-10, Tiny-ImageNet and Fashion-MNIST as published: how they lie on disk, and where they come from.

What is fetched is never larger than published, and checked before it is unpacked.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import pickletools
import re
import shutil
import struct
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import wrap_file

from sigil.data import images
from sigil.data.cache import Allocate, Source, data_directory
from sigil.errors import DataError

# The official batches of CIFAR-10 are 31,035,999 bytes at most.
_MAX_BATCH_BYTES = 64 * 2**20
# They have 30,098 of them.
_MAX_INSTRUCTIONS = 500_000
_MAX_TEXT_BYTES = 16 * 2**20
_MAX_PER_CLASS = 10_000
_MAX_IMAGES = 1_000_000
_ATTEMPTS = 5
_PAUSE_SECONDS = 1.0
_TIMEOUT_SECONDS = 60
_CHUNK = 2**18
_WNID = re.compile(r"n\d{8}")
# Without a slash: a name cannot lead out of its folder.
_PICTURE = re.compile(r"[\w-]+\.JPEG")


@dataclass(frozen=True)
class File:
    """One official file: its name below the address, its MD5 and its exact size in bytes."""

    name: str
    md5: str
    size: int


@dataclass(frozen=True)
class Official:
    """An official set: how it is read from a data directory, its usual normalisation, and its origin.

    The means and deviations are those of the whole training split, so that a reduced or partial copy is
    normalised like the whole. `directory` is what the files at `address` become.
    """

    source: Callable[[Path], Source]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: str
    address: str
    files: tuple[File, ...]
    directory: str


def cifar10(data_dir: Path) -> Source:
    """CIFAR-10 in `data_dir`/cifar-10-batches-py: five batches to train with and one to test."""
    splits = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
    files = [file for names in splits.values() for file in names]
    root = data_dir / "cifar-10-batches-py"
    _check_there("CIFAR-10", "cifar10", data_dir, [root / file for file in files])

    def decode(allocate: Allocate) -> int:
        for split, names in splits.items():
            batches = [read_batch(root / file) for file in names]
            count = sum(len(labels) for _, labels in batches)
            pixels = allocate(f"{split}-images", (count, 3, 32, 32))
            np.concatenate([images for images, _ in batches], out=pixels)
            allocate(f"{split}-labels", (count,))[:] = np.concatenate([labels for _, labels in batches])
        return 10

    return Source(name="cifar10", root=root, files=files, decode=decode)


def read_batch(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Read one batch of CIFAR-10: images uint8 (n, 3, 32, 32) and labels int64 (n,).

    The official files are pickles, programs for a small machine that may call anything. None is run: labels
    and pixels are picked out of the list of instructions. The labels are the numbers behind the text
    "labels", the pixels the one text of 3,072 bytes for each of them.
    """
    content = _read(path, limit=_MAX_BATCH_BYTES, fetch="cifar10")
    labels: list[Any] = []
    texts = [""]
    try:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            if number > _MAX_INSTRUCTIONS:
                raise ValueError(f"it has more than {_MAX_INSTRUCTIONS:,} instructions")
            if opcode.name in ("SHORT_BINSTRING", "BINSTRING"):
                texts.append(str(argument))
            elif opcode.name == "BININT1" and texts[-1] == "labels":
                labels.append(argument)
        pixels = [text.encode("latin-1") for text in texts if len(text) == 3072 * len(labels)]
        if not labels or max(labels) > 9 or len(pixels) != 1 or "u1" not in texts:
            raise ValueError("it does not hold labels from 0 to 9 and 3 x 32 x 32 bytes for each")
    except ValueError as error:
        raise DataError(f"{path} is not an official CIFAR-10 batch ({error}): fetch it again.") from error
    return np.frombuffer(pixels[0], np.uint8).reshape(-1, 3, 32, 32), np.array(labels, dtype=np.int64)


def tiny_imagenet(data_dir: Path) -> Source:
    """Tiny-ImageNet in `data_dir`/tiny-imagenet-200.

    Classes are numbered in the alphabetical order of their WordNet ids, as image folders are. The
    official validation pictures are the test split (the official test split has no labels).
    """
    root = data_dir / "tiny-imagenet-200"
    classes, annotations = root / "wnids.txt", root / "val" / "val_annotations.txt"
    _check_there("Tiny-ImageNet", "tiny-imagenet", data_dir, [classes, root / "train", annotations])
    wnids = sorted(set(_lines(classes)))
    wrong = [wnid for wnid in wnids if not _WNID.fullmatch(wnid)]
    if wrong or not wnids:
        raise DataError(
            f"{classes} does not list WordNet ids such as n01443537 (found {wrong[:1] or 'nothing'}): "
            "fetch tiny-imagenet again."
        )
    samples = {
        "train": [(file, label) for label, wnid in enumerate(wnids) for file in _train_files(root, wnid)],
        "test": _validation_files(annotations, wnids),
    }

    def decode(allocate: Allocate) -> int:
        for split, pairs in samples.items():
            pixels = allocate(f"{split}-images", (len(pairs), 3, 64, 64))
            images.fill(pixels, pairs, lambda pair: images.decode(root / pair[0], (3, 64, 64)))
            allocate(f"{split}-labels", (len(pairs),))[:] = [label for _, label in pairs]
        return len(wnids)

    files = [file for pairs in samples.values() for file, _ in pairs]
    listed = ["wnids.txt", "val/val_annotations.txt", *files]
    return Source(name="tiny-imagenet", root=root, files=listed, decode=decode)


def _train_files(root: Path, wnid: str) -> list[str]:
    """The pictures of one class as sorted paths under `root`."""
    folder = f"train/{wnid}/images"
    try:
        names = [name for name in os.listdir(root / folder) if _PICTURE.fullmatch(name)]
    except OSError as error:
        raise DataError(
            f"{root / folder} cannot be read ({error.strerror}): fetch tiny-imagenet again."
        ) from error
    if not 1 <= len(names) <= _MAX_PER_CLASS:
        raise DataError(
            f"{root / folder} holds {len(names)} JPEG files, but 1 to {_MAX_PER_CLASS} are expected: "
            "fetch tiny-imagenet again."
        )
    return [f"{folder}/{name}" for name in sorted(names)]


def _validation_files(annotations: Path, wnids: list[str]) -> list[tuple[str, int]]:
    """The validation pictures with their labels, as val_annotations.txt gives them."""
    samples = []
    for number, line in enumerate(_lines(annotations), start=1):
        name, wnid, *_ = [*line.split("\t"), ""]
        if not _PICTURE.fullmatch(name) or wnid not in wnids:
            raise DataError(
                f"Line {number} of {annotations} is not a picture name and one of the ids of wnids.txt: "
                "fetch tiny-imagenet again."
            )
        samples.append((f"val/images/{name}", wnids.index(wnid)))
    if not samples:
        raise DataError(f"{annotations} lists no pictures: fetch tiny-imagenet again.")
    return samples


def _lines(path: Path) -> list[str]:
    """The lines of a text file, stripped, without empty ones."""
    try:
        text = _read(path, limit=_MAX_TEXT_BYTES, fetch="tiny-imagenet").decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path} cannot be read ({error}): fetch tiny-imagenet again.") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def fashion_mnist(data_dir: Path) -> Source:
    """Fashion-MNIST in `data_dir`/fashion-mnist or `data_dir`/FashionMNIST/raw: four compressed idx files."""
    files = [file.name for file in OFFICIAL["fashion-mnist"].files]
    roots = [data_dir / "fashion-mnist", data_dir / "FashionMNIST" / "raw"]
    complete = [root for root in roots if all((root / file).is_file() for file in files)]
    if not complete:
        raise DataError(
            f"Fashion-MNIST was not found: neither {roots[0]} nor {roots[1]} holds its four .gz files; "
            f"download it with `sigil data fetch fashion-mnist --data-dir {data_dir}`."
        )
    root = complete[0]

    def decode(allocate: Allocate) -> int:
        for split, (images_file, labels_file) in {"train": files[:2], "test": files[2:]}.items():
            pixels = read_idx(root / images_file, shape=(28, 28))
            labels = read_idx(root / labels_file, shape=())
            if len(pixels) != len(labels) or labels.max() > 9:
                raise DataError(
                    f"{root / images_file} holds {len(pixels)} images for {len(labels)} labels up to "
                    f"{labels.max()}, but each needs one from 0 to 9: fetch fashion-mnist again."
                )
            allocate(f"{split}-images", (len(pixels), 1, 28, 28))[:, 0] = pixels
            allocate(f"{split}-labels", (len(labels),))[:] = labels
        return 10

    return Source(name="fashion-mnist", root=root, files=files, decode=decode)


def read_idx(path: Path, *, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Read a compressed idx file of unsigned bytes, (n, *shape).

    The file is two zero bytes, the type 8, the number of dimensions, each dimension as a big-endian
    32-bit number, then the bytes. No more is decompressed than the dimensions announce, and these
    are at most a million images.
    """
    start = struct.pack(">HBB", 0, 8, 1 + len(shape))
    end = struct.pack(f">{len(shape)}I", *shape)
    try:
        with gzip.open(path, "rb") as file:
            header = file.read(len(start) + 4 + len(end))
            count = int.from_bytes(header[4:8], "big")
            if not (header.startswith(start) and header[8:] == end and 1 <= count <= _MAX_IMAGES):
                raise ValueError(f"it does not begin like images or labels of shape {shape}")
            content = file.read(count * int(np.prod(shape)))
            if len(content) != count * np.prod(shape) or file.read(1):
                raise ValueError(f"it does not hold the {count} that it announces")
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise DataError(
            f"{path} is not a sound compressed idx file ({error}): fetch fashion-mnist again."
        ) from error
    return np.frombuffer(content, dtype=np.uint8).reshape(count, *shape)


def _check_there(title: str, name: str, data_dir: Path, paths: list[Path]) -> None:
    for path in paths:
        if not path.exists():
            raise DataError(
                f"{title} was not found: {path} does not exist; download it with "
                f"`sigil data fetch {name} --data-dir {data_dir}`."
            )


def _read(path: Path, *, limit: int, fetch: str) -> bytes:
    """The content of a file, which must not be larger than `limit`."""
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): fetch {fetch} again.") from error
    if len(content) > limit:
        raise DataError(f"{path} is larger than {limit // 2**20} MiB: fetch {fetch} again.")
    return content


OFFICIAL = {
    "cifar10": Official(
        source=cifar10,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        augment="crop-flip",
        address="https://www.cs.toronto.edu/~kriz",
        files=(File("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 170_498_071),),
        directory="cifar-10-batches-py",
    ),
    "tiny-imagenet": Official(
        source=tiny_imagenet,
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
        augment="crop-flip",
        address="http://cs231n.stanford.edu",
        files=(File("tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de", 248_100_043),),
        directory="tiny-imagenet-200",
    ),
    "fashion-mnist": Official(
        source=fashion_mnist,
        mean=(0.2860,),
        std=(0.3530,),
        augment="crop",
        address="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        files=(
            File("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
            File("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe", 29_515),
            File("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79", 4_422_102),
            File("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310", 5_148),
        ),
        directory="fashion-mnist",
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
        raise DataError(f"The address '{address}' is not an http or https address: give one.")
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
