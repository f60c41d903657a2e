"""What the pages presuppose: a key, a training that carries its mark, and files made of them."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from harness.openssl_authority import OpenSslAuthority
from sigil import models
from sigil.federation import Run, train
from sigil.federation.settings import make
from sigil.keys.key import Key

Put = Callable[[str, Path], None]

# A stamped key and the root of its authority. A signature is random and decides what the key derives; with
# this one the disguised copy is proven with six orders of magnitude to spare, in each number format.
STAMPED = Path(__file__).parent / "stamped"

SETTINGS = {
    "model": {"width": 8},
    "data": {"train_limit": 700},
    "federation": {"clients": 2, "rounds": 3, "batch_size": 16},
    "optimizer": {"warmup_rounds": 1},
    "watermark": {"strength": 0.5},
    "record": {"clients": [0]},
    "run": {"workers": 1, "threads": 1},
}


@pytest.fixture(scope="session")
def put(tmp_path_factory: pytest.TempPathFactory) -> Put:
    """Put a thing that a page presupposes into the page's folder, by the name that the page gives it."""
    home = tmp_path_factory.mktemp("presupposed")
    key = Key.generate("ACME", shape=(32, 2, 2), bits=50, seed=bytes(range(32)))
    shutil.copyfile(STAMPED / "sealed.key", home / "sealed.key")
    (home / "sealed.key").chmod(0o600)
    sealed_key = Key.load(home / "sealed.key")

    @cache
    def run() -> Run:
        return train(make(SETTINGS), home / "run", key=key)

    def whole() -> models.Model:
        return models.join(*run().halves()).eval()

    def write_key(path: Path) -> None:
        key.save(path)

    def write_run(path: Path) -> None:
        shutil.copytree(run().folder, path)

    def write_client_half(path: Path) -> None:
        shutil.copy(run().folder / "client.safetensors", path)

    def write_state_dict(path: Path) -> None:
        torch.save(whole().state_dict(), path)

    def write_graph(path: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(whole(), (torch.zeros(2, 1, 8, 8),), str(path), dynamo=False)

    def write_statement(path: Path) -> None:
        path.write_text(key.statement() + "\n")

    def write_auditors_keys(path: Path) -> None:
        private = Ed25519PrivateKey.generate()
        path.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        path.with_name("auditor.pub.pem").write_bytes(public)

    @cache
    def authority() -> OpenSslAuthority:
        return OpenSslAuthority(home / "authority")

    def write_root(path: Path) -> None:
        path.write_bytes(authority().root_file.read_bytes())
        path.with_name("authority").symlink_to(authority().folder)

    # What the tutorial leaves behind has its width, 16, in a shorter training.
    first_key = Key.generate("ACME", shape=(64, 2, 2), seed=bytes(range(32)))

    @cache
    def first_run() -> Run:
        settings = SETTINGS | {"model": {"width": 16}, "federation": {"clients": 2, "rounds": 1}}
        return train(make(settings), home / "first", key=first_key)

    def write_first_run(path: Path) -> None:
        shutil.copytree(first_run().folder, path)

    @cache
    def sealed_run() -> Run:
        settings = SETTINGS | {
            "model": {"width": 16},
            "federation": {"clients": 2, "rounds": 4, "batch_size": 16},
            "optimizer": {"warmup_rounds": 1, "lr": 0.05},
            "watermark": {"strength": 0.3},
        }
        return train(make(settings), home / "sealed", key=sealed_key)

    def write_sealed_key(path: Path) -> None:
        sealed_key.save(path)
        shutil.copy(STAMPED / "root.pem", path.with_name("root.pem"))

    def write_sealed_run(path: Path) -> None:
        shutil.copytree(sealed_run().folder, path)

    makers = {
        "owner.key": write_key,
        "runs/a": write_run,
        "runs/first": write_first_run,
        "runs/first.key": first_key.save,
        "client.safetensors": write_client_half,
        "suspect.safetensors": write_client_half,
        "model.pt": write_state_dict,
        "model.onnx": write_graph,
        "published.txt": write_statement,
        "auditor.pem": write_auditors_keys,
        "root.pem": write_root,
        "sealed.key": write_sealed_key,
        "runs/sealed": write_sealed_run,
    }

    def put(name: str, folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        makers[name](path)

    return put
