"""An owner's run on Flower: what to train and with whom, and Flower as the messenger of its rounds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from sigil.errors import NetworkError, shown
from sigil.federation.progress import Silent
from sigil.federation.run import Run, train
from sigil.federation.settings import Settings
from sigil.keys.key import Key
from sigil.transport.client import RoundTask, RoundUpdate
from sigil.transport.flower import messages
from sigil.transport.flower.arrivals import Arrivals, Unreadable
from sigil.transport.metrics import MeasuredProgress
from sigil.transport.owner import Excess, NetworkSettings, RemoteTrainer

log = logging.getLogger("sigil.transport")

GOODBYE_SECONDS = 30.0


@dataclass(frozen=True)
class OwnerRun:
    """The run that a ServerApp trains, and with whom.

    `nodes` maps the public key of each client's node (PEM) to the client's index; none in a simulation,
    where the nodes are numbered as they come. Setting `stop` ends the ServerApp with an error.
    """

    settings: Settings
    out: Path
    network: NetworkSettings
    nodes: Mapping[bytes, int] | None
    key: Key | None = field(default=None, repr=False)
    data_dir: Path | None = None
    progress: Silent = field(default_factory=Silent)
    stop: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class _Question:
    """A task that was sent, and how many bytes its answer may have."""

    client: int
    task: RoundTask
    limit: int


class FlowerMessenger:
    """Carries tasks and updates as Flower messages, one per client and round."""

    def __init__(
        self,
        grid: Grid,
        settings: Settings,
        *,
        nodes: Mapping[bytes, int] | None,
        stop: threading.Event | None = None,
    ) -> None:
        self._grid = grid
        self._stop = stop or threading.Event()
        self._settings = settings
        self._known = nodes
        self._nodes: dict[int, int] = {}
        self._sent: dict[str, _Question] = {}
        # The grid of a simulation is in this process, and so are its clients.
        self._arrivals = Arrivals(grid) if hasattr(grid, "_runtime_client") else None

    def present(self) -> dict[int, str]:
        """The clients whose SuperNode is connected, each with the moment at which it was last started."""
        if self._stop.is_set():
            raise NetworkError("There is nobody left to carry messages to clients.")
        found = sorted(self._grid.get_nodes(), key=lambda node: node.node_id)
        present = {}
        for position, node in enumerate(found):
            client = position if self._known is None else self._known.get(node.public_key)
            if client is not None:
                self._nodes[client] = node.node_id
                present[client] = node.last_activated_at
        return present

    def send(self, client: int, task: RoundTask) -> None:
        """Ask a client to train a round; an earlier question is forgotten."""
        for name in [name for name, sent in self._sent.items() if sent.client == client]:
            self._forget(name)
        node = self._nodes[client]
        message = messages.write_task(task, client=client, settings=self._settings, node=node)
        (name,) = self._grid.push_messages([message])
        if name is None:
            raise NetworkError("Flower did not take a message for a client; the SuperLink's log says why.")
        self._sent[name] = _Question(client, task, limit=messages.largest_update(task))

    def receive(self) -> list[tuple[int, RoundUpdate | Excess | None]]:
        """The answers that have come; none is waited for, and none is read beyond what it may hold."""
        answers: list[tuple[int, RoundUpdate | Excess | None]] = []
        for name, reply in self._replies():
            if name not in self._sent:
                continue
            sent = self._sent[name]
            self._forget(name)
            if isinstance(reply, Excess):
                answers.append((sent.client, reply))
                continue
            if isinstance(reply, Message) and reply.has_error() and sent.client not in self.present():
                # Flower's own answer: when the node is there again, its task is sent again.
                log.info("client %d is not there any more", sent.client)
                continue
            update = messages.read_update(reply, task=sent.task) if isinstance(reply, Message) else None
            if update is None:
                log.warning("client %d did not do round %d: %s", sent.client, sent.task.round, _reason(reply))
            answers.append((sent.client, update))
        return answers

    def _replies(self) -> Iterator[tuple[str, Message | Excess | Unreadable]]:
        if self._arrivals is None:
            for reply in self._grid.pull_messages(list(self._sent)) if self._sent else ():
                yield reply.metadata.reply_to_message_id, reply
            return
        for name, sent in list(self._sent.items()):
            try:
                found = self._arrivals.take(name, limit=sent.limit)
            except Unreadable as error:
                yield name, error
            else:
                if found is not None:
                    yield name, found

    def _forget(self, name: str) -> None:
        del self._sent[name]
        if self._arrivals is not None:
            self._arrivals.forget(name)

    def dismiss(self) -> None:
        """Tell every client that is there that the training is over, and wait a little until they have left.

        Their answers are not read: a client may be gone before its answer is here as a whole, and Flower
        would wait minutes for the rest. Virtual clients end with the simulation.
        """
        if self._known is None:
            return
        asked = set(self.present())
        farewell = [
            Message(RecordDict({"end": ConfigRecord()}), self._nodes[client], messages.FINISH)
            for client in asked
        ]
        self._grid.push_messages(farewell)
        deadline = time.monotonic() + GOODBYE_SECONDS
        while asked & self.present().keys() and time.monotonic() < deadline:
            time.sleep(0.3)


def conduct(owner_run: OwnerRun, grid: Grid) -> Run:
    """Train the whole run, over whatever clients `grid` reaches."""
    messenger = FlowerMessenger(grid, owner_run.settings, nodes=owner_run.nodes, stop=owner_run.stop)
    run = train(
        owner_run.settings,
        owner_run.out,
        key=owner_run.key,
        data_dir=owner_run.data_dir,
        progress=MeasuredProgress(owner_run.progress, owner_run.network.metrics),
        trainer=partial(RemoteTrainer, messenger=messenger, network=owner_run.network),
        # The clients of a simulation have no certificates of their own.
        roster=None if owner_run.nodes is None else owner_run.network.clients,
    )
    messenger.dismiss()
    return run


def make_app(owner_run: Callable[[Grid], OwnerRun]) -> ServerApp:
    """The ServerApp that does what `owner_run`, called with its grid when it starts, says."""
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        conduct(owner_run(grid), grid)

    return server_app


def _reason(reply: Message | Unreadable) -> str:
    if isinstance(reply, Unreadable):
        return str(reply)
    reason = reply.error.reason if reply.has_error() else ""
    return shown(reason) if reason else "its answer cannot be read"
