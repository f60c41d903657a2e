"""Answers that arrive piece by piece, or never, or with more in them than was asked for."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
)
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from sigil.transport import RoundTask, RoundUpdate
from sigil.transport.flower import adapter, messages
from sigil.transport.flower.messenger import Arrivals, Unreadable
from sigil.transport.owner import Excess

pytestmark = pytest.mark.usefixtures("identity")
STATE = {"w": torch.ones(2)}
TASK = RoundTask(1, "host:1", "aa" * 32, lr=0.1, client_state=STATE)
LIMIT = messages.largest_update(TASK)


class Link:
    """A SuperLink that holds answers: each question's message and tree, and the objects that have come."""

    def __init__(self) -> None:
        self.announced: dict[str, tuple[MessageProto, ObjectTree]] = {}
        self.objects: dict[str, bytes | None] = {}
        self.confirmed: list[str] = []
        self.pulled = 0
        self.fails: Exception | None = None

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:
        if self.fails is not None:
            raise self.fails
        found = [self.announced.pop(name) for name in request.message_ids if name in self.announced]
        found += [self.announced.pop("")] if "" in self.announced else []
        return PullAppMessagesResponse(
            messages_list=[message for message, _ in found],
            message_object_trees=[tree for _, tree in found],
        )

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:
        content = self.objects.get(request.object_id)
        found = request.object_id in self.objects
        self.pulled += len(content or b"")
        return PullObjectResponse(
            object_found=found, object_available=content is not None, object_content=content or b""
        )

    def ConfirmMessageReceived(
        self, request: ConfirmMessageReceivedRequest
    ) -> ConfirmMessageReceivedResponse:
        self.confirmed.append(request.message_object_id)
        return ConfirmMessageReceivedResponse()


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def arrivals(link: Link) -> Arrivals:
    grid = adapter.grid_of("127.0.0.1:1", certificates=b"", token="t", run_id=1)
    grid._client = link
    return Arrivals(grid)


def announce(link: Link, question: str = "q", *, more: bytes = b"") -> dict[str, bytes]:
    """Let a client announce its answer; returns the objects that it has to send."""
    asked = Message(RecordDict({"q": ConfigRecord()}), 9, "train")
    asked.metadata.__dict__["_message_id"] = question
    answer = messages.write_update(RoundUpdate(STATE, 4, 1, 0.5), ticket="aa" * 32, reply_to=asked)
    if more:
        answer.content["more"] = ArrayRecord({"more": Array("uint8", (len(more),), "raw", more)})
    answer.metadata.__dict__["_message_id"] = answer.object_id
    proto = MessageProto()
    proto.metadata.message_id, proto.metadata.reply_to_message_id = answer.object_id, question
    link.announced[question] = (proto, get_object_tree(answer))
    objects = {name: part.deflate() for name, part in get_all_nested_objects(answer).items()}
    link.objects |= dict.fromkeys(objects)
    return objects


def test_an_answer_is_taken_when_it_is_complete_and_never_waited_for(link: Link, arrivals: Arrivals) -> None:
    assert arrivals.take("q", limit=LIMIT) is None
    objects = announce(link)
    assert len(objects) > 3
    for name, content in objects.items():
        assert arrivals.take("q", limit=LIMIT) is None
        link.objects[name] = content
    answer = arrivals.take("q", limit=LIMIT)
    assert isinstance(answer, Message)
    update = messages.read_update(answer, task=TASK)
    assert update is not None
    assert torch.equal(update.client_state["w"], STATE["w"])
    assert link.confirmed == [answer.metadata.message_id]
    assert link.pulled == sum(map(len, objects.values())), "each object once"


def test_no_more_of_an_answer_is_read_than_it_may_have(link: Link, arrivals: Arrivals) -> None:
    objects = announce(link, more=bytes(30_000_000))
    link.objects |= objects
    assert arrivals.take("q", limit=LIMIT) == Excess(LIMIT)
    assert link.pulled < LIMIT + max(map(len, objects.values()))
    arrivals.forget("q")
    assert arrivals.take("q", limit=LIMIT) is None


def test_an_answer_of_countless_objects_is_not_read_at_all(link: Link, arrivals: Arrivals) -> None:
    announce(link)
    tree = link.announced["q"][1]
    for number in range(1000):
        tree.children.add().object_id = f"{number:064x}"
    assert arrivals.take("q", limit=LIMIT) == Excess(LIMIT)
    assert link.pulled == 0


def test_an_answer_that_was_lost_on_its_way_is_none(link: Link, arrivals: Arrivals) -> None:
    name, *_ = announce(link)
    del link.objects[name]
    link.objects = dict.fromkeys(link.objects, b"x")
    with pytest.raises(Unreadable, match="not finished in time"):
        arrivals.take("q", limit=LIMIT)


def test_objects_that_are_no_message_are_no_answer(link: Link, arrivals: Arrivals) -> None:
    """Flower's grid raised whatever came of it, and the training ended as a bug."""
    objects = announce(link)
    proto, tree = link.announced["q"]
    part = tree.children[0].object_id
    for kept in ({part: objects[part]}, {part: b"ArrayRecord  0\0"}, {part: b"\xff"}):
        proto.metadata.message_id = tree.object_id = part
        del tree.children[:]
        link.announced["q"] = (proto, tree)
        link.objects = dict(kept)
        with pytest.raises(Unreadable):
            arrivals.take("q", limit=LIMIT)
        arrivals.forget("q")


def test_what_nobody_asked_for_is_not_looked_at(link: Link, arrivals: Arrivals) -> None:
    """A client may address the owner of its own accord; Flower's grid waited for that too."""
    announce(link, "")
    assert arrivals.take("q", limit=LIMIT) is None
    assert link.pulled == 0
    announce(link, "")
    link.objects |= announce(link)
    assert isinstance(arrivals.take("q", limit=LIMIT), Message)


@pytest.mark.parametrize(
    ("status", "raised"), [(500, Unreadable), (403, httpx.HTTPStatusError)], ids=["an error", "a refusal"]
)
def test_an_answer_that_the_superlink_stumbles_over_is_none(
    link: Link, arrivals: Arrivals, status: int, raised: type[Exception]
) -> None:
    request = httpx.Request("POST", "https://127.0.0.1/")
    link.fails = httpx.HTTPStatusError("", request=request, response=httpx.Response(status))
    with pytest.raises(raised):
        arrivals.take("q", limit=LIMIT)


def test_what_else_a_grid_asks_passes_through(link: Link, arrivals: Arrivals) -> None:
    other: Any = arrivals
    assert other.confirmed is link.confirmed
