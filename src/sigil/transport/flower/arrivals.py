"""The answers of clients as they arrive: nobody waits for an upload, and no more of one is read than agreed.

Flower shows an answer as soon as a client has announced it. Its content follows object by object, and a grid
that is asked for the answer waits until all are there, for up to two hours, and reads whatever comes. But a
client is free to announce and never to send, or to send more than fits in memory. So :class:`Arrivals` stands
between the grid and the SuperLink: it fetches what has come, and gives the grid only what is complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
from flwr.app import Message

from sigil.transport.flower.adapter import ask
from sigil.transport.owner import Excess

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
    """In the place of an HttpGrid's client of the Runtime API; what else is asked of it passes through."""

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
            found = ask(self._client.PullObject, node=self._grid.node, run_id=self._run, object_id=name)
            if not found.object_found:
                raise Unreadable("the upload was not finished in time")
            if not found.object_available:
                return None
            answer.size += len(found.object_content)
            if answer.size > limit:
                return Excess(limit)
            answer.contents[answer.missing.pop()] = found
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
