"""Settings for every test: one thread a worker, so that two workers fill two cores."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

# The machine may be shared: a slow example is not a failing one.
settings.register_profile("sigil", deadline=None, print_blob=True)
settings.load_profile("sigil")


@pytest.fixture(autouse=True)
def _no_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests must not depend on the user's own data or passphrase."""
    for name in ("SIGIL_DATA", "SIGIL_CACHE", "SIGIL_PASSPHRASE"):
        monkeypatch.delenv(name, raising=False)
