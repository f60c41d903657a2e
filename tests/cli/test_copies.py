"""`sigil issue` and `sigil trace`: from a model to copies, and from a suspect to its recipient."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.commands import Command, contents
from sigil import models, tracing
from sigil.cli.main import main
from sigil.errors import EvidenceError
from sigil.evidence import examine
from sigil.keys.key import Key
from sigil.verdict.envelope import sign


@pytest.fixture(autouse=True)
def here(case: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(case.key_file, tmp_path / "owner.key")
    shutil.copy(case.clean, tmp_path / "model.safetensors")
    shutil.copy(case.marked, tmp_path / "other.safetensors")
    Key.generate("Mallory", shape=(8, 2, 2), seed=bytes(32)).save(tmp_path / "other.key")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def issue(name: str, out: str, *more: str, model: str = "model.safetensors") -> int:
    arguments = ["issue", model, "--to", name, "-o", out, "--key", "owner.key", "--register", "copies", *more]
    return main(arguments)


def trace(suspect: str, *more: str) -> int:
    return main(["trace", suspect, "--key", "owner.key", "--register", "copies", *more])


def test_a_copy_names_its_recipient(capsys: pytest.CaptureFixture[str]) -> None:
    assert issue("Hospital B", "b.safetensors") == 0
    assert "b.safetensors: the copy for Hospital B, digest " in capsys.readouterr().out
    assert issue("Clinic C", "c.safetensors", "--public") == 0
    capsys.readouterr()
    assert trace("b.safetensors", "--for", "court") == 0
    printed = capsys.readouterr().out
    assert "The suspect contains the copy that was made for Hospital B on 2" in printed
    assert "log10 p before correction, and corrected:" in printed
    assert "leaked" not in printed
    assert trace("c.safetensors", "--json", "--tries", "10") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["named"] == ["Clinic C"]
    assert (found["level"], found["tries"]) == ("owner", 10)
    assert found["recipients"][0]["public"] is True
    assert found["recipients"][0]["log10_p_before"] < found["recipients"][0]["log10_p"] < -20
    for innocent in ("model.safetensors", "other.safetensors"):
        assert trace(innocent) == 1
        assert "is not shown to contain any of the 2 copies" in capsys.readouterr().out


def test_a_recipient_gets_the_same_copy_twice_and_one_entry(capsys: pytest.CaptureFixture[str]) -> None:
    issue("Hospital B", "b.safetensors")
    entries = contents()
    assert issue("Hospital B", "again.safetensors") == 0
    assert "the same as on 2" in capsys.readouterr().out
    assert Path("again.safetensors").read_bytes() == Path("b.safetensors").read_bytes()
    assert {path: data for path, data in contents().items() if path != "again.safetensors"} == entries


def test_a_run_and_tensors_of_an_own_architecture(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run").mkdir()
    shutil.copy("model.safetensors", "run/client.safetensors")
    assert issue("Hospital B", "b.safetensors", model="run") == 0
    assert models.read_spec("b.safetensors") == models.read_spec("model.safetensors")
    save_file({"x": torch.randn(64, 64), "bias": torch.zeros(64)}, "own.safetensors")
    own = ["issue", "own.safetensors", "--to", "B", "-o", "own-b.safetensors", "--key", "owner.key"]
    assert main([*own, "--register", "own"]) == 0
    assert load_file("own-b.safetensors")["x"].shape == (64, 64)
    assert main(["trace", "own-b.safetensors", "--key", "owner.key", "--register", "own"]) == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"--to": "B\x1b[31m"}, "recipient's name must be"),
        ({"--to": ""}, "recipient's name must be"),
        ({"-o": "b.safetensors"}, "exists"),
        ({"-o": "model.safetensors"}, "would write over"),
        ({"-o": "missing/c.safetensors"}, "is not a directory"),
        ({"--key": "other.key"}, "belongs to another key"),
        ({"MODEL": "other.safetensors"}, "is not the model of the register"),
        ({"MODEL": "flat.safetensors", "--register": "new"}, "0 weights of two or more axes"),
        ({"MODEL": "owner.key"}, "safetensors"),
        ({"MODEL": "missing.safetensors"}, "does not exist"),
        ({"--register": "model.safetensors"}, "is a file"),
        ({"--register": "damaged"}, "not part of a register"),
    ],
)
def test_bad_input_is_one_sentence_and_changes_nothing(
    change: dict[str, str], sentence: str, capsys: pytest.CaptureFixture[str], refused: Command
) -> None:
    issue("Hospital B", "b.safetensors")
    save_file({"bias": torch.zeros(4000)}, "flat.safetensors")
    Path("damaged").mkdir()
    Path("damaged/register.json").write_text("[]")
    capsys.readouterr()
    before = contents()
    given = {
        "MODEL": "model.safetensors",
        "--to": "Clinic C",
        "-o": "c.safetensors",
        "--key": "owner.key",
        "--register": "copies",
    } | change
    model = given.pop("MODEL")
    assert sentence in refused("issue", model, *(word for pair in given.items() for word in pair))
    assert contents() == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["b.safetensors", "--key", "other.key", "--register", "copies"], "belongs to another key"),
        (["small.safetensors", "--key", "owner.key", "--register", "copies"], "no weights in the shapes"),
        (["missing.safetensors", "--key", "owner.key", "--register", "copies"], "does not exist"),
        (["b.safetensors", "--key", "owner.key", "--register", "missing"], "does not exist"),
        (["b.safetensors", "--key", "owner.key", "--register", "."], "does not exist"),
        (["b.safetensors", "--key", "owner.key", "--register", "copies", "--at", "x"], "no ONNX graph"),
        (["owner.key", "--key", "owner.key", "--register", "copies"], "owner.key"),
    ],
)
def test_a_trace_that_cannot_be_made_is_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str], refused: Command
) -> None:
    issue("Hospital B", "b.safetensors")
    save_file({"x": torch.randn(5, 5)}, "small.safetensors")
    capsys.readouterr()
    assert sentence in refused("trace", *arguments)


def test_a_run_has_its_register_beside_it_and_a_page_says_whose_copy_it_is(
    capsys: pytest.CaptureFixture[str],
    refused: Command,
) -> None:
    Path("run").mkdir()
    shutil.copy("model.safetensors", "run/client.safetensors")
    arguments = ["--key", "owner.key"]
    assert "give its folder with --register" in refused(
        "issue", "model.safetensors", "--to", "B", "-o", "b.safetensors", *arguments
    )
    assert "has no copies" in refused("trace", "other.safetensors", "--run", "run", *arguments)
    assert "give --register DIR or --run RUN" in refused("trace", "other.safetensors", *arguments)
    name = "B & Söhne"
    assert main(["issue", "run", "--to", name, "-o", "b.safetensors", *arguments]) == 0
    assert Path("run.copies/register.json").exists()
    page = ["--report", "page.html"]
    assert main(["trace", "b.safetensors", "--run", "run", *page, *arguments]) == 0
    capsys.readouterr()
    text = Path("page.html").read_text("utf-8")
    assert "The suspect contains the copy that was made for B &amp; Söhne on 2" in text
    assert "Who passed it on is not shown" in text
    assert "leaked by" not in text
    before = contents()
    assert "page.html" in refused("trace", "b.safetensors", "--run", "run", *page, *arguments)
    assert contents() == before
    assert main(["trace", "b.safetensors", "--run", "run", *page, "--force", *arguments]) == 0
    capsys.readouterr()


def test_a_verdict_says_whose_copy_it_contains(capsys: pytest.CaptureFixture[str]) -> None:
    assert issue("Hospital B", "b.safetensors") == 0
    capsys.readouterr()
    verify = ["verify", "b.safetensors", "--key", "owner.key", "--copies", "copies"]
    assert main([*verify, "--report", "page.html"]) == 1
    assert "contains the copy that was made for Hospital B" in Path("page.html").read_text("utf-8")
    assert "contains the copy that was made for Hospital B" in capsys.readouterr().out
    assert main([*verify, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["copies"]["named"] == ["Hospital B"]


def test_a_record_of_a_trace_is_checked_and_repeated(
    capsys: pytest.CaptureFixture[str], refused: Command
) -> None:
    issue("Hospital B", "b.safetensors")
    issue("Clinic C", "c.safetensors")
    assert trace("b.safetensors", "--evidence", "case.json") == 0
    assert main(["key", "commit", "owner.key"]) == 0
    Path("published.txt").write_text(capsys.readouterr().out.splitlines()[-1])
    check = ["evidence", "check", "case.json", "--suspect", "b.safetensors"]
    assert main(check) == 1, "nobody vouches for the signer"
    assert main([*check, "--statement", "published.txt"]) == 0
    printed = capsys.readouterr().out
    assert "contains the copy that was made for Hospital B" in printed
    assert "HOLDS as far as it was checked; the examination was not repeated." in printed
    assert "Who passed the copy on" in printed
    assert main([*check, "--key", "owner.key", "--copies", "copies"]) == 0
    assert "the same 2 recipients and p-values" in capsys.readouterr().out
    assert "give the key and the suspect" in refused(*check, "--copies", "copies")
    assert "are for a verdict" in refused(*check, "--key", "owner.key", "--register", "3")
    assert trace("b.safetensors", "--evidence", "case.json") == 2, "a record is never written over"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda found: {"log10_level": -1.0}, "its level is too mild"),
        (lambda found: {"recipients": found.recipients[::-1], "tries": 1}, None),
        (
            lambda found: {"key": found.key.model_copy(update={"commitment": "0" * 64})},
            "does not describe the key",
        ),
        (
            lambda found: {"key": found.key.model_copy(update={"owner": "Mallory"})},
            "does not describe the key",
        ),
        (
            lambda found: {
                "coalition": tracing.Coalition(
                    names=("A", "B"), log10_p_before=-9.0, log10_p=-9.0, contained=True, restored=False
                )
            },
            "multiplied by less than what was tried",
        ),
        (
            lambda found: {
                "recipients": tuple(one.model_copy(update={"contained": True}) for one in found.recipients)
            },
            "is not contained by the p-value",
        ),
        (
            lambda found: {
                "recipients": tuple(
                    one.model_copy(update={"log10_p": one.log10_p_before}) for one in found.recipients
                )
            },
            "multiplied by less than what was tried",
        ),
    ],
)
def test_not_even_the_owner_can_sign_a_trace_that_contradicts_itself(
    change: Any, sentence: str | None
) -> None:
    issue("Hospital B", "b.safetensors")
    issue("Clinic C", "c.safetensors")
    key = Key.load("owner.key")
    found = tracing.trace("b.safetensors", key, "copies")
    content = sign(found.model_copy(update=change(found)), key.signing_key())
    if sentence is None:
        report = examine(content, key=key).report
        assert isinstance(report, tracing.Trace)
        assert report.named == ("Hospital B",)
    else:
        with pytest.raises(EvidenceError, match=sentence):
            examine(content, key=key)
