"""`sigil trace`: what it prints and how it ends."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch

from harness.luck import Margin
from sigil import models
from sigil.cli.main import main
from sigil.keys.key import Key
from sigil.tracing.record import AgreementRecord
from sigil.verdict.verification import read_mark

CLIENTS, BITS = 4, 128


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a global model, client 2's local model, a run's record and the key beside it."""
    folder = tmp_path_factory.mktemp("trace")
    whole = models.build("resnet18", classes=4, width=16, input_size=8, seed=0)
    client, _ = models.split(whole, "layer1")
    shape = models.activation_shape(client, (3, 8, 8))
    key = Key.generate(
        "ACME", shape=shape, bits=BITS, seed=bytes(range(32)), scheme="shares", input_shape=(3, 8, 8)
    )
    key.save(folder / "run.key")
    (folder / "run").mkdir()
    # Marked by far, and not so well that no client's bits can agree better than the others.
    readings = read_mark(client, key, input_shape=(3, 8, 8), probes=256)
    while readings[0].log10_p_before > -8:
        _push(client, key, torch.ones(BITS, dtype=torch.bool), steps=10)
        readings = read_mark(client, key, input_shape=(3, 8, 8), probes=256)
    record = AgreementRecord(key.commitment, CLIENTS, 1, BITS).added(1, readings)
    record.write(folder / "run" / "agreement.json")
    models.save(folder / "global.safetensors", client)
    _push(client, key, key.share_of(2, CLIENTS), steps=60)
    models.save(folder / "leaked.safetensors", client)
    return folder


def _push(client: models.Model, key: Key, bits: torch.Tensor, *, steps: int) -> None:
    """Push these bits with signed gradient steps, and hold the others where they are."""
    draws = torch.Generator().manual_seed(1)
    before = copy.deepcopy(client).eval()
    client.eval()
    for _ in range(steps):
        batch = torch.randn(64, 3, 8, 8, generator=draws)
        projection = client(batch).flatten(1) @ key.matrix
        wanted = key.target[bits].expand(64, -1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(projection[:, bits], wanted)
        if not bits.all():
            with torch.no_grad():
                held = before(batch).flatten(1) @ key.matrix
            loss = loss + 0.01 * (projection - held)[:, ~bits].square().mean()
        gradients = torch.autograd.grad(loss, list(client.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(client.parameters(), gradients, strict=True):
                parameter -= 0.002 * gradient.sign()


def test_a_leaked_model_names_its_client(
    case: Path, capsys: pytest.CaptureFixture[str], margin: Margin
) -> None:
    assert main(["trace", str(case / "leaked.safetensors"), "--key", str(case / "run.key")]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("CLIENT 2 stands out")
    assert "A lead, not a proof" in printed
    arguments = ["--key", str(case / "run.key"), "--run", str(case / "run"), "--json"]
    assert main(["trace", str(case / "leaked.safetensors"), *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["named"] == 2 == found["ranking"][0]["client"]
    assert found["level"] == 1e-3
    margin("p", found["ranking"][0]["p"], below=1e-3)


def test_the_global_model_names_nobody(case: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(case / "global.safetensors"), "--key", str(case / "run.key")]) == 1
    assert capsys.readouterr().out.startswith("GLOBAL: this is the global model of round 1")


def test_without_a_record_there_is_one_sentence(
    case: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "owner.key").write_bytes((case / "run.key").read_bytes())
    (tmp_path / "owner.key").chmod(0o600)
    for more, words in (([], "There is no run beside the key"), (["--run", str(tmp_path)], "There is no ")):
        arguments = ["trace", str(case / "leaked.safetensors"), "--key", str(tmp_path / "owner.key"), *more]
        assert main(arguments) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith(f"sigil: {words}")
        assert printed.err.count("\n") == 1


def test_of_several_models_in_a_file_one_is_chosen(
    case: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = {name: models.load(case / f"{name}.safetensors").state_dict() for name in ("global", "leaked")}
    torch.save(held, tmp_path / "both.pt")
    arguments = ["trace", str(tmp_path / "both.pt"), "--key", str(case / "run.key")]
    assert main(arguments) == 2
    assert "holds 2 models ('global', 'leaked'), and a trace is of one" in capsys.readouterr().err
    assert main([*arguments, "--entry", "leaked"]) == 0
    assert capsys.readouterr().out.startswith("CLIENT 2 stands out")
