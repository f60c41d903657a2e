"""`sigil evidence check`: what holds, what is refused and bad input, each with its exit status and words."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from safetensors.torch import load_file, save_file
from torch.nn.functional import binary_cross_entropy_with_logits

from harness.luck import Margin
from sigil import models, verify
from sigil.cli.main import main
from sigil.evidence import check
from sigil.files import sha256_of
from sigil.keys.key import Key
from sigil.keys.stamping import make_query
from sigil.keys.statement import Statement
from sigil.suspect import open_suspect
from sigil.testing.authority import DemonstrationAuthority
from sigil.verdict.envelope import sign
from sigil.verdict.report import Report

SEED = bytes(range(50, 82))
INPUT = (3, 8, 8)


@dataclass(frozen=True)
class Examined:
    """An owner's stamped key, a model with its mark, inputs of the judge's, and the record."""

    key: Key
    key_file: Path
    marked: Path
    inputs: Path
    published: Path
    root: Path
    record: Path
    facts: Report


@pytest.fixture(scope="module")
def examined(tmp_path_factory: pytest.TempPathFactory) -> Examined:
    folder = tmp_path_factory.mktemp("examined")
    client, _ = models.split(models.build("resnet18", classes=4, width=8, input_size=8, seed=0), "layer1")
    shape = models.activation_shape(client, INPUT)
    waiting = Key.generate(
        "ACME",
        shape,
        bits=64,
        seed=SEED,
        model="resnet18",
        width=8,
        classes=4,
        cut="layer1",
        input_shape=INPUT,
    )
    authority = DemonstrationAuthority("Trusted")
    query = make_query(waiting.to_be_stamped().statement())
    key = waiting.seal(authority.answer(query, moment=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)))
    generator = torch.Generator().manual_seed(1)
    for _ in range(100):
        projection = client(torch.randn(64, *INPUT, generator=generator)).flatten(1) @ key.matrix
        loss = binary_cross_entropy_with_logits(projection, key.target.expand_as(projection))
        gradients = torch.autograd.grad(loss, list(client.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(client.parameters(), gradients, strict=True):
                parameter -= 0.02 * gradient.sign()
    names = ("owner.key", "marked.safetensors", "inputs.npy", "published.txt", "root.pem", "case.json")
    key_file, marked, inputs, published, root, record = (folder / name for name in names)
    models.save(marked, client)
    key.save(key_file)
    np.save(inputs, torch.randn(300, *INPUT, generator=generator).numpy())
    published.write_text(key.statement() + "\n", "utf-8")
    root.write_bytes(authority.root_pem())
    opened = open_suspect(marked)
    facts = verify(opened, key, str(inputs), inputs_from="judge", roots=[authority.root])
    facts.save_evidence(record, key=key)
    return Examined(key, key_file, marked, inputs, published, root, record, facts)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run the check and return its status and what it printed."""

    def call(*arguments: object) -> tuple[int, str]:
        status = main(["evidence", "check", *map(str, arguments)])
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    return call


def test_the_case_is_proven_by_far(examined: Examined, margin: Margin) -> None:
    """What the records below say does not rest on the stamp, which draws the key's bits."""
    verdict = examined.facts
    margin("log10 p, corrected", verdict.log10_p, below=math.log10(verdict.alpha) - 2)


def invented(facts: Report, key: Key, file: Path) -> bytes:
    """A record in which everything fits together, about a file that was never examined."""
    about = facts.suspect.model_copy(update={"file": file.name, "sha256": sha256_of(file)})
    return sign(facts.model_copy(update={"suspect": about}), key.signing_key())


def test_everything_that_a_third_party_can_check(examined: Examined, run: Any) -> None:
    assert examined.facts.owned
    status, out = run(
        *(examined.record, "--suspect", examined.marked, "--statement", examined.published),
        *("--tsa-root", examined.root),
    )
    assert status == 0
    assert out.startswith("HOLDS as far as it was checked; the examination was not repeated.")
    assert "SOUND" not in out
    assert "The counts are the claimant's; nothing was repeated." in out
    assert "Commitment not opened" in out
    assert "That the judge chose the inputs is the claimant's word." in out
    assert "Whose file it is, and how it was obtained" in out
    assert "stamped on 2026-01-02 03:04:05 UTC by CN=Trusted time stamps" in out
    assert "under the root that you gave: CN=Trusted root, SHA-256 " in out
    assert "Who controls this authority can grind keys and backdate" in out


