"""The messages that Flower carries: what goes in comes out, and what is not ours is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from sigil.errors import NetworkError
from sigil.federation.settings import Settings, make
from sigil.transport import RoundTask, RoundUpdate
from sigil.transport.flower import messages

STATE = {
    "weight": torch.randn(3, 2, 2, 2).to(memory_format=torch.channels_last),
    "count": torch.tensor(7),
    "half": torch.randn(4, dtype=torch.bfloat16),
}
TASK = RoundTask(round=2, address="host:1", ticket="ab" * 32, lr=0.1 + 0.2, client_state=STATE)
UPDATE = RoundUpdate(STATE, images=12, steps=3, loss=1 / 3)


pytestmark = pytest.mark.usefixtures("identity")


def settings() -> Settings:
    return make({"watermark": {"strength": 0.37}, "run": {"seed": 5, "device": "cpu", "threads": 3}})


def question() -> Message:
    return messages.write_task(TASK, client=4, settings=settings(), node=9)


def answer(update: RoundUpdate = UPDATE, ticket: str = TASK.ticket) -> Message:
    return messages.write_update(update, ticket=ticket, reply_to=question())


def equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_task_arrives_as_it_was_sent() -> None:
    client, under, task = messages.read_task(question())
    assert client == 4
    assert replace(task, client_state={}) == replace(TASK, client_state={})
    assert equal(task.client_state, STATE)
    assert under.run.seed == 5
    assert under.federation == settings().federation


def test_a_task_says_nothing_of_the_mark_or_the_owners_machine() -> None:
    text = str(question().content.config_records["fields"]["json"])
    assert "0.37" not in text
    sent = json.loads(text)["settings"]
    assert sent["watermark"] == {"strength": 0}
    assert sent["run"] == {"seed": 5, "precision": "auto"}


def test_an_update_arrives_as_it_was_sent() -> None:
    update = messages.read_update(answer(), task=TASK)
    assert update is not None
    assert (update.images, update.steps, update.loss) == (12, 3, 1 / 3)
    assert equal(update.client_state, STATE)


def test_what_is_not_an_update_of_this_client_is_refused() -> None:
    assert messages.read_update(answer(ticket="cd" * 32), task=TASK) is None
    failed = Message(Error(1, "no"), reply_to=question())
    assert messages.read_update(failed, task=TASK) is None
    with pytest.raises(ValueError, match="finite"):
        answer(replace(UPDATE, loss=float("nan")))


@pytest.mark.parametrize("number", ["1e999", "NaN", '"many"', "null"])
def test_numbers_that_are_none_are_refused(number: str) -> None:
    reply = answer()
    record = reply.content.config_records["fields"]
    record["json"] = str(record["json"]).replace(str(1 / 3), number)
    assert messages.read_update(reply, task=TASK) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04K\x01.",
        (1 << 60).to_bytes(8, "little") + b"{}",
        bytes(10**6),
    ],
)
def test_bytes_that_are_no_half_are_refused(data: bytes) -> None:
    forged = ArrayRecord({"half": Array("uint8", (len(data),), messages.FORMAT, data)})
    fields = answer().content.config_records["fields"]
    reply = Message(RecordDict({"half": forged, "fields": fields}), reply_to=question())
    assert messages.read_update(reply, task=TASK) is None


def test_arrays_in_another_format_are_not_even_read() -> None:
    fields = answer().content.config_records["fields"]
    numpy = ArrayRecord({"half": Array(np.zeros(3, np.float32))})
    for content in ({"half": numpy, "fields": fields}, {"fields": fields}, {"half": numpy}, {}):
        reply = Message(RecordDict(content), reply_to=question())  # type: ignore[arg-type]
        assert messages.read_update(reply, task=TASK) is None


def test_a_task_of_another_release_is_one_sentence() -> None:
    strange = question()
    record = strange.content.config_records["fields"]
    record["json"] = str(record["json"]).replace('"batch_size"', '"batch_width"')
    with pytest.raises(NetworkError, match="same release"):
        messages.read_task(strange)
    with pytest.raises(NetworkError, match="same release"):
        messages.read_task(Message(RecordDict({"fields": ConfigRecord()}), 9, "train"))
