"""Opening a suspect: the right model from each format, one sentence for everything else."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from harness.damage import mutated
from sigil import models
from sigil.eager import Mode
from sigil.errors import ModelError, ShapeError, SigilError, SuspectError
from sigil.keys.key import Key
from sigil.suspect import Suspect, open_suspect, opening
from sigil.verdict.verification import verify

INPUT = (3, 16, 16)
ACTIVATION = (8, 4, 4)
VGG: dict[str, Any] = {"architecture": "vgg11", "width": 4, "cut": "pool2"}


@pytest.fixture
def client(half: models.Model, tmp_path: Path) -> Path:
    path = tmp_path / "client.safetensors"
    models.save(path, half)
    return path


def test_a_file_of_sigil_needs_no_arguments(client: Path, half: models.Model, images: Tensor) -> None:
    suspect = open_suspect(client)
    assert suspect.kind == "safetensors"
    assert suspect.input_shape == INPUT
    assert suspect.sha256 == hashlib.sha256(client.read_bytes()).hexdigest()
    assert "vgg11" in suspect.description
    assert "pool2" in suspect.description
    with torch.no_grad():
        assert torch.equal(suspect(images), half(images))


def test_a_suspect_is_in_evaluation_mode_and_takes_no_gradients(client: Path, images: Tensor) -> None:
    suspect = open_suspect(client)
    assert suspect.module is not None
    assert not any(part.training for part in suspect.module.modules())
    assert not suspect(images.requires_grad_()).requires_grad
    images.requires_grad_(False)


def test_a_whole_model_is_cut_where_asked(model: models.Model, images: Tensor, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    models.save(path, model)
    for cut in ("pool1", "pool3"):
        with torch.no_grad():
            expected = models.split(model, cut)[0].eval()(images)
        assert torch.equal(open_suspect(path, cut=cut)(images), expected)
    assert models.default_cut("vgg11") in open_suspect(path).description


def test_a_half_is_opened_at_its_own_cut_whatever_rows_it_ends_with(
    model: models.Model, tmp_path: Path
) -> None:
    """Before or behind a pooling the tensors are the same: the file says it, or the key by its shape."""
    path = tmp_path / "half.safetensors"
    for cut in models.cut_points("vgg11"):
        half = models.split(model, cut)[0]
        models.save(path, half)
        assert open_suspect(path).module.spec.cut == cut  # type: ignore[union-attr]
        bare = tmp_path / "bare.safetensors"
        save_file(half.state_dict(), bare)
        shape = models.activation_shape(half, INPUT)
        opened = open_suspect(bare, input_shape=INPUT, activation_shape=shape)
        with torch.no_grad():
            assert opened(torch.zeros(1, *INPUT)).shape[1:] == shape


def test_an_impossible_input_shape_in_the_metadata_gives_way_to_a_given_one(
    half: models.Model, tmp_path: Path
) -> None:
    copy = models.from_state(half.spec, half.state_dict())
    copy.input_shape = (3, 1, 1)
    path = tmp_path / "small.safetensors"
    models.save(path, copy)
    assert open_suspect(path, activation_shape=ACTIVATION, input_shape=INPUT).input_shape == INPUT
    with pytest.raises(ShapeError, match="--input-shape"):
        open_suspect(path, activation_shape=ACTIVATION)


def test_foreign_safetensors_open_by_their_weights_or_with_a_named_architecture(
    half: models.Model, images: Tensor, tmp_path: Path
) -> None:
    path = tmp_path / "foreign.safetensors"
    save_file(half.state_dict(), path)
    assert open_suspect(path).module.spec == half.spec  # type: ignore[union-attr]
    suspect = open_suspect(path, **VGG)
    assert suspect.input_shape is None
    assert open_suspect(path, **VGG, input_shape=INPUT).input_shape == INPUT
    with torch.no_grad():
        assert torch.equal(suspect(images), half(images))


def test_arguments_win_over_what_the_file_says(client: Path, half: models.Model) -> None:
    assert open_suspect(client, cut="pool1").module.spec.cut == "pool1"  # type: ignore[union-attr]
    assert open_suspect(client, input_shape=(3, 32, 32)).input_shape == (3, 32, 32)
    with pytest.raises(SuspectError, match="width 8"):
        open_suspect(client, width=8)
    # What the file says of another architecture counts for nothing.
    with pytest.raises(SuspectError, match="width 64"):
        open_suspect(client, architecture="resnet18")


@pytest.mark.parametrize(
    "said",
    [
        "{",
        '{"format": 1, "spec": 3}',
        "x" * 100_000,
        json.dumps({"part": "server", "cut": "pool3"}),
        json.dumps({"part": "whole", "cut": None, "width": 64}),
        json.dumps({"name": "resnet18", "cut": "layer1"}),
        json.dumps({"channels": 1}),
        json.dumps({"cut": "pool1"}),
    ],
)
@pytest.mark.parametrize("named", [False, True])
def test_what_a_file_says_of_itself_is_shown_and_decides_nothing(
    half: models.Model, images: Tensor, tmp_path: Path, said: str, named: bool
) -> None:
    text = said
    if said.startswith("{") and said.endswith("}") and "format" not in said:
        spec = dataclasses.asdict(half.spec) | json.loads(said)
        text = json.dumps({"format": 1, "spec": spec, "input_shape": None, "extra": {}})
    path = tmp_path / "lying.safetensors"
    save_file(half.state_dict(), path, metadata={"sigil": text})
    suspect = open_suspect(path, **(VGG if named else {}), input_shape=INPUT)
    assert suspect.module is not None
    assert suspect.module.spec == half.spec
    assert "; the file says: " in suspect.description
    with torch.no_grad():
        assert torch.equal(suspect(images), half(images))


def test_the_server_half_is_refused(model: models.Model, tmp_path: Path) -> None:
    path = tmp_path / "server.safetensors"
    models.save(path, models.split(model, "pool2")[1])
    with pytest.raises(SuspectError, match="the mark is in the client half"):
        open_suspect(path)


def test_a_safetensors_file_that_was_cut_says_how_much_is_missing(client: Path) -> None:
    content = client.read_bytes()
    client.write_bytes(content[: len(content) // 2])
    missing = len(content) - len(content) // 2
    with pytest.raises(SuspectError, match=f"truncated: {missing:,} bytes missing of {len(content):,}"):
        open_suspect(client)


@pytest.mark.parametrize(
    "named", [{"width": 64}, {"architecture": "vgg11"}, {"architecture": "vgg11", "cut": "pool3"}]
)
@pytest.mark.parametrize("by_key", [False, True])
def test_weights_of_another_model_than_named_are_called_what_they_are(
    named: dict[str, Any], by_key: bool, tmp_path: Path
) -> None:
    path = tmp_path / "weights.pt"
    torch.save(models.build("resnet18", width=16, seed=0).state_dict(), path)
    options: dict[str, Any] = dict(named)
    if by_key:
        stated = {"model": named.get("architecture"), "width": named.get("width"), "cut": named.get("cut")}
        options = {"key": Key.generate("ACME", shape=(64, 8, 8), bits=8, seed=bytes(32), **stated)}
    with pytest.raises(SuspectError, match="these weights are a resnet18 of width 16 "):
        open_suspect(path, **options)


def test_a_cut_that_the_key_states_is_not_looked_for_in_another_architecture(tmp_path: Path) -> None:
    """It was "there is no cut point of vgg11 'layer3'"."""
    path = tmp_path / "weights.pt"
    torch.save(models.build("resnet18", width=16, seed=0).state_dict(), path)
    for model in (None, "resnet18"):
        key = Key.generate("ACME", shape=(64, 8, 8), bits=8, seed=bytes(32), model=model, cut="layer3")
        with pytest.raises(SuspectError, match="these weights are a resnet18 of width 16 "):
            open_suspect(path, key=key, architecture="vgg11")
        suspect = open_suspect(path, key=key, architecture="resnet18")
        assert suspect(torch.zeros(1, 3, 32, 32)).shape == (1, 64, 8, 8)


def test_weights_for_other_images_than_named_are_called_what_they_are(client: Path) -> None:
    with pytest.raises(SuspectError, match=r"vgg11 of width 4 for inputs of 3 channels, and not .* of 1 "):
        open_suspect(client, input_shape=(1, 16, 16))


@pytest.mark.parametrize("named", [{}, {"architecture": "resnet18"}])
@pytest.mark.parametrize(
    "renamed",
    [
        lambda name: name.replace(".", "_"),
        lambda name: name.replace("layer", "stage"),
        lambda name: name.replace(".", ".inner.", 1),
        lambda name: f"{name}.data",
    ],
)
def test_renamed_tensors_are_not_called_a_model_that_they_are_not(
    renamed: Callable[[str], str], named: dict[str, Any], tmp_path: Path
) -> None:
    """Blocks have layers of the same names as networks, and all networks end alike.

    In the order of the model they are read as what they are; here the last comes first.
    """
    path = tmp_path / "weights.pt"
    state = models.build("resnet18", width=8, seed=0).state_dict()
    other = {renamed(name): tensor for name, tensor in state.items()}
    torch.save(other, path)
    assert open_suspect(path, **named, cut="layer3").entries == (f"{next(iter(other))} (in order)",)
    torch.save({name: other[name] for name in reversed(other)}, path)
    with pytest.raises(SuspectError, match=r"holds 122 tensors \('|it lacks ") as caught:
        open_suspect(path, **named, cut="layer3")
    assert "server half" not in str(caught.value)
    assert "these weights are" not in str(caught.value)


def without(name: str) -> Callable[[dict[str, Tensor]], None]:
    return lambda state: state.__delitem__(name)


CHANGES = {
    "lacks the tensor 'stage2.0.weight'": without("stage2.0.weight"),
    "other shapes": lambda state: state.update({"stage1.0.bias": torch.zeros(5)}),
    "as int8": lambda state: state.update({"stage1.0.weight": state["stage1.0.weight"].to(torch.int8)}),
}


@pytest.mark.parametrize("why", CHANGES)
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_weights_that_do_not_fit_give_one_sentence(
    half: models.Model, tmp_path: Path, why: str, suffix: str
) -> None:
    state = {name: tensor.clone() for name, tensor in half.state_dict().items()}
    CHANGES[why](state)
    path = tmp_path / f"suspect{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(state, path)
    with pytest.raises(SuspectError, match=why) as info:
        open_suspect(path, **VGG)
    assert str(path) in str(info.value)
    assert "\n" not in str(info.value)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("extra", ["extra.weight", "stage9.0.weight", "fc.0.weight", "x" * 5000, ""])
def test_a_tensor_beside_those_of_the_model_does_not_keep_it_closed(
    half: models.Model, images: Tensor, tmp_path: Path, suffix: str, extra: str
) -> None:
    path = tmp_path / f"suspect{suffix}"
    state = {**half.state_dict(), extra: torch.zeros(2)}
    (save_file if suffix == ".safetensors" else torch.save)(state, path)
    for options in ({}, VGG):
        with torch.no_grad():
            assert torch.equal(open_suspect(path, **options)(images), half(images))


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_an_infinity_that_no_output_depends_on_does_not_keep_a_model_closed(
    half: models.Model, images: Tensor, tmp_path: Path, suffix: str
) -> None:
    """A thief sets the shift of a channel that is never positive to minus infinity, and loses nothing."""
    state = {name: tensor.clone() for name, tensor in half.state_dict().items()}
    state["stage1.1.bias"][0] = -math.inf
    path = tmp_path / f"suspect{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(state, path)
    assert bool(torch.isfinite(open_suspect(path, **VGG)(images)).all())


def test_weights_that_are_no_numbers_are_read_as_nothing(half: models.Model, tmp_path: Path) -> None:
    state = {name: tensor.clone() for name, tensor in half.state_dict().items()}
    state["stage1.0.weight"].fill_(math.nan)
    save_file(state, tmp_path / "suspect.safetensors")
    key = Key.generate("ACME", shape=ACTIVATION, bits=8, seed=bytes(32))
    report = verify(open_suspect(tmp_path / "suspect.safetensors", **VGG), key, input_shape=INPUT)
    assert not report.owned
    assert not report.readings[0].readable


def test_wrong_names_list_what_exists(client: Path) -> None:
    with pytest.raises(ModelError, match=r"vgg12.*'vgg11'"):
        open_suspect(client, architecture="vgg12")
    with pytest.raises(ModelError, match=r"pool9.*pool5"):
        open_suspect(client, cut="pool9")
    with pytest.raises(ModelError, match="width"):
        open_suspect(client, width=0)
    with pytest.raises(SuspectError, match="no ONNX graph"):
        open_suspect(client, at="pool2")


def test_a_shape_at_the_cut_that_is_not_the_keys_is_refused_at_once(client: Path) -> None:
    assert open_suspect(client, activation_shape=ACTIVATION).kind == "safetensors"
    with pytest.raises(ShapeError, match=r"\(8, 4, 4\).*\(4, 8, 8\)"):
        open_suspect(client, activation_shape=(4, 8, 8))
    with pytest.raises(SuspectError, match="does not take inputs"):
        open_suspect(client, input_shape=(3, 16), activation_shape=ACTIVATION)


class Largest(Mode):
    """Remembers the largest tensor that was made in memory; those of the meta device have none."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, Tensor) and not tensor.is_meta:
                self.elements = max(self.elements, tensor.numel())
        return made