def test_the_statement_as_a_line(examined: Examined, run: Any) -> None:
    assert run(examined.record, "--statement", examined.key.statement())[0] == 0


def test_an_invented_record_is_vouched_for_by_nobody(examined: Examined, tmp_path: Path, run: Any) -> None:
    """It was called sound and owned by the given file, with status 0."""
    text = tmp_path / "shopping.txt"
    text.write_text("milk, bread, eggs\n")
    record = tmp_path / "invented.json"
    record.write_bytes(invented(examined.facts, examined.key, text))
    status, out = run(record)
    assert status == 1
    assert out.startswith("NOBODY VOUCHES FOR THIS SIGNER")
    status, out = run(record, "--suspect", text)
    assert status == 1
    assert "cannot have been examined as a model" in out
    # Asked only who signed, that holds; what is claimed is said to be the claimant's word.
    status, out = run(record, "--statement", examined.published)
    assert status == 0
    assert "The counts are the claimant's; nothing was repeated." in out
    status, out = run(record, "--key", examined.key_file, "--suspect", text, "--tsa-root", examined.root)
    assert status == 1
    assert out.startswith("REFUSED")


def test_counts_invented_for_a_real_model_are_refused_with_the_key(
    examined: Examined, tmp_path: Path, run: Any
) -> None:
    clean = tmp_path / "clean.safetensors"
    client, _ = models.split(models.build("resnet18", classes=4, width=8, input_size=8, seed=1), "layer1")
    models.save(clean, client)
    record = tmp_path / "invented.json"
    record.write_bytes(invented(examined.facts, examined.key, clean))
    assert run(record, "--suspect", clean, "--statement", examined.published)[0] == 0
    status, out = run(
        *(record, "--suspect", clean, "--key", examined.key_file, "--tsa-root", examined.root),
        *("--inputs", examined.inputs, "--inputs-from", "judge"),
    )
    assert status == 1
    assert "was repeated and does not give what the evidence says" in out


def test_a_commitment_under_another_name_is_refused(examined: Examined, tmp_path: Path, run: Any) -> None:
    """ACME's commitment in a statement of Eve's, with Eve's evidence key, was "signed by the owner's key"."""
    eve = Ed25519PrivateKey.generate()
    plain = Key.generate("Eve", examined.key.shape, bits=64, seal="none")
    fields = dataclasses.replace(plain.fields, probes=512, cut="layer1", input_shape=INPUT)
    forged = Statement(fields, examined.key.commitment, eve.public_key().public_bytes_raw().hex())
    facts = _plain(examined.facts, forged)
    record = tmp_path / "eve.json"
    record.write_bytes(sign(facts, eve))
    assert check(record.read_bytes()).signers == (eve.public_key().public_bytes_raw().hex(),)
    for options, what in (
        (("--statement", examined.published), "about another key"),
        (("--key", examined.key_file), "does not open the commitment"),
        ((), "NOBODY VOUCHES"),
    ):
        status, out = run(record, *options)
        assert status == 1
        assert what in out
    # Who takes Eve's own line for the published one is told what that leaves open.
    status, out = run(record, "--statement", forged.text)
    assert status == 0
    assert "Commitment not opened" in out
    assert "nor that owner and evidence key are those of the commitment" in " ".join(out.split())


def _plain(facts: Report, statement: Statement) -> Report:
    """The same facts for a plain key with this statement, with nothing proven by it."""
    fields = statement.fields
    key = facts.key.model_copy(
        update={
            "owner": fields.owner,
            "statement": statement.text,
            "kind": "plain",
            "token": None,
            "stamped_at": None,
            "authority": None,
        }
    )
    priced = facts.model_copy(update={"allowance_log2": 80.0})
    marks = [one for one in facts.readings if one.kind == "noise"]
    verdict = priced.model_copy(
        update={
            "readings": tuple(one for one in facts.readings if one.kind == "noise"),
            "owned": False,
            "descends": False,
            "log10_p": priced.price.corrected(marks[0].log10_p_before),
            "log10_p_origin": 0.0,
            "threshold": None,
            "trusted_root": None,
        }
    )
    return verdict.model_copy(update={"key": key})


