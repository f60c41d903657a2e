"""The ClientApp: a message in, a round on the real service, a message out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict

from sigil.errors import DataError, NetworkError
from sigil.transport import RoundUpdate, SplitService, certificates
from sigil.transport.flower import client_app, messages
from sigil.transport.listening import split_address

pytestmark = pytest.mark.usefixtures("identity")


def context(**config: Any) -> Context:
    named = {name.replace("_", "-"): value for name, value in config.items()}
    return Context(run_id=1, node_id=9, node_config=named, state=RecordDict(), run_config={})


def ask(net: Any, service: SplitService, client: int, **config: Any) -> RoundUpdate:
    """Open a round, send a client its message and read the answer."""
    local = net.local()
    tickets = net.open(service, local.server_state)
    task = net.task(service, tickets[client], local.client_state)
    question = messages.write_task(task, client=client, settings=net.settings, node=9)
    question.metadata.__dict__["_message_id"] = "m"
    answer = client_app.app(question, context(device="cpu", **config))
    update = messages.read_update(answer, task=task)
    assert update is not None
    return update


def bundle(net: Any, client: int) -> str:
    return str(certificates.bundle_folder(net.folder, client))


def same(ours: RoundUpdate, theirs: RoundUpdate) -> bool:
    return all(torch.equal(ours.client_state[name], value) for name, value in theirs.client_state.items())


def expected(net: Any, service: SplitService, client: int, **changes: Any) -> RoundUpdate:
    local = net.local()
    tickets = net.open(service, local.server_state)
    task = net.task(service, tickets[client], local.client_state)
    update: RoundUpdate = net.train(task, client, **changes)
    return update


def test_a_part_of_the_partition_is_trained_as_in_one_process(net: Any, service: SplitService) -> None:
    update = ask(net, service, 1, bundle=bundle(net, 1), part=1)
    assert same(update, expected(net, service, 1))
    assert update.images == 80


def test_without_a_part_all_of_the_clients_data_is_its_share(net: Any, service: SplitService) -> None:
    assert ask(net, service, 2, bundle=bundle(net, 2)).images == 2 * len(net.dataset.train)


def test_a_virtual_client_finds_its_bundle_and_its_part(
    net: Any, service: SplitService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(client_app.CLIENTS_VARIABLE, str(net.folder))
    assert same(ask(net, service, 0), expected(net, service, 0))
    monkeypatch.delenv(client_app.CLIENTS_VARIABLE)
    with pytest.raises(NetworkError, match="bundle"):
        ask(net, service, 0)


def test_another_clients_bundle_is_refused(net: Any, service: SplitService) -> None:
    with pytest.raises(NetworkError, match="certificate"):
        ask(net, service, 0, bundle=bundle(net, 1), part=0)


def test_another_way_to_the_owner_leads_to_the_next_port(
    net: Any, service: SplitService, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def remember(task: Any, *others: Any, **more: Any) -> RoundUpdate:
        asked.append(task.address)
        return RoundUpdate(task.client_state, images=2, steps=1, loss=0.0)

    monkeypatch.setattr(client_app, "train_round", remember)
    ask(net, service, 0, bundle=bundle(net, 0), server="tunnel.example:7000")
    assert asked == ["tunnel.example:7001"]
    for nonsense in ("7000", "host", ":7000", "host:port"):
        with pytest.raises(NetworkError, match="host:port"):
            split_address(nonsense)


def test_the_client_chooses_its_own_data(net: Any, service: SplitService, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="nowhere"):
        ask(net, service, 0, bundle=bundle(net, 0), data=f"folder:{tmp_path / 'nowhere'}")


@pytest.mark.parametrize("name", ["folder:/home/client/letters", "hub:someone/something", "folder:"])
def test_the_owner_names_no_folder_of_the_clients_and_no_download(
    net: Any, service: SplitService, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A client trained on any folder that its owner knew the name of, and gave away its activations."""
    opened = []
    monkeypatch.setattr(client_app, "load_data", lambda settings, place: opened.append(settings.data.name))
    data = net.settings.data.model_copy(update={"name": name})
    monkeypatch.setattr(net, "settings", net.settings.model_copy(update={"data": data}))
    with pytest.raises(DataError, match=r"The owner wants this client to train on .* --data NAME"):
        ask(net, service, 0, bundle=bundle(net, 0))
    assert opened == []


def test_the_last_message_ends_the_client() -> None:
    client_app.finished.clear()
    farewell = Message(RecordDict({"end": ConfigRecord()}), 9, messages.FINISH)
    farewell.metadata.__dict__["_message_id"] = "m"
    answer = client_app.app(farewell, context())
    assert not answer.has_error()
    assert client_app.finished.is_set()
    client_app.finished.clear()
