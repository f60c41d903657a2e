from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from sigil.data import transfer
from sigil.data.transfer import download
from sigil.errors import DataError

CONTENT = np.random.default_rng(0).bytes(1_000_000)
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves CONTENT and can be told to behave badly."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ranges = True
        self.cut_after: list[int] = []
        self.answers: list[int] = []
        self.content = CONTENT
        self.shift = 0
        self.requests: list[str | None] = []
        self.sent = 0

    def handle_error(self, *_: object) -> None:
        """A client that stops listening is part of the tests."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/file.bin"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server = self.server
        wanted = self.headers.get("Range")
        server.requests.append(wanted)
        if server.answers:
            self.send_error(server.answers.pop(0))
            return
        start = 0
        if wanted and server.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted).group(1))  # type: ignore[union-attr]
            if start >= len(server.content):
                self.send_error(416)
                return
            start += server.shift
            self.send_response(206)
            last = len(server.content) - 1
            self.send_header("Content-Range", f"bytes {start}-{last}/{len(server.content)}")
        else:
            self.send_response(200)
        body = server.content[start:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if server.cut_after:
            body = body[: server.cut_after.pop(0)]
        server.sent += len(body)  # before, as who has read the last byte may look at once
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(transfer, "_PAUSE_SECONDS", 0.0)
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def get(server: Server, target: Path) -> None:
    download(server.url, target, md5=MD5, size=len(CONTENT), progress=False)


def test_whole_file_arrives(server: Server, tmp_path: Path) -> None:
    get(server, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["file.bin"]


def test_checked_file_is_not_asked_for_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(CONTENT)
    get(server, tmp_path / "file.bin")
    assert server.requests == []


def test_broken_connection_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.cut_after = [300_000, 200_000]
    get(server, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.requests == [None, "bytes=300000-", "bytes=500000-"]
    assert server.sent == len(CONTENT)


def test_later_call_goes_on_where_the_first_gave_up(server: Server, tmp_path: Path) -> None:
    server.cut_after = [100_000] * 5
    with pytest.raises(DataError, match=r"closed after 500,000 of 1,000,000.*same command again"):
        get(server, tmp_path / "file.bin")
    assert not (tmp_path / "file.bin").exists()
    server.requests.clear()
    get(server, tmp_path / "file.bin")
    assert server.requests == ["bytes=500000-"]
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_server_without_ranges_starts_over(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    server.cut_after = [300_000]
    get(server, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.sent == len(CONTENT) + 300_000


def test_wrong_range_is_not_used(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:1000])
    server.shift = 7
    get(server, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.requests == ["bytes=1000-", None]


def test_refused_range_starts_over(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:1000])
    server.answers = [416]
    get(server, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.requests == ["bytes=1000-", None]


def test_part_that_is_too_long_starts_over(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(bytes(len(CONTENT) + 1))
    get(server, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_complete_part_is_checked_and_used(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    get(server, tmp_path / "file.bin")
    assert server.requests == []
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_wrong_checksum_leaves_nothing(server: Server, tmp_path: Path) -> None:
    server.content = CONTENT[:-1] + b"\0"
    with pytest.raises(DataError, match=rf"but {MD5} is published"):
        get(server, tmp_path / "file.bin")
    assert list(tmp_path.iterdir()) == []


def test_damaged_part_is_found_out_by_the_checksum(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(bytes(500_000))
    with pytest.raises(DataError, match="nothing was kept"):
        get(server, tmp_path / "file.bin")
    get(server, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_endless_file_is_cut_off(server: Server, tmp_path: Path) -> None:
    server.content = CONTENT + CONTENT
    with pytest.raises(DataError, match="larger than the published 1,000,000 bytes"):
        get(server, tmp_path / "file.bin")
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 0


def test_missing_file_is_not_tried_again(server: Server, tmp_path: Path) -> None:
    server.answers = [404]
    with pytest.raises(DataError, match="the server says 404"):
        get(server, tmp_path / "file.bin")
    assert len(server.requests) == 1


def test_server_errors_are_tried_again(server: Server, tmp_path: Path) -> None:
    server.answers = [503, 500]
    get(server, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_nobody_listening_is_told(server: Server, tmp_path: Path) -> None:
    url = server.url
    server.server_close()
    with pytest.raises(DataError, match="could not be downloaded"):
        download(url, tmp_path / "file.bin", md5=MD5, size=10, progress=False)


def test_progress_goes_to_standard_error(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    download(server.url, tmp_path / "file.bin", md5=MD5, size=len(CONTENT))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "file.bin" in shown.err
    assert "1.0/1.0 MB" in shown.err
