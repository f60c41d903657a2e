"""What the packages of the transport load, as every command of Flower's that looks for the app does."""

from __future__ import annotations

import subprocess
import sys

import sigil.transport


def test_flower_finds_the_app_without_loading_torch() -> None:
    """`flwr run` asks where the app's modules are, which imports the packages around them."""
    program = (
        "import importlib.util, sys\n"
        "for name in ('server_app', 'client_app'):\n"
        "    assert importlib.util.find_spec(f'sigil.transport.flower.{name}').origin\n"
        "assert 'sigil.transport.flower' in sys.modules and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_client_does_not_load_the_superlinks_database() -> None:
    program = "import sys, sigil.transport.flower.node\nassert 'sqlalchemy' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_public_name_is_there() -> None:
    for name in sigil.transport.__all__:
        assert getattr(sigil.transport, name).__name__ == name
