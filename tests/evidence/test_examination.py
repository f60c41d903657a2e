"""A module of one's own gets page and evidence from Python, and its record is examined there as well."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from torch import Tensor, nn

import sigil
from sigil.errors import ConfigError, EvidenceError
from sigil.keys.key import Key
from sigil.verdict.report import Report

INPUT = (1, 4, 4)


class Own(nn.Module):
    """An architecture that Sigil does not know, whose activations fit a key."""

    def __init__(self, key: Key) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(16, key.dimension)
        with torch.no_grad():
            wanted = (2 * key.target - 1).double()
            self.layer.bias.copy_(torch.linalg.pinv(key.matrix.double().T) @ wanted * 10)
            self.layer.weight.mul_(0.01)

    def forward(self, batch: Tensor) -> Tensor:
        answer: Tensor = self.layer(batch.flatten(1))
        return answer


@pytest.fixture(scope="module")
def key() -> Key:
    return Key.generate("ACME", (256,), bits=128, seed=bytes(32), input_shape=INPUT)


@pytest.fixture(scope="module")
def half(key: Key) -> nn.Module:
    return Own(key).eval()


@pytest.fixture(scope="module")
def report(key: Key, half: nn.Module) -> Report:
    report = sigil.verify(half, key)
    assert report.owned
    return report


def test_page_evidence_and_examination_of_a_module(
    report: Report, key: Key, half: nn.Module, tmp_path: Path
) -> None:
    case, page, key_file = tmp_path / "case.json", tmp_path / "page.html", tmp_path / "owner.key"
    key.save(key_file)
    report.save_evidence(case, key=key_file)
    report.save_page(page, evidence=case)
    text = page.read_text("utf-8")
    assert "This model carries the watermark of" in text
    assert '<a href="./case.json"><bdi>case.json</bdi></a>, an in-toto attestation in a DSSE envelope' in text
    assert report.suspect.kind == "module"
    assert "The names of the layers are the suspect's own." in text
    assert f"SHA-256 of the weights</th><td><code>{report.suspect.sha256}</code>" in text

    found = sigil.evidence.examine(case, key=key_file, suspect=half)
    assert (found.vouched, found.repeated) == (True, True)
    assert "every number is the same" in found.checked["examination"]
    assert found.checked["suspect"] == "the given module has the recorded weights (SHA-256)"
    # The record is the report, but for what it says in the order of the key's bits.
    public = tuple(one.model_copy(update={"bit_shares": (), "margins": ()}) for one in report.readings)
    assert found.report == report.model_copy(update={"readings": public})
    json.dumps(found.to_dict(), allow_nan=False)

    assert not sigil.evidence.examine(case.read_bytes()).vouched
    by_statement = sigil.evidence.examine(case, statement=key.statement())
    assert (by_statement.vouched, by_statement.repeated) == (True, False)


def test_another_module_or_key_is_refused(report: Report, key: Key, half: nn.Module, tmp_path: Path) -> None:
    case = tmp_path / "case.json"
    report.save_evidence(case, key=key)
    changed = Own(key).eval()
    with torch.no_grad():
        changed.layer.bias[0] += 1e-6
    with pytest.raises(EvidenceError, match="not the one that was examined"):
        sigil.evidence.examine(case, key=key, suspect=changed)
    other = Key(key.fields, bytes(range(32)))
    with pytest.raises(EvidenceError, match="does not open the commitment"):
        sigil.evidence.examine(case, key=other, suspect=half)
    with pytest.raises(ConfigError, match="not the one that the suspect was examined with"):
        report.save_evidence(tmp_path / "other.json", key=other)
    with pytest.raises(EvidenceError, match="cannot be written"):
        report.save_evidence(case, key=key)


def test_an_auditor_signs_as_well(report: Report, key: Key, tmp_path: Path) -> None:
    auditor, pem = Ed25519PrivateKey.generate(), tmp_path / "auditor.pem"
    pem.write_bytes(auditor.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    name = auditor.public_key().public_bytes_raw().hex()
    for place, given in ((tmp_path / "a.json", auditor), (tmp_path / "b.json", pem)):
        report.save_evidence(place, key=key, sign_with=given)
        found = sigil.evidence.examine(place, signer=name)
        assert found.vouched
        assert len(found.signers) == 2
        assert f"and so did {name}" in found.checked["signature"]


def test_a_page_links_the_evidence_of_its_own_report_only(report: Report, key: Key, tmp_path: Path) -> None:
    (tmp_path / "cases").mkdir()
    case = tmp_path / "cases" / "javascript:alert(1)#?.json"
    report.save_evidence(case, key=key)
    report.save_page(tmp_path / "page.html", evidence=case)
    assert '<a href="./cases/javascript%3Aalert%281%29%23%3F.json">' in (tmp_path / "page.html").read_text()
    another = report.model_copy(update={"tries": 2})
    with pytest.raises(EvidenceError, match="is the evidence of another verification"):
        another.save_page(tmp_path / "b.html", evidence=case)
    assert not (tmp_path / "b.html").exists()
    with pytest.raises(EvidenceError, match="cannot be written"):
        report.save_page(tmp_path / "page.html")
    report.save_page(tmp_path / "page.html", overwrite=True)
    (tmp_path / "mine.html").write_text("mine")
    with pytest.raises(EvidenceError, match="cannot be written"):
        report.save_page(tmp_path / "mine.html", overwrite=True)


def test_a_function_has_a_page_and_no_evidence(key: Key, half: nn.Module, tmp_path: Path) -> None:
    found = sigil.verify(lambda batch: half(batch), key)
    found.save_page(tmp_path / "page.html")
    assert "none: a function" in (tmp_path / "page.html").read_text("utf-8")
    with pytest.raises(EvidenceError, match="The suspect was not a file and has no digest"):
        found.save_evidence(tmp_path / "case.json", key=key)


def test_what_only_the_examiner_can_give_is_asked_for_and_no_refusal(
    key: Key, half: nn.Module, tmp_path: Path
) -> None:
    images = torch.randn(300, *INPUT, generator=torch.Generator().manual_seed(0))
    case = tmp_path / "case.json"
    sigil.verify(half, key, images, inputs_from="judge", register=7).save_evidence(case, key=key)
    given = {"register": 7, "inputs": images, "inputs_from": "judge"}
    assert sigil.evidence.examine(case, key=key, suspect=half, **given).repeated
    for name in given:
        with pytest.raises(ConfigError):
            sigil.evidence.examine(case, key=key, suspect=half, **given | {name: None})


def test_the_order_of_the_bits_is_in_no_record_and_no_page(
    report: Report,
) -> None:
    """Readings know what agrees in the key's order; a record that holds it would reveal the mark."""
    marks = report.readings[0].model_copy(
        update={"bit_shares": (0.123456789,) * 128, "margins": (0.987654321,) * 128}
    )
    told = report.model_copy(update={"readings": (marks,)})
    for text in (told.model_dump_json(), repr(told), str(told.model_dump())):
        assert "bit_shares" not in text
        assert "0.123456789" not in text
        assert "0.987654321" not in text
    assert told.to_dict()["bit_shares"][0] == 0.123456789
