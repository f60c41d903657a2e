"""Folders, and weights in several files with an index, as Hugging Face stores them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sigil import models
from sigil.errors import SuspectError
from sigil.suspect import open_suspect

INDEX = "model.safetensors.index.json"


@pytest.fixture
def shards(half: models.Model, tmp_path: Path) -> Path:
    """The half in two shards and their index."""
    state = half.state_dict()
    names = sorted(state)
    parts = {"a-1-of-2.safetensors": names[::2], "a-2-of-2.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({name: state[name] for name in held}, tmp_path / file)
    weight_map = {name: file for file, held in parts.items() for name in held}
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return tmp_path


def change(folder: Path, name: str, home: object) -> None:
    content = json.loads((folder / INDEX).read_text())
    content["weight_map"][name] = home
    (folder / INDEX).write_text(json.dumps(content))


def test_shards_open_by_their_index_or_folder(shards: Path, half: models.Model, images: Tensor) -> None:
    for path in (shards, shards / INDEX):
        suspect = open_suspect(path)
        assert suspect.kind == "2 shards"
        assert suspect.path == shards / INDEX
        with torch.no_grad():
            assert torch.equal(suspect(images), half(images))
    files = sorted(shards.glob("*.safetensors"))
    lines = "".join(f"{f.name} {hashlib.sha256(f.read_bytes()).hexdigest()}\n" for f in files)
    assert suspect.sha256 == hashlib.sha256(lines.encode()).hexdigest()


@pytest.mark.parametrize(
    ("name", "home", "sentence"),
    [
        ("stage1.0.weight", "../outside.safetensors", "own folder"),
        ("stage1.0.weight", "/etc/passwd", "own folder"),
        ("stage1.0.weight", "", "own folder"),
        ("stage1.0.weight", 5, "not an index of shards"),
        ("nowhere", "gone.safetensors", "cannot be read"),
    ],
)
def test_an_index_that_lies_is_refused(shards: Path, name: str, home: object, sentence: str) -> None:
    change(shards, name, home)
    with pytest.raises(SuspectError, match=sentence):
        open_suspect(shards)


@pytest.mark.parametrize("listed", ["all in the second", "one that is nowhere", "one too few"])
def test_an_index_names_the_files_and_no_more(
    shards: Path, half: models.Model, images: Tensor, listed: str
) -> None:
    """Loaders read whole files; what an index says of single tensors must not keep a model closed."""
    content = json.loads((shards / INDEX).read_text())
    homes = content["weight_map"]
    if listed == "all in the second":
        homes |= dict.fromkeys(list(homes)[1:], "a-2-of-2.safetensors")
    elif listed == "one that is nowhere":
        homes["nowhere"] = "a-1-of-2.safetensors"
    else:
        del homes["stage1.0.weight"]
    (shards / INDEX).write_text(json.dumps(content))
    suspect = open_suspect(shards)
    assert suspect.entries == ("",)
    with torch.no_grad():
        assert torch.equal(suspect(images), half(images))


def test_a_tensor_in_two_shards_is_two_models(shards: Path, half: models.Model, images: Tensor) -> None:
    state = {name: tensor + 1 for name, tensor in half.state_dict().items()}
    save_file(state, shards / "a-0-of-2.safetensors")
    change(shards, "stage1.0.weight", "a-0-of-2.safetensors")
    suspect = open_suspect(shards)
    assert suspect.entries == ("", "(2)")
    with torch.no_grad():
        assert any(torch.equal(each(images), half(images)) for each in suspect.each())


def test_an_index_beside_a_whole_model_leaves_a_choice(shards: Path, half: models.Model) -> None:
    models.save(shards / "model.safetensors", half)
    with pytest.raises(SuspectError, match=rf"4 model files \('{INDEX}', .*'model.safetensors'\): give one"):
        open_suspect(shards)


@pytest.mark.parametrize("text", ["[]", "{", "{}", '{"weight_map": []}', '{"weight_map": {}}', "\0"])
def test_what_is_no_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(SuspectError, match="not an index of shards"):
        open_suspect(tmp_path)


def test_an_index_of_a_million_names_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {str(n): str(n) for n in range(20_000)}}))
    with pytest.raises(SuspectError, match="more than the limits"):
        open_suspect(tmp_path)
    (tmp_path / INDEX).write_bytes(b" " * (4 * 1024**2 + 1))
    with pytest.raises(SuspectError, match="longer than an index"):
        open_suspect(tmp_path)


def test_a_run_stands_for_its_client_half(half: models.Model, tmp_path: Path) -> None:
    models.save(tmp_path / "client.safetensors", half)
    models.save(tmp_path / "server.safetensors", half)
    assert open_suspect(tmp_path).path == tmp_path / "client.safetensors"


def test_a_folder_with_one_model_stands_for_it(half: models.Model, tmp_path: Path) -> None:
    torch.save(half.state_dict(), tmp_path / "weights.pth")
    (tmp_path / "README.md").write_text("a model")
    assert open_suspect(tmp_path).kind == "state dict"
    torch.save(half.state_dict(), tmp_path / "more.pth")
    with pytest.raises(SuspectError, match=r"2 model files \('more.pth', 'weights.pth'\): give one"):
        open_suspect(tmp_path)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SuspectError, match="folder without a model file"):
        open_suspect(tmp_path)


def test_an_own_architecture_is_told_the_ways(tmp_path: Path) -> None:
    torch.save(nn.Linear(3, 4).state_dict(), tmp_path / "own.pt")
    with pytest.raises(SuspectError) as caught:
        open_suspect(tmp_path / "own.pt")
    for way in ("--architecture", "ONNX", "--at", "--module FILE.py:NAME"):
        assert way in str(caught.value)


def test_files_beyond_four_gigabytes_are_no_longer_refused_for_their_size(tmp_path: Path) -> None:
    sparse = tmp_path / "huge.safetensors"
    with sparse.open("wb") as file:
        file.write((2).to_bytes(8, "little") + b"{}")
        file.truncate(65 * 1024**3)
    with pytest.raises(SuspectError, match="more than the limit of 68,719,476,736"):
        open_suspect(sparse)