def test_a_huge_input_shape_in_the_file_costs_no_memory(half: models.Model, tmp_path: Path) -> None:
    """It is compared with the key's shape before any image of that size is made."""
    copy = models.from_state(half.spec, half.state_dict())
    copy.input_shape = (3, 4096, 4096)
    path = tmp_path / "huge.safetensors"
    models.save(path, copy)
    with Largest() as largest, pytest.raises(ShapeError, match=r"\(8, 1024, 1024\)"):
        open_suspect(path, activation_shape=ACTIVATION)
    assert largest.elements < 100_000
    with Largest() as largest:
        models.activation_shape(copy, (3, 256, 256))
    assert largest.elements > 100_000, "what takes memory is seen"


def test_a_file_swapped_after_it_was_hashed_is_not_the_one_that_is_loaded(
    client: Path, half: models.Model, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = client.read_bytes()
    start = opening.Examination

    def swap_then_start(*arguments: Any, **options: Any) -> opening.Examination:
        swapped = bytearray(content)
        swapped[-64:] = bytes(64)
        client.unlink()
        client.write_bytes(swapped)
        return start(*arguments, **options)

    monkeypatch.setattr(opening, "Examination", swap_then_start)
    suspect = open_suspect(client)
    assert suspect.sha256 == hashlib.sha256(content).hexdigest()
    with torch.no_grad():
        assert torch.equal(suspect(images), half(images))


def test_every_format_gives_the_same_verdict(
    client: Path, exported: Path, graph: Path, half: models.Model, tmp_path: Path
) -> None:
    key = Key.generate("ACME", shape=ACTIVATION, bits=20, seed=bytes(32))
    state = tmp_path / "state.pt"
    torch.save(half.state_dict(), state)
    expected = verify(half, key, input_shape=INPUT, probes=64)
    assert verify(open_suspect(client), key, probes=64).to_dict() == expected.to_dict()
    for path in (state, exported):
        found = verify(open_suspect(path, **VGG), key, input_shape=INPUT, probes=64)
        assert found.to_dict() == expected.to_dict()
    found = verify(open_suspect(graph, at="/pool2/MaxPool"), key, probes=64)
    assert found.bit_shares == pytest.approx(expected.bit_shares, abs=1 / 64)
    assert found.margins == pytest.approx(expected.margins, abs=1e-4)


def test_a_suspect_does_not_print_its_weights(client: Path) -> None:
    assert len(repr(open_suspect(client))) < 500
    assert isinstance(open_suspect(client), Suspect)


@pytest.mark.parametrize("kind", ["safetensors", "state dict", "legacy", "exported", "onnx"])
def test_mutations_give_a_suspect_or_an_error_of_ours(
    kind: str, stored: Callable[[str], Path], tmp_path: Path
) -> None:
    """In a process for each file; the readers alone are given more (test_hostile.py)."""
    source = stored(kind)
    arguments = {"safetensors": {}, "onnx": {"at": "/pool2/MaxPool"}}.get(kind, VGG)
    content = source.read_bytes()
    chance = random.Random(kind)
    path = tmp_path / f"mutated{source.suffix}"
    refused = []
    for _ in range(40):
        path.write_bytes(mutated(content, chance))
        try:
            open_suspect(path, **arguments)(torch.zeros(1, *INPUT))
        except SigilError as error:
            refused.append(str(error))
    assert len(refused) > 5
    assert not any("\n" in sentence for sentence in refused)
