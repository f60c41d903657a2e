"""The ServerApp of the plain Flower app, for ``flwr run``: in deployment and in simulation alike.

Flower starts it on the owner's machine, in a process that reads the key. Nothing secret comes to it through
Flower: what it is to train is in the file that ``SIGIL_OWNER`` names. What Flower shows of such a process it
shows to those who ask (``flwr log``), so the app notes what it does, and why it ended, also in
``server-app.log`` beside that file.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from sigil.errors import ConfigError, NetworkError, SigilError, reason
from sigil.transport.flower.deployment import Deployment
from sigil.transport.listening import listen_on
from sigil.transport.owner import NetworkSettings

log = logging.getLogger("sigil.transport")

OWNER_VARIABLE = "SIGIL_OWNER"
LOG_FILE = "server-app.log"
_PEM = b"-----BEGIN PUBLIC KEY-----"
_PAUSE = 0.2  # seconds between two looks at who is there
# How long a port that is taken is waited for: an earlier ServerApp may be ending, or a connection that the
# system gave this port is kept by it for a minute.
PORT_SECONDS = 90.0

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the run that the owner prepared."""
    file = os.environ.get(OWNER_VARIABLE)
    if file is None:
        raise ConfigError(
            f"The ServerApp does not know what to train; set {OWNER_VARIABLE} to the file that "
            "`sigil serve --prepare` wrote."
        )
    deployment = Deployment.load(Path(file))
    with _noted(deployment.network / LOG_FILE):
        deployment.train(grid, read_network(deployment, grid))


def read_network(deployment: Deployment, grid: Grid) -> NetworkSettings:
    """With whom to train what the owner prepared: the nodes that this grid reaches."""
    # The nodes of a simulation have random bytes for a key. Flower registers them beside the start of this
    # app, so nothing can be said before the first one is there.
    while not (nodes := list(grid.get_nodes())):
        time.sleep(_PAUSE)
    simulated = not any(_PEM in node.public_key for node in nodes)
    network = deployment.network_settings(simulated=simulated)
    # Taken now and not at the first round: until then the system might give the port to somebody else.
    return network if simulated else replace(network, held=_split_port(deployment))


def _split_port(deployment: Deployment) -> socket.socket:
    """The port of the split service, as soon as it is free."""
    deadline = time.monotonic() + PORT_SECONDS
    told = False
    while True:
        try:
            return listen_on(deployment.listens, deployment.port + 1)
        except NetworkError as error:
            if time.monotonic() > deadline:
                raise
            if not told:
                log.warning("%s Trying again for %.0f seconds.", error, PORT_SECONDS)
                told = True
            time.sleep(_PAUSE)


@contextmanager
def _noted(file: Path) -> Iterator[None]:
    """Note what happens in this file, and on standard output for ``flwr log``; at the end why it ended."""
    logger = logging.getLogger("sigil")
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stdout), logging.FileHandler(file)]
    handlers[1].setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    level = logger.level
    for handler in handlers:
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
        log.info("The training is over.")
    except Exception as error:
        why = str(error) if isinstance(error, SigilError) else f"{type(error).__name__}: {reason(error)}."
        log.error("The training ended early: %s", why)
        raise
    except BaseException:  # how Flower ends a process that was stopped
        log.error("The training was stopped.")
        raise
    finally:
        logger.setLevel(level)
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
