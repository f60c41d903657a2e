"""What the pages presuppose: a key, a training that carries its mark, and the root of an authority."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from harness.openssl_authority import OpenSslAuthority
from sigil.federation import Run, train
from sigil.federation.settings import make
from sigil.keys.key import Key

Put = Callable[[str, Path], None]

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

    @cache
    def run() -> Run:
        return train(make(SETTINGS), home / "run", key=key)

    def write_run(path: Path) -> None:
        shutil.copytree(run().folder, path)

    def write_root(path: Path) -> None:
        authority = OpenSslAuthority(home / "authority")
        path.write_bytes(authority.root_file.read_bytes())
        path.with_name("authority").symlink_to(authority.folder)

    makers = {"owner.key": key.save, "runs/a": write_run, "root.pem": write_root}

    def put(name: str, folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        makers[name](path)

    return put
