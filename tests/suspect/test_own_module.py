"""Weights of a model of the examiner's own: read safely, put into a module that the examiner's code makes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import sigil
from sigil.cli.main import main
from sigil.errors import ModelError, SuspectError
from sigil.suspect import open_into

CODE = """
from torch import nn

def half():
    return nn.Sequential(nn.Conv2d(1, 64, 3, 4, 1), nn.BatchNorm2d(64), nn.ReLU())

def nothing():
    return None
"""


def half(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return (
        nn.Sequential(nn.Conv2d(1, 64, 3, 4, 1), nn.BatchNorm2d(64), nn.ReLU()).eval().requires_grad_(False)
    )


@pytest.fixture
def key() -> sigil.Key:
    return sigil.Key.generate("ACME", (64, 2, 2), input_shape=(1, 8, 8))


def test_a_file_is_read_as_the_module_whose_weights_it_holds(tmp_path: Path, key: sigil.Key) -> None:
    model = half(1)
    path = tmp_path / "half.safetensors"
    save_file({f"model.{name}": one for name, one in model.state_dict().items()}, path)
    opened = open_into(path, half(2))
    assert opened.entries == ("model",)
    read, known = sigil.verify(opened, key), sigil.verify(model, key)
    assert read.to_dict()["readings"] == known.to_dict()["readings"]
    assert (read.suspect.kind, read.tries) == ("safetensors", 1)


def test_each_model_in_the_file_is_a_try(tmp_path: Path, key: sigil.Key) -> None:
    first, second = half(1), half(2)
    path = tmp_path / "two.pt"
    torch.save({"a": first.state_dict(), "b": second.state_dict(), "c": {"0.weight": torch.ones(2, 2)}}, path)
    opened = open_into(path, half(3))
    assert opened.entries == ("a", "b")
    assert [float(one(torch.ones(1, 1, 8, 8)).sum()) for one in opened.each()] == [
        float(model(torch.ones(1, 1, 8, 8)).sum()) for model in (first, second)
    ]
    assert sigil.verify(opened, key).tries == 2


def test_what_does_not_fit_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"0.weight": torch.ones(64, 1, 3, 3), "0.bias": torch.ones(3)}, path)
    with pytest.raises(
        SuspectError, match=r"of its 6 tensors 5 are missing or have another shape \('0.bias'"
    ):
        open_into(path, half(1))


def test_the_command_line_takes_code_of_the_examiners(
    tmp_path: Path, key: sigil.Key, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.py").write_text(CODE)
    save_file(half(1).state_dict(), "half.safetensors")
    key.save("owner.key")
    command = ["verify", "half.safetensors", "--key", "owner.key"]
    assert main(command) == 2
    assert "(--module FILE.py:NAME)" in capsys.readouterr().err
    assert main([*command, "--module", "my.py:half", "--evidence", "case.json"]) == 1
    assert "Sequential of the examiner's own code" in capsys.readouterr().out
    check = ["evidence", "check", "case.json", "--key", "owner.key", "--suspect", "half.safetensors"]
    assert main([*check, "--module", "my.py:half"]) == 0
    assert "the examination was repeated" in capsys.readouterr().out
    for wrong, sentence in (
        (["--module", "my.py:nn"], "my.py:nn is no function and no class; name one that the file defines"),
        (["--module", "my.py:nothing"], "my.py:nothing makes a NoneType"),
        (["--module", "my.py:half", "--cut", "layer3"], "--module makes the model itself"),
    ):
        assert main([*command, *wrong]) == 2
        assert sentence in capsys.readouterr().err


def test_the_code_is_asked_for_where_the_key_states_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was "there is no architecture 'layers-a53d…', the nearest is 'densenet121'"."""
    monkeypatch.chdir(tmp_path)
    Path("my.py").write_text(CODE)
    save_file(half(1).state_dict(), "half.safetensors")
    layers = sigil.alignment.layers_of(half(1), (1, 8, 8))
    sigil.Key.generate("ACME", (64, 2, 2), input_shape=(1, 8, 8), model=layers).save("owner.key")
    command = ["verify", "half.safetensors", "--key", "owner.key"]
    assert main([*command, "--module", "my.py:half", "--evidence", "case.json"]) == 1
    check = ["evidence", "check", "case.json", "--key", "owner.key", "--suspect", "half.safetensors"]
    for call in (command, check):
        capsys.readouterr()
        assert main(call) == 2
        said = "the key states a model of its owner's own, and a file of weights does not say how it computes"
        assert (
            f"{said}: name the code that builds its client half (--module FILE.py:NAME)"
            in capsys.readouterr().err
        )
    with pytest.raises(ModelError, match="or give the module itself"):
        sigil.verify("half.safetensors", "owner.key")
