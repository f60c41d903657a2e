"""Key files: one spelling each, no change unnoticed, nobody else reads them, no half files."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sigil.errors import KeyFileError
from sigil.keys import keyfile

SEED = hashlib.sha256(b"seed").digest()
COMMITMENT = hashlib.sha256(b"commitment").hexdigest()


def content(**changes: Any) -> keyfile.Content:
    """What a file holds; statements are taken apart by those who know them."""
    stated = {"bits": 50, "commitment": COMMITMENT, "owner": 'Å "ACME"', "shape": [256, 8, 8]} | changes
    text = json.dumps(stated, ensure_ascii=False, separators=(",", ":"))
    return keyfile.Content(text, b"token", SEED)


FIELDS = content()
PASSPHRASE = "correct horse"


@pytest.fixture(params=[None, PASSPHRASE], ids=["plain", "locked"])
def passphrase(request: pytest.FixtureRequest) -> str | None:
    chosen: str | None = request.param
    return chosen


@pytest.fixture
def no_scrypt(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and from then on trying a passphrase fails the test."""

    def forbid() -> None:
        def fail(**_: object) -> None:
            raise AssertionError("a passphrase was tried on a file that is known to be bad")

        monkeypatch.setattr(keyfile, "Scrypt", fail)

    return forbid


