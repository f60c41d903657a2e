"""Files that appear whole or not at all, marks, the digest of tensors, and locks of either kind or none."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sigil import files
from sigil.errors import EvidenceError, OutputError, TrainingError

MAGIC = files.Magic(b"ours:", head=b"<sigil>", tail=b"end")
OURS = b"ours: <sigil> " + bytes(100_000) + b" the end"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "a"
    files.write(path, "é")
    assert path.read_bytes() == "é".encode()
    with pytest.raises(OutputError, match="exists already"):
        files.write(path, "other")
    with pytest.raises(EvidenceError, match="exists already"):
        files.write(path, "other", raises=EvidenceError)
    assert path.read_text("utf-8") == "é"
    files.write(path, b"other", replace=True)
    assert path.read_bytes() == b"other"
    assert names(tmp_path) == ["a"]


def test_only_a_file_with_the_mark_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a"
    files.write(path, OURS, replace=MAGIC)
    files.write(path, OURS + b" the end", replace=MAGIC)
    for content in (b"", b"ours:", b"<sigil> ours: end", b"ours: " + bytes(5000) + b"<sigil> end", OURS[:-3]):
        path.write_bytes(content)
        with pytest.raises(OutputError, match="exists already"):
            files.write(path, OURS, replace=MAGIC)
        with pytest.raises(OutputError, match="is not a page that Sigil wrote"):
            files.check(path, replace=MAGIC, kind="page")
        assert path.read_bytes() == content
    assert not MAGIC.matches(tmp_path)
    assert not MAGIC.matches(tmp_path / "missing")
    assert names(tmp_path) == ["a"]


def test_a_link_is_replaced_and_what_it_points_to_is_not(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(OURS)
    for replace in (True, MAGIC):
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to("precious")
        files.write(tmp_path / "link", "new", replace=replace)
        assert (tmp_path / "link").read_text() == "new"
        assert (tmp_path / "precious").read_bytes() == OURS
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(OutputError, match="exists already"):
        files.write(tmp_path / "dangling", "new")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("call", ["fsync", "link", "replace"])
def test_a_failure_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replace: bool, call: str
) -> None:
    if replace:
        (tmp_path / "a").write_text("old")

    def fail(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    if call == "link":  # the name is claimed in another way, which fails too
        monkeypatch.setattr(os, "replace", fail)
    if call == "replace" and not replace:
        files.write(tmp_path / "a", "new")
        assert names(tmp_path) == ["a"]
        return
    with pytest.raises(OutputError, match="no space left on device"):
        files.write(tmp_path / "a", "new", replace=replace)
    assert [path.read_text() for path in tmp_path.iterdir()] == (["old"] if replace else [])


def test_an_interrupted_draft_is_gone(tmp_path: Path) -> None:
    def interrupted() -> None:
        with files.draft(tmp_path / "a") as place:
            place.write_text("half")
            assert names(tmp_path) == [place.name]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(tmp_path) == []


def test_drafts_of_the_dead_are_removed_a_day_later(tmp_path: Path) -> None:
    old, young, other = (tmp_path / f".sigil-{name}.tmp" for name in ("0" * 16, "1" * 16, "mine"))
    for path in (old, young, other):
        path.touch()
    for path in (old, other):
        os.utime(path, (time.time() - 90_000,) * 2)
    files.write(tmp_path / "a", "")
    assert names(tmp_path) == sorted([young.name, other.name, "a"])


def test_modes(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        files.write(tmp_path / "page", "")
        files.write(tmp_path / "secret", "", mode=0o600)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "page").stat().st_mode) == 0o644
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "file/below/it"):
        with pytest.raises(OutputError, match="is a file"):
            files.check_folder(tmp_path / name)
    files.check_folder(tmp_path / "new" / "below")
    monkeypatch.setattr(os, "access", lambda *arguments: False)  # root may write everywhere
    with pytest.raises(OutputError, match="permission is denied"):
        files.check_folder(tmp_path / "new" / "below")
    with pytest.raises(OutputError, match="you may not write to"):
        files.check(tmp_path / "new")


def test_the_digest_is_that_of_names_and_values() -> None:
    tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    expected = hashlib.sha256(b"weight" + tensor.numpy().tobytes() + b"\x01").hexdigest()
    assert files.digest(["weight", tensor, b"\x01"]) == expected
    assert files.digest([tensor.mT]) == hashlib.sha256(tensor.numpy().T.copy().tobytes()).hexdigest()
    assert files.digest([torch.tensor(3)]) == hashlib.sha256(b"\x03" + bytes(7)).hexdigest()
    assert (
        files.digest([torch.tensor([1.0], dtype=torch.bfloat16)]) == hashlib.sha256(b"\x80\x3f").hexdigest()
    )
    assert files.digest([torch.empty(0)]) == hashlib.sha256().hexdigest()


def windows() -> Any:
    """Windows' module, with the locks of this system: of another open file, and given up at its closing."""

    def locking(descriptor: int, mode: int, count: int) -> None:
        assert (mode, count) == (2, 1)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    return SimpleNamespace(LK_NBLCK=2, locking=locking)


@pytest.fixture(params=["posix", "windows"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "windows":
        monkeypatch.setattr(files, "fcntl", None)
        monkeypatch.setattr(files, "msvcrt", windows())
        monkeypatch.setattr(files, "LOCK_PAUSE", 0.01)
    return str(request.param)


def test_the_second_is_refused_in_one_sentence_until_the_first_ends(system: str, tmp_path: Path) -> None:
    for _ in range(2):
        with (
            files.locked(tmp_path, wait=False),
            pytest.raises(TrainingError, match="Another process is training the run"),
            files.locked(tmp_path, wait=False),
        ):
            pass


def test_the_second_waits_if_it_is_asked_to(system: str, tmp_path: Path) -> None:
    order: list[str] = []
    begun = threading.Event()

    def second() -> None:
        begun.set()
        with files.locked(tmp_path, wait=True):
            order.append("second")

    thread = threading.Thread(target=second)
    with files.locked(tmp_path, wait=False):
        thread.start()
        begun.wait()
        thread.join(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_without_any_locks_nothing_is_locked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(files, "fcntl", None)
    monkeypatch.setattr(files, "msvcrt", None)
    with files.locked(tmp_path, wait=False), files.locked(tmp_path, wait=False):
        pass
