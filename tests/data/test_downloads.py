from __future__ import annotations

import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sigil.data import fetch, official
from sigil.data.official import OFFICIAL, File
from sigil.errors import DataError


class Mirror(ThreadingHTTPServer):
    """Serves a folder, and can be told to behave badly: error codes to answer with, bytes to stop after."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), lambda *given: Handler(*given, directory=str(folder)))
        self.folder = folder
        self.url = f"http://127.0.0.1:{self.server_port}/"
        self.answers: list[int] = []
        self.cut_after: list[int] = []
        self.requests = 0

    def handle_error(self, *_: object) -> None:
        """A client that stops listening is part of the tests."""


class Handler(SimpleHTTPRequestHandler):
    server: Mirror

    def do_GET(self) -> None:
        self.server.requests += 1
        if self.server.answers:
            self.send_error(self.server.answers.pop(0))
        else:
            super().do_GET()

    def copyfile(self, source: Any, outputfile: Any) -> None:
        left = self.server.cut_after.pop(0) if self.server.cut_after else -1
        outputfile.write(source.read(left))

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(official, "_PAUSE_SECONDS", 0.0)
    (tmp_path / "mirror").mkdir()
    server = Mirror(tmp_path / "mirror")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def publish(monkeypatch: pytest.MonkeyPatch, mirror: Mirror, name: str, files: dict[str, bytes]) -> None:
    """Serve `files` as the official ones of `name`, with their own checksums."""
    for file, content in files.items():
        (mirror.folder / file).write_bytes(content)
    known = tuple(
        File(file, hashlib.md5(content, usedforsecurity=False).hexdigest(), len(content))
        for file, content in files.items()
    )
    monkeypatch.setitem(OFFICIAL, name, replace(OFFICIAL[name], files=known))


def tar(members: dict[str, bytes], *links: tuple[str, bytes, str]) -> bytes:
    """A compressed archive of files, and of links and devices (name, kind, target)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for name, kind, target in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            archive.addfile(info)
    return file.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


FILE = "cifar-10-python.tar.gz"
GOOD = {"cifar-10-batches-py/data_batch_1": bytes(1_000_000)}
ARCHIVE = tar(GOOD)