def test_the_examination_is_repeated_with_the_key(examined: Examined, run: Any) -> None:
    repeat: tuple[object, ...] = (examined.record, "--key", examined.key_file, "--suspect", examined.marked)
    status, out = run(*repeat, "--inputs", examined.inputs, "--inputs-from", "judge")
    assert (status, "give its certificate with --tsa-root" in out) == (2, True)
    repeat = (*repeat, "--tsa-root", examined.root)
    status, out = run(*repeat, "--inputs", examined.inputs, "--inputs-from", "judge")
    assert status == 0
    assert out.startswith("HOLDS: the examination was repeated")
    assert "every number is the same" in out
    assert "opened: the key has this statement" in out
    assert "The counts are the claimant's" not in out
    status, out = run(*repeat)
    assert (status, "give the same ones with --inputs" in out) == (2, True)
    status, out = run(*repeat, "--inputs", examined.inputs)
    assert (status, "confirm it with --inputs-from judge" in out) == (2, True)
    status, out = run(*repeat, "--inputs", examined.inputs, "--inputs-from", "defendant")
    assert (status, "the source of the reading on inputs" in out) == (1, True)


def test_other_inputs_than_the_recorded_ones_are_noticed(
    examined: Examined, tmp_path: Path, run: Any
) -> None:
    other = tmp_path / "other.npy"
    np.save(other, np.random.default_rng(0).normal(size=(300, *INPUT)).astype(np.float32))
    status, out = run(
        *(examined.record, "--key", examined.key_file, "--suspect", examined.marked),
        *("--inputs", other, "--inputs-from", "judge", "--tsa-root", examined.root),
    )
    assert (status, "the digest of the reading on inputs" in out) == (1, True)


def test_the_key_alone_opens_the_commitment(examined: Examined, tmp_path: Path, run: Any) -> None:
    status, out = run(examined.record, "--key", examined.key_file)
    assert status == 0
    assert "opened: the key has this statement" in out
    assert "nothing was repeated" in out
    other = tmp_path / "other.key"
    again = Key.generate("ACME", examined.key.shape, bits=64)
    again.save(other)
    assert run(examined.record, "--key", other)[0] == 1


def test_the_same_statement_stamped_again_is_another_key(
    examined: Examined, tmp_path: Path, run: Any
) -> None:
    waiting = Key(dataclasses.replace(examined.key.fields, seal="none"), SEED)
    answer = DemonstrationAuthority("Trusted").answer(make_query(examined.key.statement()))
    again = tmp_path / "again.key"
    waiting.seal(answer).save(again)
    status, out = run(examined.record, "--key", again)
    assert (status, "another time stamp" in out) == (1, True)


def test_a_date_under_another_root_is_refused(examined: Examined, tmp_path: Path, run: Any) -> None:
    other = tmp_path / "other.pem"
    other.write_bytes(DemonstrationAuthority("Trusted").root_pem())
    status, out = run(examined.record, "--statement", examined.published, "--tsa-root", other)
    assert (status, "no given root certificate vouched" in out) == (1, True)
    status, out = run(examined.record, "--statement", examined.published)
    assert (status, "no root was given (--tsa-root)" in out) == (0, True)


def test_a_date_asked_of_a_plain_key_is_refused(run: Any, examined: Examined, tmp_path: Path) -> None:
    plain = Key(dataclasses.replace(examined.key.fields, seal="none"), SEED)
    opened = open_suspect(examined.marked)
    record = tmp_path / "plain.json"
    verify(opened, plain).save_evidence(record, key=plain)
    status, out = run(record, "--tsa-root", examined.root)
    assert (status, "has no time stamp" in out) == (1, True)


