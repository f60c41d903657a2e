"""The two messages that Flower carries in a round: a client's task, and what it brought back.

A half travels as one array of bytes in safetensors format, which Flower cuts into pieces of 5 MB. An array a
tensor would be a hundred requests a client and round. Arrays in numpy's format are never read here: their
header could ask for any amount of memory.
"""

from __future__ import annotations

import hmac
import json
import math
from dataclasses import dataclass

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from safetensors import SafetensorError
from safetensors.torch import load, save

from sigil.errors import NetworkError
from sigil.federation.aggregation import State
from sigil.federation.settings import Settings, make
from sigil.transport.client_round import RoundTask, RoundUpdate

FORMAT = "safetensors"
# The same tensors have the same size; only the header may be written differently.
SLACK = 65_536
# For the last message: the training is over.
FINISH = f"{MessageType.QUERY}.finish"


@dataclass(frozen=True)
class Order:
    """A task as a client receives it: which client it is, and under which settings it trains."""

    client: int
    settings: Settings
    task: RoundTask


def write_task(task: RoundTask, *, client: int, settings: Settings, node: int) -> Message:
    """The message that asks a client to train a round.

    Settings travel without those of the mark, which are not a client's business, and of the owner's machine.
    """
    public = settings.model_dump(mode="json", exclude={"watermark", "record", "behaviour"})
    public["watermark"] = {"strength": 0}
    public["run"] = {name: public["run"][name] for name in ("seed", "precision")}
    values = {
        "client": client,
        "round": task.round,
        "lr": task.lr,
        "address": task.address,
        "ticket": task.ticket,
        "wire": task.wire,
        "settings": json.dumps(public),
    }
    content = RecordDict({"half": _pack(task.client_state), "task": ConfigRecord(values)})
    return Message(content, node, MessageType.TRAIN, group_id=str(task.round))


def read_task(message: Message) -> Order:
    """What :func:`write_task` wrote."""
    try:
        values = message.content["task"]
        half = message.content["half"]
        return Order(
            client=int(values["client"]),
            settings=make(json.loads(values["settings"])),
            task=RoundTask(
                round=int(values["round"]),
                address=str(values["address"]),
                ticket=str(values["ticket"]),
                lr=float(values["lr"]),
                client_state=_unpack(half, limit=None),
                wire=values["wire"],
            ),
        )
    except (KeyError, TypeError, ValueError, SafetensorError):
        raise NetworkError(
            "The owner sent a task that cannot be read; both sides must run the same release of Sigil."
        ) from None


def write_update(update: RoundUpdate, *, ticket: str, reply_to: Message) -> Message:
    """The answer of a client that has trained its round; the ticket shows that it is this client's."""
    values = {"ticket": ticket, "images": update.images, "steps": update.steps, "loss": update.loss}
    content = RecordDict({"half": _pack(update.client_state), "update": ConfigRecord(values)})
    return Message(content, reply_to=reply_to)


def read_update(message: Message, *, task: RoundTask) -> RoundUpdate | None:
    """What :func:`write_update` wrote, or None if it is something else: it comes from a stranger."""
    if message.has_error():
        return None
    limit = len(save(_plain(task.client_state))) + SLACK
    try:
        values = message.content["update"]
        if not hmac.compare_digest(str(values["ticket"]), task.ticket):
            return None
        return RoundUpdate(
            client_state=_unpack(message.content["half"], limit=limit),
            images=int(values["images"]),
            steps=int(values["steps"]),
            loss=float(values["loss"]),
        )
    except (KeyError, TypeError, ValueError, SafetensorError):
        return None


def _pack(state: State) -> ArrayRecord:
    data = save(_plain(state))
    return ArrayRecord({"half": Array("uint8", (len(data),), FORMAT, data)})


def _unpack(record: ArrayRecord, *, limit: int | None) -> State:
    array = record["half"]
    if array.stype != FORMAT or (limit is not None and len(array.data) > limit):
        raise ValueError("not a half")
    return dict(load(array.data))


def _plain(state: State) -> State:
    return {name: value.detach().cpu().contiguous() for name, value in state.items()}
