"""`sigil verify` from the command line to its exit status, with a real key and real models."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from safetensors.torch import save_file

from sigil import models
from sigil.cli.main import main
from sigil.evidence import check
from sigil.keys.key import Key
from sigil.keys.stamping import make_query
from sigil.testing.authority import DemonstrationAuthority

PROMISED = {
    "owned",
    "wsr",
    "p_value",
    "log10_p",
    "threshold",
    "alpha",
    "bits",
    "probes",
    "commitment",
    "aligned",
    "readings",
    "allowance_log2",
    "experiment",
}


def verify(case: Any, model: Path, *options: str) -> int:
    """Verify as a judge who counted the keys: what a plain key of 50 bits costs has tests of its own."""
    return main(["verify", str(model), "--key", str(case.key_file), "--register", "1", *options])


def test_a_marked_model_is_owned(case: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(case, case.marked) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("OWNED: this model carries the mark of ACME.\n")
    assert case.key.commitment in printed.out
    assert "paper's rule  met" in printed.out
    assert "\x1b" not in printed.out
    assert printed.err == ""


def test_a_clean_model_is_not_proven(case: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(case, case.clean) == 1
    out = capsys.readouterr().out
    assert out.startswith("NOT PROVEN")
    assert "Not proven is not disproven" in out
    assert "stolen" not in out


def test_another_key_is_not_proven(case: Any, tmp_path: Path) -> None:
    from sigil.keys.key import Key

    other = tmp_path / "other.key"
    Key.generate("Mallory", shape=case.key.shape, bits=50, seed=bytes(32)).save(other)
    assert main(["verify", str(case.marked), "--key", str(other), "--register", "1"]) == 1


def test_json_is_one_object_with_the_promised_names(case: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(case, case.marked, "--json") == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert result.keys() >= PROMISED
    assert result["owned"] is True
    assert result["probes"] == 512
    assert [reading["kind"] for reading in result["readings"]] == ["noise", "origin"]
    assert result["commitment"] == case.key.commitment
    assert result["key"]["statement"] == case.key.statement()
    assert result["suspect"]["input_shape"] == [3, 8, 8]
    assert result["log10_p"] == pytest.approx(math.log10(result["p_value"]))
    assert printed.out.count("\n") == 1
    assert printed.err == ""


def test_json_stays_json_when_no_rate_is_proof(case: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(case, case.marked, "--alpha", "1e-60", "--json") == 1
    assert json.loads(capsys.readouterr().out)["threshold"] is None


def test_tries_raise_the_probability(case: Any, capsys: pytest.CaptureFixture[str]) -> None:
    verify(case, case.marked, "--json")
    once = json.loads(capsys.readouterr().out)["log10_p"]
    verify(case, case.marked, "--json", "--tries", "1000")
    assert json.loads(capsys.readouterr().out)["log10_p"] == pytest.approx(once + 3)


def test_a_state_dict_needs_its_input_shape_and_tells_the_rest(
    case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = tmp_path / "weights.pt"
    torch.save(models.load(case.marked).state_dict(), weights)
    assert verify(case, weights) == 2
    assert "--input-shape" in capsys.readouterr().err
    for options in ("--cut layer1", "--architecture resnet18 --cut layer1 --width 8 --classes 4"):
        assert verify(case, weights, *options.split(), "--input-shape", "3,8,8") == 0


# A thief who says something else of a file, or puts something else beside what he stole.


@pytest.mark.parametrize("said", [{"part": "server", "cut": "layer1"}, {"width": 64}, {"name": "vgg11"}, {}])
def test_false_metadata_of_a_copy_change_nothing_but_what_is_shown(
    case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], said: dict[str, Any]
) -> None:
    marked = models.load(case.marked)
    spec = dataclasses.asdict(marked.spec) | said
    text = json.dumps({"format": 1, "spec": spec, "input_shape": None, "extra": {}}) if said else "{"
    copy = tmp_path / "copy.safetensors"
    save_file(marked.state_dict(), copy, metadata={"sigil": text})
    for options in ("", "--architecture resnet18 --cut layer1 --width 8 --classes 4"):
        assert verify(case, copy, "--input-shape", "3,8,8", *options.split()) == 0
        assert "; the file says: " in capsys.readouterr().out


def hidden(case: Any, path: Path, decoys: int) -> Path:
    """The marked model behind decoys, under a name that nobody asked for."""
    clean, marked = (models.load(file).state_dict() for file in (case.clean, case.marked))
    content: dict[str, Any] = {"state_dict": clean, "epoch": 7}
    for decoy in range(decoys):
        content[f"decoy{decoy}"] = {name: tensor + decoy for name, tensor in clean.items()}
    torch.save(content | {"ema": {"net": marked}}, path)
    return path


def test_weights_beside_a_stranger_are_found_named_and_counted_everywhere(
    case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suspect = hidden(case, tmp_path / "hidden.pt", decoys=2)
    page, evidence = tmp_path / "page.html", tmp_path / "case.json"
    options = ["--input-shape", "3,8,8"]
    assert verify(case, suspect, *options, "--entry", "ema", "--json") == 0
    alone = json.loads(capsys.readouterr().out)
    about = alone["suspect"]
    assert (about["entry"], about["entries"], alone["tries"]) == ("ema.net", ["ema.net"], 1)
    assert verify(case, suspect, *options, "--tries", "3", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    about = found["suspect"]
    assert (about["entry"], found["tries"], about["unread"]) == ("ema.net", 12, 0)
    assert about["entries"] == ["state_dict", "decoy0", "decoy1", "ema.net"]
    assert found["log10_p"] == pytest.approx(alone["log10_p"] + math.log10(12))

    written = ["--report", str(page), "--evidence", str(evidence)]
    assert verify(case, suspect, *options, *written) == 0
    out = capsys.readouterr().out
    assert "'ema.net', one of 4 in the file, each of which counts as a try" in out
    assert "4 tests · 4 tries" in out
    assert "&#39;ema.net&#39;, one of 4 in the file" in page.read_text()
    assert "1, each with 4 models in the file: 4 in all" in page.read_text()
    facts = check(evidence.read_bytes()).report
    assert (facts.suspect.entry, len(facts.suspect.entries), facts.tries) == ("ema.net", 4, 4)
    repeat = ["--key", str(case.key_file), "--suspect", str(suspect), "--register", "1"]
    assert main(["evidence", "check", str(evidence), *repeat]) == 0
    out = capsys.readouterr().out
    assert "every number is the same" in out
    assert "'ema.net', one of 4 in the file" in out

    chosen = tmp_path / "chosen.json"
    assert verify(case, suspect, *options, "--entry", "ema", "--evidence", str(chosen)) == 0
    assert main(["evidence", "check", str(chosen), *repeat]) == 0
    assert "every number is the same" in capsys.readouterr().out


def test_the_name_of_an_entry_drives_neither_the_terminal_nor_the_page(
    case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "\x1b[2J<script>alert(1)</script>\u202e\ud800" + "x" * 5000
    suspect, page, evidence = (tmp_path / each for each in ("a.pt", "page.html", "case.json"))
    torch.save({name: models.load(case.marked).state_dict()}, suspect)
    written = ["--report", str(page), "--evidence", str(evidence)]
    assert verify(case, suspect, "--input-shape", "3,8,8", *written) == 0
    out = capsys.readouterr().out
    for text in (out, page.read_text(), evidence.read_text()):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "<script>" not in page.read_text()
    assert verify(case, suspect, "--input-shape", "3,8,8", "--json") == 0
    assert json.loads(capsys.readouterr().out)["owned"] is True


def test_models_beyond_those_that_are_read_are_counted_in_the_verdict(
    case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suspect = hidden(case, tmp_path / "hidden.pt", decoys=20)
    assert verify(case, suspect, "--input-shape", "3,8,8") == 1
    out = capsys.readouterr().out
    assert "one of 16 in the file" in out
    assert "6 further models or tensors in the file (--entry)" in out
    assert verify(case, suspect, "--input-shape", "3,8,8", "--entry", "ema.net", "--tries", "22") == 0


def test_a_suspect_that_is_no_model_is_called_what_it_is(
    case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pointer = tmp_path / "model.safetensors"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert verify(case, pointer) == 2
    assert "is a Git LFS pointer" in capsys.readouterr().err


def test_page_and_evidence_are_written_and_agree(
    case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, evidence = tmp_path / "page.html", tmp_path / "case.json"
    options = ("--report", str(page), "--evidence", str(evidence), "--json")
    assert verify(case, case.marked, *options) == 0
    printed = json.loads(capsys.readouterr().out)
    checked = check(evidence.read_bytes(), statement=case.key.statement())
    assert checked.signers == (case.key.signing_key().public_key().public_bytes_raw().hex(),)
    assert checked.report.wsr == printed["wsr"]
    assert checked.report.command.startswith("sigil verify ")
    assert "--report" in checked.report.command
    assert "--key KEY" in checked.report.command
    assert str(case.key_file) not in evidence.read_text() + page.read_text()
    text = page.read_text()
    assert checked.report.suspect.sha256 in text
    assert all(signer in text for signer in checked.signers)
    assert '<a href="./case.json"><bdi>case.json</bdi></a>' in text


def test_what_the_help_teaches_about_evidence_holds(
    case: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "--help"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "sigil evidence check" in line]
    monkeypatch.chdir(tmp_path)
    assert verify(case, case.marked, "--evidence", "case.json") == 0
    Path("published.txt").write_text(case.key.statement() + "\n")
    assert main(line.split()[1:]) == 0


def test_a_result_that_is_not_owned_is_evidence_too(case: Any, tmp_path: Path) -> None:
    evidence = tmp_path / "case.json"
    assert verify(case, case.clean, "--evidence", str(evidence)) == 1
    assert check(evidence.read_bytes()).report.owned is False


def test_an_auditor_signs_as_well_with_a_key_of_their_own(case: Any, tmp_path: Path) -> None:
    auditor = Ed25519PrivateKey.generate()
    pem, evidence = tmp_path / "auditor.pem", tmp_path / "case.json"
    pem.write_bytes(auditor.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    assert verify(case, case.marked, "--evidence", str(evidence), "--sign-with", str(pem)) == 0
    checked = check(evidence.read_bytes())
    signers = (case.key.signing_key(), auditor)
    assert checked.signers == tuple(one.public_key().public_bytes_raw().hex() for one in signers)


def test_evidence_is_never_overwritten(case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evidence = tmp_path / "case.json"
    evidence.write_text("earlier")
    assert verify(case, case.marked, "--evidence", str(evidence)) == 2
    assert evidence.read_text() == "earlier"
    assert "never overwritten" in capsys.readouterr().err


def test_the_seed_is_in_nothing_that_is_printed_or_written(
    case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, evidence = tmp_path / "page.html", tmp_path / "case.json"
    verify(case, case.marked, "--report", str(page), "--evidence", str(evidence), "--json")
    printed = capsys.readouterr()
    everything = (printed.out + printed.err).encode() + page.read_bytes() + evidence.read_bytes()
    seed = bytes(range(100, 132))
    signing = case.key.signing_key().private_bytes_raw()
    for secret in (seed, signing):
        assert secret not in everything
        assert secret.hex().encode() not in everything.lower()
        assert str(list(secret))[1:-1].encode() not in everything


def pem_of_another_kind(folder: Path) -> Path:
    pem = folder / "ec.pem"
    key = ec.generate_private_key(ec.SECP256R1())
    pem.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return pem


def locked_pem(folder: Path) -> Path:
    pem = folder / "locked.pem"
    lock = BestAvailableEncryption(b"open sesame")
    pem.write_bytes(Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock))
    return pem


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--input-shape", "3,banana"], "--input-shape"),
        (["--input-shape", "3,0,8"], "--input-shape"),
        (["--input-shape", "1,2,3,4,5"], "--input-shape"),
        (["--alpha", "2"], "alpha"),
        (["--tries", "0"], "tries"),
        (["--tries", "9" * 40], "--tries"),
        (["--seed", "-1"], "seed"),
        (["--cut", "layer9"], "layer9"),
        (["--sign-with", "x.pem"], "--evidence"),
        (["--report", "no/such/place/page.html"], "--report"),
        (["--evidence", "."], "--evidence"),
        (["--evidence", "e.json", "--sign-with", "missing.pem"], "missing.pem"),
        (["--evidence", "e.json", "--sign-with", "ec.pem"], "Ed25519"),
        (["--evidence", "e.json", "--sign-with", "locked.pem"], "encrypted"),
    ],
)
def test_bad_options_are_one_sentence_and_status_2(
    case: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    word: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    pem_of_another_kind(tmp_path)
    locked_pem(tmp_path)
    assert verify(case, case.marked, *options) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("sigil: ")
    assert printed.err.count("\n") == 1
    assert word in printed.err
    assert not (tmp_path / "e.json").exists()


def test_a_hostile_file_name_cannot_drive_the_terminal(
    case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = tmp_path / "model\x1b[2J\u202e.safetensors"
    hostile.write_bytes(case.marked.read_bytes())
    assert verify(case, hostile) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "model\\x1b[2J" in out


def test_a_terminal_gets_colour_and_whole_hashes(
    case: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    assert verify(case, case.marked) == 0
    out = capsys.readouterr().out
    assert "\x1b[1;32mOWNED" in out
    assert case.key.commitment in out


def test_a_missing_suspect_is_bad_input(case: Any, tmp_path: Path) -> None:
    assert verify(case, tmp_path / "nothing.safetensors") == 2


def test_a_plain_key_of_fifty_bits_proves_nothing(
    make_case: Callable[[int], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    case = make_case(50)
    assert main(["verify", str(case.marked), "--key", str(case.key_file), "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    noise = result["readings"][0]
    assert noise["kind"] == "noise"
    assert noise["log10_p_before"] < -9
    assert (result["owned"], result["threshold"], result["allowance_log2"]) == (False, None, 80)


# Nobody chooses.


def test_an_untrained_model_is_not_owned_by_what_was_chosen_afterwards(
    case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, evidence = tmp_path / "page.html", tmp_path / "case.json"
    chosen = ["--cut", "conv1", "--probes", "1", "--seed", "12077000"]
    assert verify(case, case.clean, *chosen, "--report", str(page), "--evidence", str(evidence)) == 1
    out = capsys.readouterr().out
    assert out.startswith("EXPERIMENT: nothing is proven by it")
    assert "the seed of the noise was chosen" in out
    assert "the key asks for 512 probes and not 1" in out
    assert "experiment" in page.read_text().lower()
    facts = check(evidence.read_bytes()).report
    assert (facts.experiment, facts.owned) == (True, False)


def test_a_level_above_that_of_proof_never_says_proven(
    case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    for suspect in (case.clean, case.marked):
        assert verify(case, suspect, "--alpha", "0.99", "--report", str(page), "--force") == 1
        out = capsys.readouterr().out
        assert "OWNED" not in out
        assert "compared with 0.99" in out
        assert ">Proven<" not in page.read_text()
        assert "Ownership proven" not in page.read_text()


def test_a_stated_cut_and_input_shape_cost_nothing_and_open_ones_count(
    case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stated = Key.generate(
        "ACME", shape=case.key.shape, bits=50, seed=bytes(32), cut="layer1", input_shape=(3, 8, 8)
    )
    stated.save(tmp_path / "stated.key")
    found = {}
    for name, file in (("open", case.key_file), ("stated", tmp_path / "stated.key")):
        main(["verify", str(case.clean), "--key", str(file), "--register", "1", "--json"])
        found[name] = json.loads(capsys.readouterr().out)["cuts"]
    assert found == {"open": 64, "stated": 1}


# Real inputs.


def test_both_readings_are_shown_and_inputs_of_the_claimant_prove_nothing(
    case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = tmp_path / "images.npy"
    np.save(images, np.random.default_rng(0).normal(size=(300, 3, 8, 8)).astype(np.float32))
    assert verify(case, case.marked, "--inputs", str(images), "--json") == 0
    noise, inputs = json.loads(capsys.readouterr().out)["readings"][:2]
    assert (noise["kind"], inputs["kind"], inputs["count"]) == ("noise", "inputs", 256)
    assert (noise["counts"], inputs["counts"], inputs["source"]) == (True, False, "claimant")
    options = ["--inputs", str(images), "--inputs-from", "judge"]
    assert verify(case, case.marked, *options) == 0
    out = capsys.readouterr().out
    assert "on noise" in out
    assert "on inputs" in out
    assert "chosen by the judge" in out


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (None, [], "no PNG or JPEG pictures"),
        (np.zeros((255, 3, 8, 8), np.float32), [], "at least 256 are needed"),
        (np.zeros((300, 1, 8, 8), np.float32), [], "the model takes (3, 8, 8)"),
        (np.full((300, 3, 8, 8), np.nan, np.float32), [], "not finite"),
        (np.zeros((300, 3, 8, 8), np.int64), [], "labels do not belong to them, and a model of tokens"),
        (np.zeros(300, np.float32), [], "(number, *shape of one input)"),
        (np.zeros((300, 3, 8, 8), np.uint8), [], "nobody says how the model's inputs were normalised"),
        (np.zeros((300, 3, 8, 8), np.uint8), ["--normalisation", "0.5/0.5"], "one of each per channel"),
        (np.zeros((300, 3, 8, 8), np.uint8), ["--normalisation", "half"], "--normalisation must be"),
        (np.zeros((300, 3, 8, 8), np.uint8), ["--normalisation", "0,0,0/1,nan,1"], "above 0"),
    ],
)
def test_bad_inputs_are_one_sentence_and_status_2(
    case: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    make: np.ndarray | None,
    options: list[str],
    words: str,
) -> None:
    place = tmp_path / "images"
    if make is None:
        place.mkdir()
    else:
        place = place.with_suffix(".npy")
        np.save(place, make)
    assert verify(case, case.marked, "--inputs", str(place), *options) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert words in printed.err


def test_what_belongs_to_inputs_needs_inputs(case: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for options in (["--inputs-from", "judge"], ["--normalisation", "0,0,0/1,1,1"]):
        assert verify(case, case.marked, *options) == 2
        assert "there are no inputs" in capsys.readouterr().err


def test_a_register_is_called_what_it_is(case: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(case, case.marked) == 0
    assert "1 statements in a closed register, if a judge counted them" in capsys.readouterr().out
    assert main(["verify", str(case.marked), "--key", str(case.key_file)]) == 0
    assert "closed register" not in capsys.readouterr().out


def test_a_demonstration_seal_is_called_one_and_counts_under_its_root_only(
    case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = DemonstrationAuthority()
    key = Key.generate("ACME", shape=case.key.shape, bits=64, seed=bytes(32), seal="rfc3161")
    key.seal(authority.answer(make_query(key.statement()))).save(tmp_path / "stamped.key")
    (tmp_path / "root.pem").write_bytes(authority.root_pem())
    command = ["verify", str(case.clean), "--key", str(tmp_path / "stamped.key")]
    assert main(command) == 1
    out = capsys.readouterr().out
    assert "not checked, so the key counts as plain" in out
    assert "2^80 keys" in out
    assert "demonstration seal: worth nothing outside" in out
    assert main([*command, "--tsa-root", str(tmp_path / "root.pem")]) == 1
    out = capsys.readouterr().out
    assert "which the examiner trusts" in out
    assert "2^24 keys" in out
    assert "demonstration seal: worth nothing outside" in out
