"""`sigil key stamp` and `sigil key seal`, with a real authority, with and without a network."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.commands import Command
from sigil.cli.main import main
from sigil.keys.key import Key

NEW = ["key", "new", "owner.key", "--owner", "ACME", "--shape", "32,2,2"]


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_from_new_to_sealed_over_http(authority: Any, serve: Callable[..., str], succeed: Command) -> None:
    output = succeed(*NEW, "--to-be-stamped")
    assert "A stamped key of 64 bits that leaves 64 cuts and input shapes open is proof at" in output
    assert "sigil key stamp owner.key --tsa URL" in output
    assert "of no use before" in succeed("key", "show", "owner.key")
    url = serve(lambda query: (200, authority.answer(query)))
    output = succeed("key", "stamp", "owner.key", "--tsa", url, "--tsa-root", str(authority.root_file))
    assert "Vouched for by CN=Test root, SHA-256" in output
    output = succeed("key", "seal", "owner.key", "sealed.key")
    assert "was not checked" in output
    key = Key.load("sealed.key")
    assert key.kind == "stamped"
    assert output.splitlines()[-1] == key.statement() == Key.load("owner.key").statement()
    assert stat.S_IMODE(Path("sealed.key").stat().st_mode) == 0o600
    facts = json.loads(succeed("key", "show", "sealed.key", "--json"))
    assert (facts["kind"], facts["allowance_log2"], facts["awaits_seal"]) == ("stamped", 24, False)
    assert facts["stamped_by"] == "CN=Test tsa"
    assert "stamped on 20" in succeed("key", "show", "sealed.key")


def test_a_machine_without_a_network(authority: Any, succeed: Command, refused: Command) -> None:
    succeed(*NEW)  # a plain key, to be sealed afterwards
    succeed("key", "stamp", "owner.key", "--query", "owner.tsq")
    Path("answer.tsr").write_bytes(authority.answer(Path("owner.tsq").read_bytes()))
    root = ["--tsa-root", str(authority.root_file)]
    succeed("key", "stamp", "owner.key", "--token", "answer.tsr", *root)
    succeed("key", "seal", "owner.key", "sealed.key", *root)
    plain, sealed = Key.load("owner.key"), Key.load("sealed.key")
    assert (plain.kind, sealed.kind) == ("plain", "stamped")
    assert plain.seal(Path("owner.key.tsr").read_bytes()) == sealed
    assert "sealed already" in refused("key", "stamp", "sealed.key", "--query", "again.tsq")
    assert "sealed already" in refused("key", "seal", "sealed.key", "twice.key", "--token", "answer.tsr")
    assert "never overwritten" in refused("key", "stamp", "owner.key", "--token", "answer.tsr")
    assert "never overwritten" in refused("key", "seal", "owner.key", "sealed.key")


def test_a_passphrase_stays(authority: Any, succeed: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGIL_PASSPHRASE", "sesame")
    succeed(*NEW, "--to-be-stamped")
    succeed("key", "stamp", "owner.key", "--query", "owner.tsq")
    Path("answer.tsr").write_bytes(authority.answer(Path("owner.tsq").read_bytes()))
    succeed("key", "seal", "owner.key", "sealed.key", "--token", "answer.tsr")
    assert Key.load("sealed.key", passphrase="sesame").kind == "stamped"


@pytest.mark.parametrize(
    ("status", "content", "words"),
    [
        (404, b"", "HTTP status 404"),
        (302, b"", "HTTP status 302"),
        (200, b"<html>", "not an authority's answer"),
        (200, bytes(40_000), "longer than"),
    ],
)
def test_authorities_that_misbehave(
    serve: Callable[..., str],
    succeed: Command,
    refused: Command,
    status: int,
    content: bytes,
    words: str,
) -> None:
    succeed(*NEW)
    url = serve(lambda query: (status, content))
    assert words in refused("key", "stamp", "owner.key", "--tsa", url)
    assert not Path("owner.key.tsr").exists()


def test_bad_use(succeed: Command, refused: Command, make_authority: Callable[..., Any]) -> None:
    succeed(*NEW)
    stamp = ["key", "stamp", "owner.key"]
    assert "Give one of" in refused(*stamp)
    assert "Give one of" in refused(*stamp, "--tsa", "http://x", "--query", "q")
    assert "begins with http" in refused(*stamp, "--tsa", "file:///etc/passwd")
    assert "cannot be asked" in refused(*stamp, "--tsa", "http://127.0.0.1:9/")
    assert "cannot be read" in refused(*stamp, "--token", "none.tsr")
    assert "cannot be read" in refused("key", "seal", "owner.key", "sealed.key")
    succeed(*stamp, "--query", "owner.tsq")
    Path("answer.tsr").write_bytes(make_authority().answer(Path("owner.tsq").read_bytes()))
    foreign = ["--tsa-root", str(make_authority().root_file)]
    assert "no given root" in refused(*stamp, "--token", "answer.tsr", *foreign)
    assert not Path("owner.key.tsr").exists()


CUT = ["--cut", "layer3", "--input-shape", "3,32,32"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--shape", "256,8,8", *CUT],
            "A plain key of 512 bits is proof at a success rate (WSR) of 75.4 % or more if all inputs agree",
        ),
        (["--shape", "32,2,2", *CUT], "A plain key of 64 bits proves nothing"),
        (["--shape", "32,2,2", *CUT, "--to-be-stamped", "--bits", "47"], "at least 48 bits"),
        (["--shape", "32,2,2", *CUT, "--bits", "103"], "at least 104 bits"),
        (["--shape", "32,2,2", *CUT, "--bits", "104"], "at a success rate (WSR) of 100.0 % or more"),
        # What a key leaves open is counted, and was not counted here.
        (
            ["--shape", "256,8,8"],
            "A plain key of 512 bits that leaves 64 cuts and input shapes open is proof at a success rate "
            "(WSR) of 76.2 % or more",
        ),
        (["--shape", "32,2,2", "--bits", "109"], "at least 110 bits"),
        (["--shape", "32,2,2", "--bits", "512"], "But activations of this shape hold 64 bits at most."),
    ],
)
def test_a_new_key_says_what_it_can_prove(succeed: Command, arguments: list[str], words: str) -> None:
    assert words in succeed("key", "new", "a.key", "--owner", "ACME", *arguments)
    assert words in succeed("key", "show", "a.key")


def test_an_open_key_file_is_warned_about(capsys: pytest.CaptureFixture[str], succeed: Command) -> None:
    succeed(*NEW)
    for mode, warned in ((0o600, False), (0o640, True), (0o644, True)):
        Path("owner.key").chmod(mode)
        assert main(["key", "commit", "owner.key"]) == 0
        printed = capsys.readouterr()
        assert ("can be read by other users" in printed.err) == warned
        assert printed.out.startswith('{"alpha"')


def test_what_a_new_key_states(succeed: Command) -> None:
    stated = ["--model", "resnet18", "--width", "8", "--classes", "10", "--cut", "layer3"]
    succeed(*NEW, *stated, "--input-shape", "1,8,8", "--inputs-digest", "ab" * 32)
    fields = Key.load("owner.key").fields
    assert (fields.model, fields.width, fields.classes, fields.cut) == ("resnet18", 8, 10, "layer3")
    assert (fields.input_shape, fields.inputs_digest) == ((1, 8, 8), "ab" * 32)
    output = succeed("key", "show", "owner.key")
    assert "cut           layer3" in output
