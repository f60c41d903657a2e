"""References of a run: the weights that it began with, made again from its seed, and what was recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import sigil
from sigil import models
from sigil.alignment import Reference, began_with_key, fingerprint, initial_half
from sigil.alignment.initial_weights import search_known
from sigil.errors import AlignmentError, SigilError
from sigil.federation import train
from sigil.federation.federation import Federation
from sigil.federation.from_settings import load_data
from sigil.federation.settings import make
from sigil.keys.key import Key

SETTINGS = {
    "model": {"width": 4},
    "data": {"train_limit": 40, "test_limit": 20},
    "federation": {"clients": 2, "rounds": 1, "batch_size": 10},
    "optimizer": {"warmup_rounds": 0},
    "watermark": {"strength": 0.0},
    "run": {"workers": 1, "threads": 1, "seed": 5},
}


def test_it_is_what_the_federation_began_with(tmp_path: Path) -> None:
    settings = make(SETTINGS)
    began = Federation(settings, load_data(settings)).client_state
    run = train(settings, tmp_path / "run")
    again = initial_half(tmp_path / "run")
    for name, value in again.state_dict().items():
        torch.testing.assert_close(value, began[name], rtol=0, atol=0)
    trained = run.halves()[0]
    assert not torch.equal(trained.state_dict()["conv1.weight"], began["conv1.weight"])
    found = search_known(trained, again).result()
    assert found.believed
    assert found.order.tolist() == list(range(16))


MARKED = SETTINGS | {"watermark": {"strength": 0.5, "scheme": "paper"}}


def owner_key(**stated: Any) -> Key:
    return Key.generate("ACME", shape=(16, 2, 2), bits=16, seed=bytes(32), **stated)


def test_a_marked_training_begins_with_weights_that_the_key_drew(tmp_path: Path) -> None:
    """So that descent from it can be shown, and a copy in disguise be put in order, without any file."""
    settings, folder, key = make(MARKED), tmp_path / "run", owner_key()
    began = Federation(settings, load_data(settings), key=key).client_state
    drawn = [name for name, value in began.items() if value.ndim == 4]
    assert drawn
    for name in drawn:
        torch.testing.assert_close(began[name], key.initial(name, began[name].shape), rtol=0, atol=0)
    half = train(settings, folder, key=key).halves()[0]
    assert json.loads((folder / "run.json").read_text())["initial_weights"] == "key"
    assert began_with_key(folder)
    again = initial_half(folder, key)
    for name, value in again.state_dict().items():
        torch.testing.assert_close(value, began[name], rtol=0, atol=0)
    for other in (None, owner_key(initialiser=None)):
        with pytest.raises(AlignmentError, match="weights that its key drew"):
            initial_half(folder, other)
    # The directory is no reference that anybody brings: the key needs none.
    report = sigil.verify(half, key, reference=folder)
    assert (report.experiment, report.descends, report.tries) == (False, True, 1)
    assert report.alignment is not None
    assert report.alignment.compared == "initial weights"
    # Of another kind of suspect only activations can be compared, which were recorded.
    report = sigil.verify(lambda batch: half.eval()(batch), key, input_shape=(1, 8, 8), reference=folder)
    assert report.alignment is not None
    assert (report.alignment.compared, report.tries) == ("correlations under noise", 2)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (SETTINGS, owner_key()),
        (MARKED, owner_key(initialiser=None)),
    ],
    ids=["no mark", "no initialiser"],
)
def test_other_trainings_begin_with_weights_of_the_seed_and_say_so(
    settings: dict[str, Any], key: Key, tmp_path: Path
) -> None:
    made = make(settings)
    federation = Federation(made, load_data(made), key=key)
    assert federation.training.initial_weights == "seed"
    train(made, tmp_path / "run", key=key)
    assert json.loads((tmp_path / "run/run.json").read_text())["initial_weights"] == "seed"
    for name, value in initial_half(tmp_path / "run").state_dict().items():
        torch.testing.assert_close(value, federation.client_state[name], rtol=0, atol=0)


def test_a_folder_without_a_run_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SigilError, match=str(tmp_path)):
        initial_half(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"finished": false, "settings": {"run": {"seed": 0}}}', "is not finished"),
        ('{"finished": true}', "not the description of a run"),
        ("[1, 2]", "not the description of a run"),
        ('{"finished": true, "settings": {"run": {"seed": "0"}}}', "not the description of a run"),
        ("{", "cannot be read"),
        (" " * ((1 << 20) + 1), "not the description of a run"),
        ("[" * 100_000, "cannot be read"),
    ],
)
def test_a_damaged_description_is_one_sentence(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(AlignmentError, match=message):
        initial_half(tmp_path)


def test_verify_takes_the_directory_of_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    half = train(make(SETTINGS), folder).halves()[0]
    shape = models.activation_shape(half, (1, 8, 8))
    key = sigil.Key.generate(owner="ACME", shape=shape, bits=8, seed=bytes(32))
    for reference in (folder, str(folder)):
        report = sigil.verify(half, key, reference=reference)
        assert report.alignment is not None
        assert report.alignment.compared == "initial weights"
        assert report.alignment.reference == fingerprint(initial_half(folder))
    # A suspect that is only a function shows no weights, and images are compared by activations.
    for suspect, inputs in ((lambda batch: half.eval()(batch), None), (half, "digits")):
        report = sigil.verify(suspect, key, inputs, input_shape=(1, 8, 8), reference=folder)
        assert report.alignment is not None
        assert report.alignment.compared.startswith("correlations")
        assert report.alignment.reference == fingerprint(Reference.load(folder / "reference.safetensors"))
