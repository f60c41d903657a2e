"""References of a run: the weights that it began with, made again from its seed, and what was recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import sigil
from sigil import models
from sigil.alignment import Reference, fingerprint, initial_half
from sigil.alignment.initial_weights import match_by_initial_weights
from sigil.errors import AlignmentError, SigilError
from sigil.federation import train
from sigil.federation.federation import Federation
from sigil.federation.from_settings import load_data
from sigil.federation.settings import make

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
    found = match_by_initial_weights(trained, again)
    assert found.believed
    assert found.order.tolist() == list(range(16))


def test_a_key_draws_what_its_training_begins_with(tmp_path: Path) -> None:
    settings = make(SETTINGS | {"watermark": {"strength": 0.1, "bits": 8}})
    key = sigil.Key.generate(owner="ACME", shape=(16, 2, 2), bits=8, seed=bytes(32))
    began = Federation(settings, load_data(settings), key=key).client_state
    torch.testing.assert_close(began["conv1.weight"], key.initial("conv1.weight", (4, 1, 3, 3)))
    half = train(settings, tmp_path / "run", key=key).halves()[0]
    again = initial_half(tmp_path / "run", key)
    for name, value in again.state_dict().items():
        torch.testing.assert_close(value, began[name], rtol=0, atol=0)
    other = sigil.Key.generate(owner="ACME", shape=(16, 2, 2), bits=8, seed=bytes([1]) * 32)
    for wrong in (None, other):
        with pytest.raises(AlignmentError, match="weights that its key drew; give that key"):
            initial_half(tmp_path / "run", wrong)
    # The run's directory says nothing that the key does not say itself, so that nothing was chosen.
    report = sigil.verify(half, key, reference=tmp_path / "run")
    assert report.descends
    assert report.reasons == ()
    assert not sigil.verify(half, other).descends


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
        assert report.alignment.source == "initial weights"
        assert report.alignment.fingerprint == fingerprint(initial_half(folder))
    # A suspect that is only a function shows no weights, and images are compared by activations.
    for suspect, inputs in ((lambda batch: half.eval()(batch), None), (half, "digits")):
        report = sigil.verify(suspect, key, inputs, input_shape=(1, 8, 8), reference=folder)
        assert report.alignment is not None
        assert report.alignment.source.startswith("correlations")
        assert report.alignment.fingerprint == fingerprint(Reference.load(folder / "reference.safetensors"))
