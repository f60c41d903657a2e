"""The two messages that Flower carries in a round: a client's task, and what it brought back.

A half travels as one array of bytes in safetensors format, which Flower cuts into pieces of 5 MB. One array
per tensor would be a hundred requests per client and round. Arrays in numpy's format are never read here:
their header could ask for any amount of memory.
"""

from __future__ import annotations

import dataclasses
import hmac
from typing import Any, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MessageType, RecordDict
from pydantic import FiniteFloat
from safetensors import SafetensorError
from safetensors.torch import load, save

from sigil.errors import ConfigError, NetworkError
from sigil.federation.averaging import State
from sigil.federation.settings import Section, Settings, make
from sigil.transport.client import RoundTask, RoundUpdate
from sigil.transport.wire import Wire

FORMAT = "safetensors"
# The same tensors have the same size; only the header may be written differently.
SLACK = 65_536
# The last message: the training is over.
FINISH = f"{MessageType.QUERY}.finish"
# As in an answer of Flower's own for an app that raised an error.
FAILED = 2


class TaskFields(Section):
    """What a task says beside the half."""

    client: int
    round: int
    lr: FiniteFloat
    address: str
    ticket: str
    wire: Wire
    settings: dict[str, Any]


class UpdateFields(Section):
    """What a client says beside its half; the ticket shows that the answer is this client's."""

    ticket: str
    images: int
    steps: int
    loss: FiniteFloat


def write_task(task: RoundTask, *, client: int, settings: Settings, node: int) -> Message:
    """The message that asks the client behind a node to train a round.

    Settings travel without those of the mark, which are not a client's business, and of the owner's machine.
    """
    public = settings.model_dump(mode="json", include={"model", "data", "federation", "optimizer"})
    public["run"] = settings.run.model_dump(mode="json", include={"seed", "precision"})
    public["watermark"] = {"strength": 0}
    fields = TaskFields(client=client, settings=public, **_beside_the_half(task))
    return Message(_content(task.client_state, fields), node, MessageType.TRAIN, group_id=str(task.round))


def read_task(message: Message) -> tuple[int, Settings, RoundTask]:
    """What :func:`write_task` wrote: which client this is, under which settings it trains, and its task."""
    try:
        fields, half = _read(message, TaskFields, limit=None)
        settings = make(fields.settings)
    except (KeyError, TypeError, ValueError, SafetensorError, ConfigError):
        raise NetworkError(
            "The owner sent a task that cannot be read; both sides must run the same release of Sigil."
        ) from None
    task = RoundTask(client_state=half, **fields.model_dump(exclude={"client", "settings"}))
    return fields.client, settings, task


def write_update(update: RoundUpdate, *, ticket: str, reply_to: Message) -> Message:
    """The answer of a client that has trained its round."""
    fields = UpdateFields(ticket=ticket, **_beside_the_half(update))
    return Message(_content(update.client_state, fields), reply_to=reply_to)


def write_failure(error: Exception, *, reply_to: Message) -> Message:
    """The answer of a client that could not do its task; what went wrong in detail is its own business."""
    return Message(Error(FAILED, type(error).__name__), reply_to=reply_to)


def largest_update(task: RoundTask) -> int:
    """How many bytes the answer to a task may have, with all that Flower adds to it."""
    return len(_pack(task.client_state)) + 2 * SLACK


def read_update(message: Message, *, task: RoundTask) -> RoundUpdate | None:
    """What :func:`write_update` wrote, or None if it is anything else: it comes from a stranger."""
    if message.has_error():
        return None
    try:
        fields, half = _read(message, UpdateFields, limit=len(_pack(task.client_state)) + SLACK)
    except (KeyError, TypeError, ValueError, SafetensorError):
        return None
    if not hmac.compare_digest(fields.ticket.encode(), task.ticket.encode()):
        return None
    return RoundUpdate(half, **fields.model_dump(exclude={"ticket"}))


def _beside_the_half(message: RoundTask | RoundUpdate) -> dict[str, Any]:
    names = [each.name for each in dataclasses.fields(message) if each.name != "client_state"]
    return {name: getattr(message, name) for name in names}


def _content(state: State, fields: Section) -> RecordDict:
    data = _pack(state)
    half = ArrayRecord({"half": Array("uint8", (len(data),), FORMAT, data)})
    return RecordDict({"half": half, "fields": ConfigRecord({"json": fields.model_dump_json()})})


Fields = TypeVar("Fields", bound=Section)


def _read(message: Message, kind: type[Fields], *, limit: int | None) -> tuple[Fields, State]:
    text = message.content.config_records["fields"]["json"]
    array = message.content.array_records["half"]["half"]
    if not isinstance(text, str) or array.stype != FORMAT:
        raise TypeError("not a message of ours")
    if limit is not None and len(array.data) + len(text) > limit:
        raise ValueError("too long")
    return kind.model_validate_json(text), load(array.data)


def _pack(state: State) -> bytes:
    return save({name: value.detach().cpu().contiguous() for name, value in state.items()})