@pytest.fixture
def published(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> Mirror:
    """A mirror of CIFAR-10."""
    publish(monkeypatch, mirror, "cifar10", {FILE: ARCHIVE})
    return mirror


def get(mirror: Mirror, data_dir: Path, name: str = "cifar10") -> Path:
    return fetch(name, data_dir, progress=False, base_url=mirror.url)


def test_archives_become_their_directory_and_nothing_else(
    published: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir = tmp_path / "data"
    folders = {"tiny-imagenet-200/wnids.txt": b"n01443537\n"}
    publish(monkeypatch, published, "tiny-imagenet", {"tiny-imagenet-200.zip": zipped(folders)})
    first, second = get(published, data_dir), get(published, data_dir, "tiny-imagenet")
    assert (first / "data_batch_1").read_bytes() == bytes(1_000_000)
    assert (second / "wnids.txt").read_bytes() == b"n01443537\n"
    assert sorted(path.name for path in data_dir.iterdir()) == ["cifar-10-batches-py", "tiny-imagenet-200"]


def test_plain_files_are_put_together(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {file.name: file.name.encode() for file in OFFICIAL["fashion-mnist"].files}
    publish(monkeypatch, mirror, "fashion-mnist", files)
    monkeypatch.setenv("SIGIL_DATA", str(tmp_path / "data"))
    found = fetch("fashion-mnist", progress=False, base_url=mirror.url)
    assert found == tmp_path / "data" / "fashion-mnist"
    assert {path.name: path.read_bytes() for path in found.iterdir()} == files
    assert [path.name for path in found.parent.iterdir()] == ["fashion-mnist"]


def test_set_in_place_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    # Nobody listens there.
    found = fetch("cifar10", tmp_path, progress=False, base_url="http://127.0.0.1:9")
    assert found == tmp_path / "cifar-10-batches-py"


def test_broken_connections_and_server_errors_are_tried_again(published: Mirror, tmp_path: Path) -> None:
    published.answers = [503, 500]
    published.cut_after = [300, 200]
    assert (get(published, tmp_path / "data") / "data_batch_1").read_bytes() == bytes(1_000_000)
    assert published.requests == 5


@pytest.mark.parametrize(
    ("answers", "cut_after", "message", "requests"),
    [
        ([404], [], "the server says 404", 1),
        ([503] * 5, [], "could not be downloaded", 5),
        ([], [100] * 5, f"closed after 100 of {len(ARCHIVE):,}", 5),
    ],
)
def test_what_trying_again_does_not_cure_leaves_nothing(
    published: Mirror, tmp_path: Path, answers: list[int], cut_after: list[int], message: str, requests: int
) -> None:
    published.answers, published.cut_after = answers, cut_after
    with pytest.raises(DataError, match=message):
        get(published, tmp_path / "data")
    assert published.requests == requests
    assert list((tmp_path / "data").iterdir()) == []


def test_nobody_listening_is_told(published: Mirror, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="could not be downloaded"):
        fetch("cifar10", tmp_path / "data", progress=False, base_url="http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (ARCHIVE[:-1] + bytes([ARCHIVE[-1] ^ 1]), "is published: nothing was kept"),
        (ARCHIVE + bytes(1_000_000), rf"larger than the published {len(ARCHIVE):,} bytes: nothing was kept"),
    ],
)
def test_another_file_than_the_published_one_leaves_nothing(
    published: Mirror, tmp_path: Path, sent: bytes, message: str
) -> None:
    (published.folder / FILE).write_bytes(sent)
    with pytest.raises(DataError, match=message):
        get(published, tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


EVIL = "cifar-10-batches-py/../../../evil"


@pytest.mark.parametrize(
    "content",
    [
        tar(GOOD | {EVIL: b"2"}),
        tar(GOOD | {"../evil": b"2"}),
        tar(GOOD, ("cifar-10-batches-py/link", tarfile.SYMTYPE, "/etc/passwd")),
        tar(GOOD, ("cifar-10-batches-py/link", tarfile.SYMTYPE, "data_batch_1")),
        tar(GOOD, ("cifar-10-batches-py/link", tarfile.LNKTYPE, "../elsewhere")),
        tar(GOOD, ("cifar-10-batches-py/device", tarfile.CHRTYPE, "")),
        tar(GOOD, ("cifar-10-batches-py/pipe", tarfile.FIFOTYPE, "")),
        tar({"something-else/x": b"1"}),
        ARCHIVE[: len(ARCHIVE) // 2],
        b"no archive",
    ],
    ids=range(10),
)
def test_bad_archive_leaves_nothing_in_place(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    publish(monkeypatch, mirror, "cifar10", {FILE: content})
    with pytest.raises(DataError, match=FILE):
        get(mirror, tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []
    assert list(tmp_path.rglob("evil")) == []


@pytest.mark.parametrize("name", ["../evil", "tiny-imagenet-200/../../evil", "/sigil-evil", "..\\evil"])
def test_zip_archives_write_nothing_outside(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    content = zipped({"tiny-imagenet-200/wnids.txt": b"1", name: b"2"})
    publish(monkeypatch, mirror, "tiny-imagenet", {"tiny-imagenet-200.zip": content})
    found = get(mirror, tmp_path / "data", "tiny-imagenet")
    assert [path.name for path in found.parent.rglob("*")] == ["tiny-imagenet-200", "wnids.txt"]
    assert list(tmp_path.rglob("*evil*")) == []
    assert not Path("/sigil-evil").exists()


def test_progress_goes_to_standard_error(
    published: Mirror, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch("cifar10", tmp_path / "data", base_url=published.url)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert FILE in shown.err
    assert f"{len(ARCHIVE) / 1000:.1f}/{len(ARCHIVE) / 1000:.1f} kB" in shown.err


def test_directory_that_cannot_be_written_is_told(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="choose another --data-dir"):
        fetch("cifar10", tmp_path / "file" / "below", progress=False, base_url=mirror.url)


@pytest.mark.parametrize("name", ["digits", "folder:x", "imagenet"])
def test_only_official_sets_can_be_fetched(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="cifar10, tiny-imagenet, fashion-mnist"):
        fetch(name, tmp_path)


def test_only_web_addresses_are_used(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not an http or https address"):
        fetch("cifar10", tmp_path, base_url=f"file://{tmp_path}")
    assert list(tmp_path.iterdir()) == []