def with_checksum(document: dict[str, Any]) -> bytes:
    """A file with any content and the checksum that belongs to it, as a forger would write it."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    checksum = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f'{text[:-1]},"checksum":"{checksum}"}}\n'.encode("utf-8", "surrogatepass")


def content_of(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_bytes())
    del document["checksum"]
    return document


def test_round_trip(tmp_path: Path, passphrase: str | None) -> None:
    keyfile.write(tmp_path / "a.key", FIELDS, passphrase=passphrase)
    assert keyfile.read(tmp_path / "a.key", passphrase=passphrase) == FIELDS
    assert with_checksum(content_of(tmp_path / "a.key")) == (tmp_path / "a.key").read_bytes()


def test_plain_file_is_this_one(tmp_path: Path) -> None:
    keyfile.write(tmp_path / "a.key", FIELDS)
    text = (tmp_path / "a.key").read_text("utf-8")
    assert text[: text.index("checksum")] == (
        f'{{"format":"sigil-key/2","statement":{{"bits":50,"commitment":"{COMMITMENT}",'
        '"owner":"Å \\"ACME\\"","shape":[256,8,8]},"token":"dG9rZW4=",'
        f'"seed":"{SEED.hex()}","'
    )


def test_locked_files_never_repeat_salt_or_nonce(tmp_path: Path) -> None:
    for name in "ab":
        keyfile.write(tmp_path / name, FIELDS, passphrase=PASSPHRASE)
    a, b = content_of(tmp_path / "a"), content_of(tmp_path / "b")
    assert a["scrypt"]["salt"] != b["scrypt"]["salt"]
    assert a["sealed"][:24] != b["sealed"][:24]
    assert (a["scrypt"]["n"], a["scrypt"]["r"], a["scrypt"]["p"]) == (32_768, 8, 1)


def test_passphrase_is_the_same_however_typed(tmp_path: Path) -> None:
    keyfile.write(tmp_path / "a.key", FIELDS, passphrase="caf\u00e9")
    assert keyfile.read(tmp_path / "a.key", passphrase="cafe\u0301") == FIELDS


def test_a_passphrase_for_a_plain_file_is_not_needed(tmp_path: Path) -> None:
    keyfile.write(tmp_path / "a.key", FIELDS)
    assert keyfile.read(tmp_path / "a.key", passphrase=PASSPHRASE) == FIELDS


@pytest.mark.parametrize("owner", ["𠀀" * 128, '"' * 128, "\\" * 128])
def test_size_of_the_longest_file(tmp_path: Path, owner: str, passphrase: str | None) -> None:
    fields = content(owner=owner, shape=[8_192, 8_192, 1, 1], bits=65_536)
    keyfile.write(tmp_path / "a.key", fields, passphrase=passphrase)
    assert (tmp_path / "a.key").stat().st_size < 1_000
    assert keyfile.read(tmp_path / "a.key", passphrase=passphrase) == fields


# Damage.


@pytest.fixture
def written(tmp_path: Path, passphrase: str | None, no_scrypt: Callable[[], None]) -> Path:
    """A key file, to be damaged; from now on no passphrase is stretched."""
    path = tmp_path / "a.key"
    keyfile.write(path, FIELDS, passphrase=passphrase)
    no_scrypt()
    return path


def test_every_changed_byte_is_refused(written: Path, passphrase: str | None) -> None:
    whole = written.read_bytes()
    for position in range(len(whole)):
        for change in (0x01, 0x02, 0x10, 0x20, 0x80, 0xFF):
            changed = bytearray(whole)
            changed[position] ^= change
            with pytest.raises(KeyFileError, match=r"^a\.key "):
                keyfile._parse(bytes(changed), "a.key", passphrase)
        written.write_bytes(changed)
        with pytest.raises(KeyFileError, match=str(written)):
            keyfile.read(written, passphrase=passphrase)


def test_every_truncation_is_refused(written: Path, passphrase: str | None) -> None:
    whole = written.read_bytes()
    for length in range(len(whole)):
        written.write_bytes(whole[:length])
        with pytest.raises(KeyFileError, match="truncated"):
            keyfile.read(written, passphrase=passphrase)


@pytest.mark.parametrize(
    "spell",
    [
        lambda whole: whole + b"\n",
        lambda whole: b" " + whole,
        lambda whole: b"\xef\xbb\xbf" + whole,
        lambda whole: whole.replace(b"\n", b"\r\n"),
        lambda whole: whole.replace(b",", b", ", 1),
        lambda whole: whole.replace("Å".encode(), b"\\u00c5"),
        lambda whole: whole.replace(SEED.hex().encode(), SEED.hex().upper().encode()),
        lambda whole: json.dumps(json.loads(whole), indent=1).encode() + b"\n",
        lambda whole: whole.replace(b'"bits":50', b'"bits":49,"bits":50'),
        lambda whole: whole.replace(b'"bits":50', b'"bits":5e1'),
    ],
)
def test_no_other_spelling_is_accepted(tmp_path: Path, spell: Callable[[bytes], bytes]) -> None:
    keyfile.write(tmp_path / "a.key", FIELDS)
    other = spell((tmp_path / "a.key").read_bytes())
    assert other != (tmp_path / "a.key").read_bytes()
    (tmp_path / "b.key").write_bytes(other)
    with pytest.raises(KeyFileError):
        keyfile.read(tmp_path / "b.key")


@pytest.mark.parametrize(
    "change",
    [
        {"statement": "{}"},
        {"statement": None},
        {"statement": [1]},
        {"statement": {"owner": "\ud800"}},
        {"token": None},
        {"token": 7},
        {"token": "dG9rZW4"},
        {"token": "dG9rZW5="},
        {"version": 2},
        {"seed": "0" * 62},
        {"seed": ["0"] * 64},
        {"matrix": [1.0]},
        {"target": [0, 1]},
    ],
    ids=ascii,
)
def test_content_forged_with_checksum(tmp_path: Path, change: dict[str, Any]) -> None:
    keyfile.write(tmp_path / "a.key", FIELDS)
    forged = with_checksum(content_of(tmp_path / "a.key") | change)
    (tmp_path / "b.key").write_bytes(forged)
    with pytest.raises(KeyFileError, match="is damaged"):
        keyfile.read(tmp_path / "b.key")


@pytest.mark.parametrize(
    "change",
    [
        {"statement": {"owner": "Eve"}},
        {"statement": json.loads(content(shape=[16_384]).statement)},
        {"statement": json.loads(content(bits=51).statement)},
        {"statement": json.loads(content(commitment="0" * 64).statement)},
        {"token": "b3RoZXI="},
        {"sealed": "0" * 120},
    ],
    ids=str,
)
def test_a_locked_file_authenticates_every_field(tmp_path: Path, change: dict[str, Any]) -> None:
    keyfile.write(tmp_path / "a.key", FIELDS, passphrase=PASSPHRASE)
    forged = with_checksum(content_of(tmp_path / "a.key") | change)
    (tmp_path / "b.key").write_bytes(forged)
    with pytest.raises(KeyFileError, match=r"passphrase of .* is wrong"):
        keyfile.read(tmp_path / "b.key", passphrase=PASSPHRASE)


@pytest.mark.parametrize(
    "change",
    [{"n": 2**40}, {"n": 2**19}, {"n": 1_000}, {"n": -2}, {"r": 2**30}, {"p": 2**30}, {"p": 0}],
    ids=str,
)
def test_scrypt_parameters_are_bounded(
    tmp_path: Path, change: dict[str, int], no_scrypt: Callable[[], None]
) -> None:
    keyfile.write(tmp_path / "a.key", FIELDS, passphrase=PASSPHRASE)
    forged = content_of(tmp_path / "a.key")
    forged["scrypt"] |= change
    (tmp_path / "b.key").write_bytes(with_checksum(forged))
    no_scrypt()
    with pytest.raises(KeyFileError, match="scrypt parameters"):
        keyfile.read(tmp_path / "b.key", passphrase=PASSPHRASE)


@pytest.mark.parametrize(
    "change",
    [{"n": True}, {"n": 32_768.0}, {"salt": "0"}, {"salt": None}, {"extra": 1}],
    ids=str,
)
def test_malformed_scrypt_parameters_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    keyfile.write(tmp_path / "a.key", FIELDS, passphrase=PASSPHRASE)
    forged = content_of(tmp_path / "a.key")
    forged["scrypt"] |= change
    (tmp_path / "b.key").write_bytes(with_checksum(forged))
    with pytest.raises(KeyFileError, match="is damaged"):
        keyfile.read(tmp_path / "b.key", passphrase=PASSPHRASE)


def test_hostile_json_is_refused(tmp_path: Path) -> None:
    start = b'{"format":"sigil-key/2","statement":'
    for middle in (b"[" * 4_000, b"9" * 4_000, b'"' + b"\\u0000" * 600 + b'"', b"{}", b"\xff"):
        (tmp_path / "a.key").write_bytes(start + middle + b"}\n")
        with pytest.raises(KeyFileError, match="is damaged"):
            keyfile.read(tmp_path / "a.key")


# The sentences.


def sentence(path: Path | str, passphrase: str | None = None) -> str:
    with pytest.raises(KeyFileError) as caught:
        keyfile.read(path, passphrase=passphrase)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def test_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = tmp_path / "locked.key"
    keyfile.write(locked, FIELDS, passphrase=PASSPHRASE)
    whole = locked.read_bytes()
    (tmp_path / "newer.key").write_bytes(b'{"format":"sigil-key/3","anything":1}')
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8\xff\xe0" + bytes(100))
    (tmp_path / "large.key").write_bytes(whole + b" " * 65_536)
    (tmp_path / "cut.key").write_bytes(whole[:200])
    (tmp_path / "published.txt").write_text('{"alpha":"3e-7","format":"sigil-statement/2"}\n', "utf-8")
    (tmp_path / "bad.key").write_bytes(whole.replace(b"[256,8,8]", b"[256,8,9]"))
    expected = {
        sentence(tmp_path / "none.key"): "there is no such file",
        sentence(tmp_path): "is a directory",
        sentence("a\0b"): "null byte",
        sentence(tmp_path / "photo.jpg"): "is not a Sigil key file",
        sentence(tmp_path / "large.key"): "is not a Sigil key file",
        sentence(tmp_path / "cut.key"): "is truncated",
        sentence(tmp_path / "published.txt"): "holds the public statement of a key; give the key file itself",
        sentence(tmp_path / "bad.key", PASSPHRASE): "is damaged",
        sentence(tmp_path / "newer.key"): "format 3, but this release reads format 2; install a newer",
        sentence(locked): "is locked with a passphrase",
        sentence(locked, "wrong"): "passphrase of .* is wrong",
        sentence(locked, ""): "passphrase is empty",
        sentence(locked, "\ud800"): "not valid text",
    }

    def deny(path: str, flags: int) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    # Not chmod: the superuser reads every file.
    monkeypatch.setattr(keyfile, "_open_at_once", deny)
    expected[sentence(locked)] = "permission is denied"
    for text, words in expected.items():
        assert re.search(words, text), text
    assert len(expected) == 14


def test_no_more_than_the_limit_is_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse.key").open("wb") as file:
        file.write(b'{"format":"sigil-key/2",')
        file.truncate(2**32)
    assert "is not a Sigil key file" in sentence(tmp_path / "sparse.key")


# Writing.


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.key"
    path.write_text("precious")
    with pytest.raises(KeyFileError, match="exists already"):
        keyfile.write(path, FIELDS)
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]
    keyfile.write(path, FIELDS, overwrite=True)
    assert keyfile.read(path) == FIELDS


def test_one_of_many_writers_wins(tmp_path: Path) -> None:
    path = tmp_path / "a.key"
    outcomes: list[int | None] = []

    def write(number: int) -> None:
        try:
            keyfile.write(path, content(bits=number))
            outcomes.append(number)
        except KeyFileError:
            outcomes.append(None)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [number for number in outcomes if number is not None]
    assert len(outcomes) == 8
    assert winners == [json.loads(keyfile.read(path).statement)["bits"]]


@pytest.mark.parametrize("overwrite", [False, True])
def test_nobody_else_can_read_the_file_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    path = tmp_path / "a.key"
    if overwrite:
        path.write_text("public")
        path.chmod(0o644)
    opened: list[int] = []
    real_open = os.open

    def spy(file: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
        descriptor = real_open(file, flags, mode, **options)
        if flags & os.O_CREAT:
            opened.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    monkeypatch.setattr(os, "open", spy)
    before = os.umask(0)
    try:
        keyfile.write(path, FIELDS, overwrite=overwrite)
    finally:
        os.umask(before)
    assert opened == [0o600]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_failing_disk_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    path = tmp_path / "a.key"
    if overwrite:
        path.write_text("old")

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(KeyFileError, match="no space left on device"):
        keyfile.write(path, FIELDS, overwrite=overwrite)
    assert [p.read_text() for p in tmp_path.iterdir()] == (["old"] if overwrite else [])


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", fail)
    path = tmp_path / "a.key"
    keyfile.write(path, FIELDS)
    assert keyfile.read(path) == FIELDS
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(KeyFileError, match="exists already"):
        keyfile.write(path, content(bits=7))
    assert keyfile.read(path) == FIELDS
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "words"),
    [("missing/a.key", "directory does not exist"), ("", "cannot be written"), ("a\0b", "null")],
)
def test_impossible_paths_are_refused(tmp_path: Path, name: str, words: str) -> None:
    for overwrite in (False, True):
        with pytest.raises(KeyFileError, match=words):
            keyfile.write(tmp_path / name, FIELDS, overwrite=overwrite)
    assert not list(tmp_path.iterdir())


def test_impossible_passphrases_are_refused(tmp_path: Path) -> None:
    for passphrase, words in {"": "empty", "\ud800": "not valid text"}.items():
        with pytest.raises(KeyFileError, match=words):
            keyfile.write(tmp_path / "a.key", FIELDS, passphrase=passphrase)
    assert not list(tmp_path.iterdir())


def test_fields_do_not_show_the_seed() -> None:
    assert SEED.hex() not in repr(FIELDS)
    assert repr(SEED)[2:-1] not in repr(FIELDS)


def test_a_pipe_is_read_if_it_is_filled_and_never_waited_for(tmp_path: Path) -> None:
    pipe, whole = tmp_path / "pipe", tmp_path / "owner.key"
    os.mkfifo(pipe, 0o600)
    assert "is truncated" in sentence(pipe)  # nobody writes
    keyfile.write(whole, FIELDS)
    end = os.open(pipe, os.O_RDWR)
    os.write(end, whole.read_bytes())
    reader = os.open(pipe, os.O_RDONLY)  # keeps what was written when the writer goes
    os.close(end)
    assert keyfile.read(pipe) == FIELDS
    os.close(reader)
