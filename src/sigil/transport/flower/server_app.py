"""The ServerApp of the plain Flower app, for ``flwr run``: in deployment and in simulation alike.

Flower starts it on the owner's machine, in a process that reads the key. Nothing secret comes to it through
Flower: what it is to train is in the file that ``SIGIL_OWNER`` names.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from flwr.serverapp import Grid

from sigil.errors import ConfigError
from sigil.transport.flower.deployment import Deployment
from sigil.transport.flower.owner_run import OwnerRun, make_app

OWNER_VARIABLE = "SIGIL_OWNER"
_PEM = b"-----BEGIN PUBLIC KEY-----"
_PAUSE = 0.2  # seconds between two looks at who is there


def read_owner_run(grid: Grid) -> OwnerRun:
    """The run that the owner prepared, for the nodes that this grid reaches."""
    file = os.environ.get(OWNER_VARIABLE)
    if file is None:
        raise ConfigError(
            f"The ServerApp does not know what to train; set {OWNER_VARIABLE} to the file that "
            "`sigil serve --prepare` wrote."
        )
    deployment = Deployment.load(Path(file))
    # The nodes of a simulation have random bytes for a key. Flower registers them beside the start of this
    # app, so nothing can be said before the first one is there.
    while not (nodes := list(grid.get_nodes())):
        time.sleep(_PAUSE)
    return deployment.owner_run(simulated=not any(_PEM in node.public_key for node in nodes))


app = make_app(read_owner_run)
