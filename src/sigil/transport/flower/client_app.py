"""The ClientApp: one message, one round on the split service's stream, one answer.

Where it finds what is its own is in the SuperNode's configuration (``--node-config``):

============  =========================================================================================
name          meaning
============  =========================================================================================
bundle        the folder that the owner handed over
data-dir      where the client's data sets are
data          name of the client's data set, if it is not the owner's: folder:PATH, say
part          take only this part of the agreed partition, where all clients hold the same data set
server        "host:port" of the owner's HTTPS front, if not that of the bundle (a tunnel, say)
device        where to compute
============  =========================================================================================

A virtual client of a simulation has none of these: it takes the bundle of its number from the folder that
``SIGIL_CLIENTS`` names, and its part of the partition.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from sigil.data import names
from sigil.errors import DataError, NetworkError, shown
from sigil.federation.from_settings import Training, load_data
from sigil.federation.settings import Settings
from sigil.transport import certificates
from sigil.transport.certificates import ClientCredentials
from sigil.transport.client import train_round
from sigil.transport.flower import messages
from sigil.transport.listening import split_address

log = logging.getLogger("sigil.transport")

CLIENTS_VARIABLE = "SIGIL_CLIENTS"

app = ClientApp()
finished = threading.Event()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the round that the owner asks for."""
    client, settings, task = messages.read_task(message)
    config = context.node_config
    bundle = _bundle(config, client)
    simulated = "bundle" not in config
    settings = _with_own(settings, config, simulated=simulated)
    training = _training(settings, str(config["data-dir"]) if "data-dir" in config else None)
    part = client if simulated else config.get("part")
    everything = np.arange(len(training.dataset.train), dtype=np.int64)
    if "server" in config:
        task = replace(task, address=split_address(str(config["server"])))
    log.info("round %d begins", task.round)
    update = train_round(
        task,
        training,
        client,
        credentials=ClientCredentials.load(bundle),
        indices=everything if part is None else training.parts[int(part)],
    )
    log.info("round %d: %d images, loss %.3f", task.round, update.images, update.loss)
    return messages.write_update(update, ticket=task.ticket, reply_to=message)


@app.query("finish")
def finish(message: Message, context: Context) -> Message:
    """The training is over."""
    finished.set()
    return Message(RecordDict({"end": ConfigRecord()}), reply_to=message)


def _with_own(settings: Settings, config: Mapping[str, object], *, simulated: bool) -> Settings:
    """The owner's settings, with what is the client's to choose."""
    named = settings.data.name
    if "data" not in config and not simulated and named not in names():
        raise DataError(
            f"The owner wants this client to train on {shown(named)}, but a client names its own folders and "
            "downloads; start again with --data NAME if that is what you want."
        )
    data = settings.data.model_copy(update={"name": str(config.get("data", settings.data.name))})
    run = settings.run.model_copy(update={"device": str(config.get("device", "auto"))})
    return settings.model_copy(update={"data": data, "run": run})


@functools.lru_cache(maxsize=1)
def _training(settings: Settings, data_dir: str | None) -> Training:
    return Training.of_client(settings, load_data(settings, None if data_dir is None else Path(data_dir)))


def _bundle(config: Mapping[str, object], client: int) -> Path:
    if "bundle" in config:
        return Path(str(config["bundle"]))
    folder = os.environ.get(CLIENTS_VARIABLE)
    if folder is None:
        raise NetworkError(
            "The SuperNode was started without the owner's bundle; add --node-config 'bundle=\"FOLDER\"'."
        )
    return certificates.bundle_folder(Path(folder), client)
