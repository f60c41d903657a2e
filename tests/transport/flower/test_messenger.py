"""Flower as the owner's messenger: who is there, what was asked, what counts as an answer."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from flwr.app import Error, Message
from flwr.proto.node_pb2 import NodeInfo

from sigil.errors import NetworkError
from sigil.federation.settings import make
from sigil.transport import RoundTask, RoundUpdate
from sigil.transport.flower import messages
from sigil.transport.flower import messenger as messengers
from sigil.transport.flower.messenger import FlowerMessenger

pytestmark = pytest.mark.usefixtures("identity")
KEYS = {b"key zero": 0, b"key one": 1}
STATE = {"w": torch.ones(2)}
UPDATE = RoundUpdate(STATE, images=4, steps=1, loss=0.5)


class FakeGrid:
    """A SuperLink in a list: messages get names, replies are put in by the test."""

    def __init__(self) -> None:
        self.nodes = [
            NodeInfo(node_id=70, public_key=b"key one", last_activated_at="early"),
            NodeInfo(node_id=50, public_key=b"key zero", last_activated_at="late"),
            NodeInfo(node_id=60, public_key=b"a stranger's", last_activated_at="now"),
        ]
        self.pushed: dict[str, Message] = {}
        self.replies: list[Message] = []

    def get_nodes(self) -> Iterable[NodeInfo]:
        return self.nodes

    def push_messages(self, found: Iterable[Message]) -> list[str]:
        names = []
        for message in found:
            names.append(f"message {len(self.pushed)}")
            message.metadata.__dict__["_message_id"] = names[-1]
            self.pushed[names[-1]] = message
        return names

    def pull_messages(self, names: Iterable[str]) -> list[Message]:
        wanted = set(names)
        ready = [reply for reply in self.replies if reply.metadata.reply_to_message_id in wanted]
        self.replies = [reply for reply in self.replies if reply not in ready]
        return ready


def messenger(grid: FakeGrid, nodes: Any = KEYS) -> FlowerMessenger:
    made = FlowerMessenger(grid, make({}), nodes=nodes)  # type: ignore[arg-type]
    made.present()
    return made


@pytest.fixture
def grid() -> FakeGrid:
    return FakeGrid()


@pytest.fixture
def flower(grid: FakeGrid) -> FlowerMessenger:
    return messenger(grid)


def task(number: int = 1, ticket: str = "aa" * 32) -> RoundTask:
    return RoundTask(number, "host:1", ticket, lr=0.1, client_state=STATE)


def test_clients_are_known_by_the_public_keys_of_their_nodes(grid: FakeGrid) -> None:
    assert messenger(grid).present() == {0: "late", 1: "early"}
    assert messenger(grid, None).present() == {0: "late", 1: "now", 2: "early"}, (
        "as they come, in a simulation"
    )


def test_a_task_goes_to_the_clients_node_and_its_answer_comes_back_once(
    grid: FakeGrid, flower: FlowerMessenger
) -> None:
    flower.send(1, task())
    (sent,) = grid.pushed.values()
    assert sent.metadata.dst_node_id == 70
    assert flower.receive() == []
    grid.replies.append(messages.write_update(UPDATE, ticket="aa" * 32, reply_to=sent))
    ((client, update),) = flower.receive()
    assert client == 1
    assert update is not None
    assert torch.equal(update.client_state["w"], STATE["w"])
    assert flower.receive() == []


def test_only_the_answer_to_the_last_question_counts(grid: FakeGrid, flower: FlowerMessenger) -> None:
    flower.send(0, task())
    flower.send(0, task())
    first, second = grid.pushed.values()
    grid.replies.append(messages.write_update(UPDATE, ticket="aa" * 32, reply_to=first))
    assert flower.receive() == []
    grid.replies.append(messages.write_update(UPDATE, ticket="aa" * 32, reply_to=second))
    assert len(flower.receive()) == 1


def test_a_client_that_failed_says_so_and_one_that_is_gone_says_nothing(
    grid: FakeGrid, flower: FlowerMessenger
) -> None:
    flower.send(0, task())
    flower.send(1, task())
    zero, one = grid.pushed.values()
    grid.replies.append(messages.write_failure(ValueError("a secret"), reply_to=zero))
    grid.replies.append(Message(Error(5, "Flower's own: the node is not there"), reply_to=one))
    grid.nodes = [node for node in grid.nodes if node.public_key != b"key one"]
    assert "secret" not in str(grid.replies[0].error)
    assert flower.receive() == [(0, None)]


def test_the_answer_of_another_client_is_no_answer(grid: FakeGrid, flower: FlowerMessenger) -> None:
    flower.send(0, task(ticket="aa" * 32))
    (asked,) = grid.pushed.values()
    grid.replies.append(messages.write_update(UPDATE, ticket="bb" * 32, reply_to=asked))
    assert flower.receive() == [(0, None)]


def test_in_the_end_everybody_who_is_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messengers, "GOODBYE_SECONDS", 0.1)
    grid = FakeGrid()
    messenger(grid).dismiss()
    told = {(m.metadata.dst_node_id, m.metadata.message_type) for m in grid.pushed.values()}
    assert told == {(50, "query.finish"), (70, "query.finish")}


def test_in_the_end_the_owner_waits_until_clients_have_left_not_for_their_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messengers, "GOODBYE_SECONDS", 600.0)
    grid = FakeGrid()
    push = grid.push_messages

    def push_and_leave(found: Iterable[Message]) -> list[str]:
        names = push(found)
        threading.Timer(0.5, grid.nodes.clear).start()
        return names

    monkeypatch.setattr(grid, "push_messages", push_and_leave)
    monkeypatch.delattr(FakeGrid, "pull_messages")
    messenger(grid).dismiss()
    assert grid.nodes == []


def test_a_messenger_that_is_stopped_ends_whoever_waits_for_clients() -> None:
    stop = threading.Event()
    flower = FlowerMessenger(FakeGrid(), make({}), nodes=KEYS, stop=stop)  # type: ignore[arg-type]
    assert flower.present()
    stop.set()
    with pytest.raises(NetworkError, match="nobody left"):
        flower.present()
