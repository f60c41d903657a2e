"""Keys, statements and stamps are read for ever, and derive what they always derived; drafts are refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from sigil.data.inputs import Inputs, parse_normalisation
from sigil.errors import EvidenceError, KeyFileError
from sigil.evidence import examine
from sigil.evidence.repeating import open_commitment
from sigil.keys.key import Key
from sigil.keys.seal import read_roots

HERE = Path(__file__).parent
PASSPHRASE = "correct horse"
NEW: dict[str, dict[str, Any]] = json.loads((HERE / "v2/expected.json").read_text())


def sha256(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.numpy().astype("<f4").tobytes()).hexdigest()


def open_key(name: str, tmp_path: Path) -> Key:
    """The frozen key from a copy of its own: a checkout may make the file readable by others."""
    copy = tmp_path / "copy.key"
    shutil.copyfile(HERE / name, copy)
    copy.chmod(0o600)
    return Key.load(copy, passphrase=PASSPHRASE if "locked" in name else None)


def digits(bits: torch.Tensor) -> str:
    return "".join(str(int(bit)) for bit in bits)


@pytest.mark.parametrize("name", ["owner.key", "locked.key"])
def test_drafts_of_keys_are_refused_in_one_sentence(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        KeyFileError, match=r"^\S+ has key file format 1, .*a draft which no release wrote.*\.$"
    ):
        open_key(f"v1/{name}", tmp_path)


@pytest.mark.parametrize("name", NEW)
def test_keys_of_version_2(tmp_path: Path, name: str) -> None:
    key, expected = open_key(f"v2/{name}.key", tmp_path), NEW[name]
    assert (key.version, key.kind) == (2, expected["kind"])
    assert key.commitment == expected["commitment"]
    assert hashlib.sha256(key.fields.encoded()).hexdigest() == expected["encoded_sha256"]
    assert key._identity()[1].hex() == expected["sigma"]
    assert key.signing_key().public_key().public_bytes_raw().hex() == expected["evidence_key"]
    assert sha256(key.matrix) == expected["matrix_sha256"]
    assert digits(key.target) == expected["target"]
    assert sha256(key.noise_probes(0, 4, (1, 8, 8))) == expected["probes_sha256"]
    assert key.choose(6, 1797).tolist() == expected["chosen"]
    assert digits(key.share_of(1, 5, 3)) == expected["share"]
    assert sha256(key.initial("layer1.0.conv1.weight", (8, 8, 3, 3))) == expected["convolution_sha256"]
    assert sha256(key.initial("fc.weight", (10, 64))) == expected["linear_sha256"]
    kind = name.partition("-")[0]
    assert key.statement() == (HERE / f"v2/{kind}.statement.txt").read_text("utf-8").strip()
    key.save(tmp_path / "again.key")
    assert (tmp_path / "again.key").read_bytes() == (HERE / f"v2/{name}.key").read_bytes()


@pytest.mark.parametrize("kind", ["ecdsa", "rsa"])
def test_stamps_of_version_2(tmp_path: Path, kind: str) -> None:
    key, expected = open_key(f"v2/stamped-{kind}.key", tmp_path), NEW[f"stamped-{kind}"]
    assert key.stamp is not None
    assert key.stamp.time.isoformat() == expected["time"]
    assert (key.stamp.serial, key.stamp.authority) == (expected["serial"], expected["authority"])
    assert key.stamp.check(read_roots(HERE / f"v2/root-{kind}.pem")).name == "CN=Test root"
    assert open_key("v2/waiting.key", tmp_path).seal(key.stamp.response) == key


def test_the_locked_key_of_version_2(tmp_path: Path) -> None:
    assert open_key("v2/locked.key", tmp_path) == open_key("v2/plain.key", tmp_path)


def test_drafts_of_evidence_are_refused_in_one_sentence() -> None:
    with pytest.raises(EvidenceError, match=r"^This is evidence in a draft form that no release .*\.$"):
        examine(HERE / "v1/case.json")


def test_evidence(tmp_path: Path) -> None:
    key = open_key("v2/stamped-ecdsa.key", tmp_path)
    suspect = HERE / "v2/suspect.safetensors"
    checked = examine(
        (HERE / "v2/case.json").read_bytes(),
        statement=(HERE / "v2/stamped.statement.txt").read_text("utf-8"),
        suspect=suspect,
    )
    report = checked.report
    assert checked.signers == (NEW["stamped-ecdsa"]["evidence_key"],)
    assert (report.owned, report.descends, report.experiment) == (True, True, False)
    assert [one.kind for one in report.readings] == ["noise", "inputs", "origin"]
    assert checked.stamp is not None
    assert checked.stamp.check(read_roots(HERE / "v2/root-ecdsa.pem")).name == "CN=Test root"
    open_commitment(report, checked.stamp, key)


def test_the_examination_can_be_repeated(tmp_path: Path) -> None:
    key = open_key("v2/stamped-ecdsa.key", tmp_path)
    # The judge's inputs of this case were further noise of the key, normalised as the key states.
    stated = parse_normalisation(key.fields.normalisation)
    found = examine(
        HERE / "v2/case.json",
        key=key,
        suspect=HERE / "v2/suspect.safetensors",
        inputs=Inputs(key.noise_probes(1024, 1324), normalisation=stated),
        inputs_from="judge",
        roots=HERE / "v2/root-ecdsa.pem",
    )
    assert (found.vouched, found.repeated) == (True, True)
    assert f"every number is the same ({2 * 64 + 16} counts)" in found.checked["examination"]
