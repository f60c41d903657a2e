"""Flower as the messenger of an owner's rounds: tasks to clients, and their answers as they arrive."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from sigil.errors import NetworkError, shown
from sigil.federation.settings import Settings
from sigil.transport.client import RoundTask, RoundUpdate
from sigil.transport.flower import messages
from sigil.transport.flower.adapter import ask
from sigil.transport.owner import Excess

log = logging.getLogger("sigil.transport")

GOODBYE_SECONDS = 30.0


@dataclass(frozen=True)
class _Question:
    """A task that was sent, and how many bytes its answer may have."""

    client: int
    task: RoundTask
    limit: int


# Flower cuts an array into objects of 5 MB; a few more hold the message together.
_OBJECTS, _OBJECT_BYTES = 64, 1 << 20


class Unreadable(Exception):
    """An answer is lost, or is none."""


@dataclass
class _Answer:
    """An answer that was announced: what Flower says of it, what is missing, and what has come."""

    announced: Any
    missing: list[str]
    contents: dict[str, Any] = field(default_factory=dict)
    size: int = 0


class Arrivals:
    """The answers of clients as they arrive: nobody waits for an upload, and no more is read than agreed.

    Flower shows an answer as soon as a client has announced it. Its content follows object by object, and a
    grid that is asked for the answer waits until all are there, for up to two hours, and reads whatever
    comes. But a client is free to announce and never to send, or to send more than fits in memory. So this
    stands between the grid and the SuperLink, in the place of an HttpGrid's client of the Runtime API: it
    fetches what has come, and gives the grid only what is complete. What else is asked of it passes through.
    """

    def __init__(self, grid: Any) -> None:
        self._grid = grid
        self._client = self._grid._runtime_client
        self._run = self._grid.run.run_id
        self._answers: dict[str, _Answer] = {}
        self._complete: _Answer
        self._grid._client = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def take(self, question: str, *, limit: int) -> Message | Excess | None:
        """The answer to a question, if it is here; `Excess` as soon as it holds more bytes than `limit`.

        :class:`Unreadable` if there will be none, whatever the reason.
        """
        try:
            return self._take(question, limit)
        except httpx.HTTPStatusError as error:
            if error.response.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
                raise
            # Asked for this answer alone, the SuperLink stumbled: over what the client made of it.
            raise Unreadable("Flower could not read it") from None

    def _take(self, question: str, limit: int) -> Message | Excess | None:
        answer = self._answers.get(question) or self._announced(question)
        if answer is None:
            return None
        self._answers[question] = answer
        if len(answer.missing) + len(answer.contents) > _OBJECTS + limit // _OBJECT_BYTES:
            return Excess(limit)
        while answer.missing:
            name = answer.missing[-1]
            part = ask(self._client.PullObject, node=self._grid.node, run_id=self._run, object_id=name)
            if not part.object_found:
                raise Unreadable("the upload was not finished in time")
            if not part.object_available:
                return None
            answer.size += len(part.object_content)
            if answer.size > limit:
                return Excess(limit)
            answer.contents[answer.missing.pop()] = part
        self._complete = answer
        try:
            (message,) = self._grid.pull_messages([question])
        except httpx.HTTPError:
            raise  # the SuperLink's fault, not the client's
        except Exception as error:  # a client may put objects together in any way
            raise Unreadable(type(error).__name__) from None
        if not isinstance(message, Message):
            raise Unreadable(type(message).__name__)
        return message

    def forget(self, question: str) -> None:
        """Nobody waits for this answer any more."""
        self._answers.pop(question, None)

    def PullMessages(self, request: Any) -> Any:
        """What was announced, for the grid."""
        return self._complete.announced

    def PullObject(self, request: Any) -> Any:
        """What has come, for the grid."""
        return self._complete.contents[request.object_id]

    def _announced(self, question: str) -> _Answer | None:
        response = ask(self._client.PullMessages, message_ids=[question])
        for message, tree in zip(response.messages_list, response.message_object_trees, strict=True):
            # A client may also address messages of its own making to the owner.
            if message.metadata.reply_to_message_id == question:
                announced = type(response)(messages_list=[message], message_object_trees=[tree])
                return _Answer(announced, list(dict.fromkeys(_names(tree))))
        return None


def _names(tree: Any) -> Iterator[str]:
    """The names of all objects in a tree; protocol buffers are never deeper than a hundred."""
    yield tree.object_id
    for child in tree.children:
        yield from _names(child)


class FlowerMessenger:
    """Carries tasks and updates as Flower messages, one per client and round.

    `nodes` maps the public key of each client's node (PEM) to the client's index; none in a simulation, where
    the nodes are numbered as they come. Setting `stop` ends all waiting for clients with an error.
    """

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
        nodes = sorted(self._grid.get_nodes(), key=lambda node: node.node_id)
        present = {}
        for position, node in enumerate(nodes):
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
                arrived = self._arrivals.take(name, limit=sent.limit)
            except Unreadable as error:
                yield name, error
            else:
                if arrived is not None:
                    yield name, arrived

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


def _reason(reply: Message | Unreadable) -> str:
    if isinstance(reply, Unreadable):
        return str(reply)
    reason = reply.error.reason if reply.has_error() else ""
    return shown(reason) if reason else "its answer cannot be read"