def test_a_register_that_the_claimant_counted(examined: Examined, tmp_path: Path, run: Any) -> None:
    """The number of statements in a register is for who checks to know: one would make anything proof."""
    opened = open_suspect(examined.marked)
    record = tmp_path / "counted.json"
    verify(opened, examined.key, register=1).save_evidence(record, key=examined.key)
    status, out = run(record, "--statement", examined.published)
    assert (status, "1 statements in a closed register is the claimant's word" in out) == (0, True)
    repeat = (record, "--key", examined.key_file, "--suspect", examined.marked)
    status, out = run(*repeat)
    assert (status, "only you can know: confirm it with --register" in out) == (2, True)
    status, out = run(*repeat, "--register", 1000)
    assert (status, "You counted 1,000 statements" in out) == (1, True)
    status, out = run(*repeat, "--statements", 1)
    assert (status, "as many as you counted" in out) == (0, True)
    assert run(examined.record, "--statement", examined.published, "--statements", 1)[0] == 1


def test_a_graph_is_examined_at_the_node_that_the_record_names(
    examined: Examined, tmp_path: Path, run: Any
) -> None:
    """It was "REFUSED: … say with at=NAME", with status 1, although the record names the node."""
    graph, record, key_file = tmp_path / "copy.onnx", tmp_path / "graph.json", tmp_path / "plain.key"
    half = models.load(examined.marked).eval()
    torch.onnx.export(half, (torch.zeros(1, *INPUT),), str(graph), dynamo=False)
    node = onnx.load(str(graph)).graph.output[0].name
    # A key that states no cut: nothing but the record says where the graph was read.
    key = Key(dataclasses.replace(examined.key.fields, seal="none", model=None, cut=None, width=None), SEED)
    key.save(key_file)
    opened = open_suspect(graph, at=node, key=key)
    report = verify(opened, key)
    report.save_evidence(record, key=key)
    opened.close()
    assert report.suspect.opened.at == node
    status, out = run(record, "--suspect", graph, "--key", key_file)
    assert (status, "every number is the same" in out) == (0, True), out
    # Who names another node than was read is found out by repeating it.
    other = next(one.output[0] for one in onnx.load(str(graph)).graph.node if one.op_type == "Conv")
    moved = report.suspect.model_copy(
        update={"opened": report.suspect.opened.model_copy(update={"at": other})}
    )
    forged = tmp_path / "forged.json"
    forged.write_bytes(sign(report.model_copy(update={"suspect": moved}), key.signing_key()))
    status, out = run(forged, "--suspect", graph, "--key", key_file)
    assert (status, out.startswith("REFUSED")) == (1, True), out


