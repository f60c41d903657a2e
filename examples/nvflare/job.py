"""Mark a model that NVIDIA FLARE trains, and prove whose it is.

    pip install sigil-watermark nvflare
    python examples/nvflare/job.py

FLARE's simulator runs a server and two clients, each client in a process of its own. One of the clients keeps
a copy of the trained half, and the owner examines it; then all of it is done again without the mark.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from marked_split_learning import Client, Owner, draw, make_client_half, make_server_half
from nvflare.collab import CollabRecipe
from nvflare.recipe import SimEnv

import sigil

CLIENTS, ROUNDS, STRENGTH = 2, 2, 0.5


def train(folder: Path, key: Path, strength: float) -> Path:
    """Train by split learning; returns the file in which a client kept the half that it was trained with."""
    copy = folder / f"copy-{strength}.pt"
    recipe = CollabRecipe("marked", server=Owner(), client=Client(), min_clients=CLIENTS)
    recipe.set_server_prop("key", str(key))  # the server's machine alone holds the key
    recipe.set_server_prop("strength", strength)
    recipe.set_server_prop("rounds", ROUNDS)
    recipe.set_client_prop("copy", str(copy))
    environment = SimEnv(
        num_clients=CLIENTS, workspace_root=str(folder / f"flare-{strength}"), log_config="ERROR"
    )
    recipe.execute(environment).get_result()
    return copy


def load(file: Path) -> torch.nn.Module:
    half = make_client_half()
    half.load_state_dict(torch.load(file, weights_only=True))
    return half


def main() -> None:
    example, _ = draw(torch.Generator().manual_seed(0))
    half = make_client_half()
    print(sigil.inspect(half, example, server_half=make_server_half()))
    with tempfile.TemporaryDirectory(prefix="sigil-nvflare-") as name:
        folder = Path(name)
        key = sigil.Key.for_activation(half(example), owner="ACME", input_shape=(1, 8, 8))
        key.save(folder / "owner.key")
        print("publish now:", key.statement())
        for strength, title in ((STRENGTH, "marked:"), (0.0, "clean: ")):
            print(title, sigil.verify(load(train(folder, folder / "owner.key", strength)), key).sentence())


if __name__ == "__main__":
    main()
