from __future__ import annotations

import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sigil.data import downloads, fetch, transfer
from sigil.data.downloads import OFFICIAL, File, Official
from sigil.errors import DataError


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """A directory and the local address at which it is served."""
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(transfer, "_PAUSE_SECONDS", 0.0)
    root = tmp_path / "mirror"
    root.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield root, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


def publish(monkeypatch: pytest.MonkeyPatch, root: Path, name: str, files: dict[str, bytes]) -> None:
    """Serve `files` as the official ones of `name`, with their own checksums."""
    for file, content in files.items():
        (root / file).write_bytes(content)
    known = tuple(
        File(file, hashlib.md5(content, usedforsecurity=False).hexdigest(), len(content))
        for file, content in files.items()
    )
    old = OFFICIAL[name]
    monkeypatch.setitem(downloads.OFFICIAL, name, Official(old.address, known, old.directory, old.archive))


def tar(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def test_archives_become_their_directory_and_nothing_else(
    mirror: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, url = mirror
    data_dir = tmp_path / "data"
    batch = {"cifar-10-batches-py/data_batch_1": b"images"}
    publish(monkeypatch, root, "cifar10", {"cifar-10-python.tar.gz": tar(batch)})
    folders = {"tiny-imagenet-200/wnids.txt": b"n01443537\n"}
    publish(monkeypatch, root, "tiny-imagenet", {"tiny-imagenet-200.zip": zipped(folders)})
    first = fetch("cifar10", data_dir, progress=False, base_url=url)
    second = fetch("tiny-imagenet", data_dir, progress=False, base_url=url)
    assert (first / "data_batch_1").read_bytes() == b"images"
    assert (second / "wnids.txt").read_bytes() == b"n01443537\n"
    assert sorted(path.name for path in data_dir.iterdir()) == [
        "cifar-10-batches-py",
        "tiny-imagenet-200",
    ]


def test_plain_files_are_put_together(
    mirror: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, url = mirror
    files = {file.name: file.name.encode() for file in OFFICIAL["fashion-mnist"].files}
    publish(monkeypatch, root, "fashion-mnist", files)
    monkeypatch.setenv("SIGIL_DATA", str(tmp_path / "data"))
    found = fetch("fashion-mnist", progress=False, base_url=url)
    assert found == tmp_path / "data" / "fashion-mnist"
    assert {path.name: path.read_bytes() for path in found.iterdir()} == files
    assert [path.name for path in found.parent.iterdir()] == ["fashion-mnist"]


def test_set_in_place_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    # Nobody listens there.
    found = fetch("cifar10", tmp_path, progress=False, base_url="http://127.0.0.1:9")
    assert found == tmp_path / "cifar-10-batches-py"


def test_wrong_checksum_leaves_nothing_in_place(
    mirror: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, url = mirror
    content = tar({"cifar-10-batches-py/x": b"good"})
    publish(monkeypatch, root, "cifar10", {"cifar-10-python.tar.gz": content})
    (root / "cifar-10-python.tar.gz").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match="nothing was kept"):
        fetch("cifar10", tmp_path / "data", progress=False, base_url=url)
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        tar({"cifar-10-batches-py/x": b"1", "cifar-10-batches-py/../../../evil": b"2"}),
        tar({"something-else/x": b"1"}),
        b"no archive",
    ],
)
def test_bad_archive_leaves_nothing_in_place(
    mirror: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    root, url = mirror
    publish(monkeypatch, root, "cifar10", {"cifar-10-python.tar.gz": content})
    with pytest.raises(DataError):
        fetch("cifar10", tmp_path / "data", progress=False, base_url=url)
    assert list((tmp_path / "data").iterdir()) == []
    assert list(tmp_path.rglob("evil")) == []


def test_finished_files_wait_for_those_that_failed(
    mirror: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, url = mirror
    files = {file.name: file.name.encode() for file in OFFICIAL["fashion-mnist"].files}
    publish(monkeypatch, root, "fashion-mnist", files)
    *first, last = files
    (root / last).unlink()
    with pytest.raises(DataError, match="404"):
        fetch("fashion-mnist", tmp_path / "data", progress=False, base_url=url)
    assert not (tmp_path / "data" / "fashion-mnist").exists()
    for file in first:
        (root / file).unlink()
    (root / last).write_bytes(files[last])
    found = fetch("fashion-mnist", tmp_path / "data", progress=False, base_url=url)
    assert {path.name for path in found.iterdir()} == set(files)


def test_directory_that_cannot_be_written_is_told(mirror: tuple[Path, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="choose another --data-dir"):
        fetch("cifar10", tmp_path / "file" / "below", progress=False, base_url=mirror[1])


@pytest.mark.parametrize("name", ["digits", "folder:x", "imagenet"])
def test_only_official_sets_can_be_fetched(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="cifar10, tiny-imagenet, fashion-mnist"):
        fetch(name, tmp_path)


def test_only_web_addresses_are_used(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no http or https address"):
        fetch("cifar10", tmp_path, base_url=f"file://{tmp_path}")
    assert list(tmp_path.iterdir()) == []
