"""`sigil evidence check`: sound, refused and bad input, each with its exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sigil.cli.main import main
from sigil.evidence.signed import check, sign


@pytest.fixture(scope="module")
def evidence(case: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("evidence") / "case.json"
    arguments = ["verify", str(case.marked), "--key", str(case.key_file), "--probes", "128"]
    assert main([*arguments, "--evidence", str(file)]) == 0
    return file


def test_everything_given_and_right(case: Any, evidence: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--statement", case.key.statement(), "--suspect", str(case.marked)]
    assert main(["evidence", "check", str(evidence), *arguments]) == 0
    out = capsys.readouterr().out
    assert out.startswith("SOUND")
    assert "the owner's key" in out
    assert "the given file" in out
    assert "Caution" not in out


def test_a_file_that_vouches_only_for_itself_is_said_to(
    evidence: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evidence", "check", str(evidence)]) == 0
    assert "Caution: nothing from outside the file" in capsys.readouterr().out


def test_json_of_sound_evidence(case: Any, evidence: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["evidence", "check", str(evidence), "--statement", case.key.statement(), "--json"]
    assert main(command) == 0
    result = json.loads(capsys.readouterr().out)
    assert result.keys() == {
        "sound",
        "signer",
        "signed_by",
        "signer_pinned",
        "suspect_compared",
        "reference_compared",
        "facts",
    }
    assert result["sound"] is True
    assert result["signed_by"] == "owner"
    assert result["signer_pinned"] is True
    assert result["suspect_compared"] is False
    assert result["facts"]["key"]["commitment"] == case.key.commitment


def test_a_changed_file_is_refused_with_status_1(
    evidence: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = tmp_path / "changed.json"
    changed.write_bytes(evidence.read_bytes().replace(b'"owned":true', b'"owned":false'))
    assert main(["evidence", "check", str(changed)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("REFUSED: The signature does not fit")
    assert main(["evidence", "check", str(changed), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["sound"] is False
    assert "signature" in answer["reason"]


def test_another_suspect_is_refused(case: Any, evidence: Path) -> None:
    assert main(["evidence", "check", str(evidence), "--suspect", str(case.clean)]) == 1


def test_evidence_signed_by_somebody_else_is_refused(
    case: Any, evidence: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mallory = Ed25519PrivateKey.generate()
    forged = tmp_path / "forged.json"
    forged.write_bytes(sign(check(evidence.read_bytes()).facts, mallory))
    public = mallory.public_key()
    owner = case.key.signing_key().public_key().public_bytes_raw().hex()
    command = ["evidence", "check", str(forged)]
    assert main([*command, "--statement", case.key.statement()]) == 1
    assert main([*command, "--signer", owner]) == 1
    capsys.readouterr()
    # Whoever trusts this signer says so, as hex digits or as a PEM file.
    assert main([*command, "--signer", public.public_bytes_raw().hex().upper()]) == 0
    assert "another key than the owner's" in capsys.readouterr().out
    pem = tmp_path / "mallory.pem"
    pem.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    assert main([*command, "--signer", str(pem), "--statement", case.key.statement()]) == 0
    assert "Caution" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        ["--statement", "sigil-commitment v1 owner=ACME"],
        ["--signer", "abc"],
        ["--signer", "."],
        ["--suspect", "missing.pt"],
        ["--suspect", "."],
    ],
)
def test_what_the_caller_got_wrong_is_status_2(
    evidence: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evidence", "check", str(evidence), *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("sigil: ")
    assert printed.err.count("\n") == 1


def test_a_missing_file_is_status_2_and_a_wrong_one_status_1(tmp_path: Path) -> None:
    assert main(["evidence", "check", str(tmp_path / "missing.json")]) == 2
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}")
    assert main(["evidence", "check", str(wrong)]) == 1