def test_a_suspect_in_several_files_is_the_one_that_was_examined(
    examined: Examined, tmp_path: Path, run: Any
) -> None:
    """Shards, and the graph that PyTorch exports by default, were never "the one that was examined"."""
    tensors = load_file(examined.marked)
    shards, graphs = tmp_path / "shards", tmp_path / "graphs"
    for folder in (shards, graphs):
        folder.mkdir()
    homes = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(sorted(tensors))}
    for home in set(homes.values()):
        save_file({name: tensors[name] for name in homes if homes[name] == home}, shards / home)
    index, graph = shards / "model.safetensors.index.json", graphs / "copy.onnx"
    index.write_text(json.dumps({"weight_map": homes}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(models.load(examined.marked).eval(), (torch.zeros(1, *INPUT),), graph, dynamo=True)
    assert (graphs / "copy.onnx.data").exists()
    for number, suspect in enumerate((shards, graph)):
        record = tmp_path / f"{number}.json"
        opened = open_suspect(suspect, key=examined.key)
        verify(opened, examined.key).save_evidence(record, key=examined.key)
        opened.close()
        given = (record, "--statement", examined.published, "--suspect")
        for named in (suspect, index if suspect == shards else graph):
            status, out = run(*given, named)
            assert (status, "the given file is the one recorded" in out) == (0, True), out
            status, out = run(*given, named, "--key", examined.key_file)
            assert (status, "every number is the same" in out) == (0, True), out
        for other in (examined.marked, graphs if suspect == shards else index):
            status, out = run(*given, other)
            assert (status, "is not the one that was examined" in out) == (1, True), out
    (graphs / "copy.onnx.data").unlink()
    status, out = run(*given, graph)
    assert (status, "or not all of it. " in out, "copy.onnx.data cannot be read" in out) == (1, True, True), (
        out
    )


def test_json(examined: Examined, run: Any) -> None:
    status, out = run(examined.record, "--statement", examined.published, "--json")
    result = json.loads(out)
    assert status == 0
    assert result.keys() == {
        *("held", "vouched", "repeated", "claims", "checked", "not_checked", "signers", "report")
    }
    assert (result["held"], result["repeated"]) == (True, False)
    assert result["signers"] == [examined.key.signing_key().public_key().public_bytes_raw().hex()]
    assert result["report"]["key"]["commitment"] == examined.key.commitment
    status, out = run(examined.record, "--json")
    assert (status, json.loads(out)["held"], json.loads(out)["vouched"]) == (1, False, False)


def test_a_changed_file_is_refused_with_status_1(examined: Examined, tmp_path: Path, run: Any) -> None:
    changed = tmp_path / "changed.json"
    envelope = json.loads(examined.record.read_bytes())
    payload = base64.b64decode(envelope["payload"]).replace(b'"owned":true', b'"owned":false')
    envelope["payload"] = base64.b64encode(payload).decode()
    changed.write_text(json.dumps(envelope, separators=(",", ":")) + "\n")
    status, out = run(changed)
    assert status == 1
    assert out.startswith("REFUSED: The signature does not fit")
    status, out = run(changed, "--json")
    assert (status, json.loads(out)["held"]) == (1, False)
    assert "signature" in json.loads(out)["reason"]


def test_another_suspect_is_refused(examined: Examined, run: Any) -> None:
    status, out = run(examined.record, "--statement", examined.published, "--suspect", examined.key_file)
    assert (status, "not the one that was examined" in out) == (1, True)


def test_evidence_signed_by_somebody_else_is_refused(examined: Examined, tmp_path: Path, run: Any) -> None:
    mallory = Ed25519PrivateKey.generate()
    forged = tmp_path / "forged.json"
    forged.write_bytes(sign(examined.facts, mallory))
    public = mallory.public_key()
    owner = examined.key.signing_key().public_key().public_bytes_raw().hex()
    for options in (
        ("--statement", examined.published),
        ("--signer", owner),
        ("--key", examined.key_file),
    ):
        assert run(forged, *options)[0] == 1
    # Nor does it help to trust this signer: the key's own evidence key must have signed as well.
    status, out = run(forged, "--signer", public.public_bytes_raw().hex().upper())
    assert (status, "the evidence key that its statement names" in out) == (1, True)
    # Who counter-signs is named as hex digits or as a PEM file.
    signed = tmp_path / "signed.json"
    signed.write_bytes(sign(examined.facts, examined.key.signing_key(), mallory))
    status, out = run(signed, "--signer", public.public_bytes_raw().hex().upper())
    assert status == 0
    assert f"and so did {public.public_bytes_raw().hex()}" in out
    pem = tmp_path / "mallory.pem"
    pem.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    assert run(signed, "--signer", pem, "--statement", examined.published)[0] == 0
    assert run(examined.record, "--signer", pem)[0] == 1


@pytest.mark.parametrize(
    "options",
    [
        ["--statement", "sigil-commitment v1 owner=ACME"],
        ["--statement", "missing.txt"],
        ["--signer", "abc"],
        ["--signer", "."],
        ["--suspect", "missing.pt"],
        ["--suspect", "."],
        ["--tsa-root", "missing.pem"],
        ["--key", "missing.key"],
        ["--inputs", "folder"],
        ["--inputs-from", "claimant"],
    ],
)
def test_what_the_caller_got_wrong_is_status_2(
    examined: Examined, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evidence", "check", str(examined.record), *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("sigil: ")
    assert printed.err.count("\n") == 1


def test_a_missing_file_is_status_2_and_a_wrong_one_status_1(tmp_path: Path) -> None:
    assert main(["evidence", "check", str(tmp_path / "missing.json")]) == 2
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}")
    assert main(["evidence", "check", str(wrong)]) == 1
