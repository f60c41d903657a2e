"""Keys of experiments: new ones state what an owner's would, and those of committed models never change."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

from sigil.errors import ExperimentError
from sigil.keys.key import Key
from sigil_reproduction.runner import keys, scales
from sigil_reproduction.runner.keys import OWNER, BareKey
from sigil_reproduction.runner.store import KEY, Store

MODELS = Path(__file__).parents[2] / "results" / "desk" / "models"
# SHA-256 over M and b of the committed models that have bare keys: seed, shape at the cut, digest.
BARE = {
    "2c3e26292cf91125": (0, (128, 2, 2), "cac10ff23ee54cbb70166978f451db95003ff62aa1b8501acdf0be6d10e755e3"),
    "2febfcd168a587bf": (0, (64, 8, 8), "2f0c04b382fddac289d5a9363931526ed4a3aecfd32c8b071d1bfa2bca75a620"),
    "438ca12030ac0f92": (0, (64, 8, 8), "2f0c04b382fddac289d5a9363931526ed4a3aecfd32c8b071d1bfa2bca75a620"),
    "65dbe95e5e24ab44": (0, (128, 4, 4), "a502504ff931fe45d519fce0c0d6cfa772cb380b338342b62a2a89e49787096d"),
    "8d47f539ef8131cc": (1, (64, 8, 8), "4fb0de7320b01c63d5aa1e9364b22079af344e31ff3bb19aa8954784372765e0"),
    "eba235cde1ef4049": (0, (64, 8, 8), "2f0c04b382fddac289d5a9363931526ed4a3aecfd32c8b071d1bfa2bca75a620"),
}
SHARES = ("a92a8e7bb5954189", "646a7eaa8b23fc1aa6804da5e7cc6697b65afbf2ced10f5eef720834d59de4a8")


def commitment(name: str) -> str:
    return str(json.loads((MODELS / name / "run.json").read_text("utf-8"))["commitment"])


def digest(key: Key) -> str:
    return hashlib.sha256(key.matrix.numpy().tobytes() + key.target.numpy().tobytes()).hexdigest()


def secret(seed: int) -> bytes:
    return hashlib.sha256(f"sigil experiment key, seed {seed}".encode()).digest()


@pytest.mark.parametrize("name", BARE)
def test_bare_keys_of_committed_models_keep_matrix_and_bits(name: str) -> None:
    seed, shape, expected = BARE[name]
    key = BareKey(OWNER, shape, 50, secret(seed))
    assert digest(key) == expected
    assert key.commitment == commitment(name)


def test_the_key_file_beside_a_committed_model_is_its_key() -> None:
    name, expected = SHARES
    key = Key.load(MODELS / name / KEY)
    assert digest(key) == expected
    assert key.commitment == commitment(name)
    marked = {
        path.parent.name for path in MODELS.glob("*/run.json") if commitment(path.parent.name) != "None"
    }
    assert marked - set(BARE) == {path.parent.name for path in MODELS.glob(f"*/{KEY}")}


def test_a_bare_key_is_not_saved(tmp_path: Path) -> None:
    """Its file would be read as an ordinary key, with another matrix."""
    with pytest.raises(ExperimentError, match="no key file"):
        BareKey(OWNER, (8, 2, 2), 50, bytes(32)).save(tmp_path / "owner.key")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("scheme", ["paper", "shares"])
def test_a_new_training_has_a_key_that_states_all(scheme: str, tmp_path: Path) -> None:
    store = Store("smoke", results=tmp_path, runs=tmp_path)
    settings = scales.get("smoke").settings(seed=3, watermark={"strength": 0.1, "scheme": scheme})
    key = store.new_key(settings)
    assert key is not None
    fields = key.fields
    assert (fields.model, fields.width, fields.cut, fields.scheme) == ("resnet18", 8, "layer3", scheme)
    assert (fields.input_shape, fields.classes) == ((1, 8, 8), 10)
    assert fields.inputs_digest is not None
    assert fields.normalisation is not None
    early = keys.early(settings)
    assert early.commitment != key.commitment
    assert not torch.equal(early.target, key.target) or not torch.equal(early.matrix, key.matrix)
    # Old and new trainings do not collide, and without a mark there is no key to tell apart.
    assert store.folder(settings) != store.folder(settings, early=True)
    clean = scales.get("smoke").settings(seed=3, watermark={"strength": 0.0, "scheme": scheme})
    assert store.folder(clean) == store.folder(clean, early=True)


def test_a_run_knows_its_key_by_the_commitment(tmp_path: Path) -> None:
    store = Store("smoke", results=tmp_path / "results", runs=tmp_path / "runs")
    settings = scales.get("smoke").settings(seed=0, watermark={"strength": 0.1})
    run = store.train(settings)
    assert store.key(run) == store.new_key(settings)
    described = json.loads((run.folder / "run.json").read_text("utf-8"))
    for stated, expected in ((keys.early(settings).commitment, keys.early(settings)), (None, None)):
        (run.folder / "run.json").write_text(json.dumps(described | {"commitment": stated}))
        assert store.key(run) == expected
    (run.folder / "run.json").write_text(json.dumps(described | {"commitment": "0" * 64}))
    with pytest.raises(ExperimentError, match="has the key of no experiment"):
        store.key(run)
