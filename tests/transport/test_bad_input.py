"""What goes wrong without ill will: each is one sentence, and the training goes on without the cause."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sigil.errors import NetworkError
from sigil.transport import ClientCredentials, Refused, certificates, wire
from sigil.transport.flower import processes
from sigil.transport.flower.bundle import unpacked
from sigil.transport.flower.node import Node
from sigil.transport.limits import Reason


def sentence(error: BaseException) -> str:
    """The error's text, if it is one line that ends like a sentence."""
    text = str(error)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def others_finish(net: Any, service: Any, federation: Any, tickets: dict[int, str]) -> None:
    """Client 1 trains as if nothing had happened to client 0."""
    net.train(net.task(service, tickets[1], federation.client_state), 1)
    assert 1 in service.wait_round(timeout=0).finished


def test_a_folder_of_another_run_is_one_sentence(net: Any, service: Any, tmp_path: Path) -> None:
    certificates.make(tmp_path, clients=1)
    foreign = ClientCredentials.load(certificates.bundle_folder(tmp_path, 0))
    federation = net.local()
    tickets = net.open(service, federation.server_state, clients=2)
    with pytest.raises(NetworkError) as refused:
        net.train(net.task(service, tickets[0], federation.client_state), 0, credentials=foreign)
    assert "use the bundle that this server's owner made" in sentence(refused.value)
    others_finish(net, service, federation, tickets)


def test_a_certificate_of_the_run_for_another_client_is_one_sentence(net: Any, service: Any) -> None:
    federation = net.local()
    tickets = net.open(service, federation.server_state, clients=2)
    with pytest.raises(Refused) as refused:
        net.train(net.task(service, tickets[0], federation.client_state), 0, credentials=net.credentials(2))
    assert refused.value.reason is Reason.CERTIFICATE
    sentence(refused.value)
    others_finish(net, service, federation, tickets)


def test_an_expired_folder_says_whom_to_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificates.make(tmp_path, clients=1)
    bundle = certificates.bundle_folder(tmp_path, 0)
    (bundle / "client.pem").unlink()
    monkeypatch.setattr(certificates, "_LIFETIME", timedelta(seconds=-1))
    with pytest.raises(NetworkError) as expired:
        certificates.make(tmp_path, clients=1)
    assert "ask the owner for a new folder" in sentence(expired.value)
    with pytest.raises(NetworkError, match="ask the owner"):
        Node(bundle, "127.0.0.1:1", config={})


def test_a_client_of_another_version_is_one_sentence(
    net: Any, service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = net.local()
    tickets = net.open(service, federation.server_state, clients=2)
    real = wire.hello

    def of_another_version(*arguments: Any, **options: Any) -> bytes:
        message = bytearray(real(*arguments, **options))
        message[4] += 1
        return bytes(message)

    with monkeypatch.context() as patch:
        patch.setattr(wire, "hello", of_another_version)
        with pytest.raises(Refused) as refused:
            net.train(net.task(service, tickets[0], federation.client_state), 0)
    assert "must run the same release of Sigil" in sentence(refused.value)
    others_finish(net, service, federation, tickets)


def test_a_client_with_another_cut_is_one_sentence(net: Any, service: Any) -> None:
    federation = net.local()
    tickets = net.open(service, federation.server_state, clients=2)
    model = net.settings.model.model_copy(update={"cut": "pool1"})
    with pytest.raises(NetworkError) as refused:
        net.train(
            net.task(service, tickets[0], federation.client_state),
            0,
            settings=net.settings.model_copy(update={"model": model}),
        )
    assert "at the cut pool1" in sentence(refused.value)
    others_finish(net, service, federation, tickets)


def test_a_client_with_pictures_in_colour_is_one_sentence(net: Any, service: Any) -> None:
    federation = net.local()
    tickets = net.open(service, federation.server_state, clients=2)
    assert net.dataset.shape == (1, 8, 8)
    colour = replace(net.dataset, shape=(3, 8, 8))
    with pytest.raises(NetworkError) as refused:
        net.train(net.task(service, tickets[0], federation.client_state), 0, dataset=colour)
    assert "does not fit images of (3, 8, 8)" in sentence(refused.value)
    others_finish(net, service, federation, tickets)


def full(*arguments: object, **options: object) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: processes.quiet(folder / "flower"),
        lambda folder: processes.start("flower-superlink", [], log=folder / "log"),
        lambda folder: processes.flwr(("list",), home=folder, log=folder / "log", secret=""),
        lambda folder: certificates.make(folder / "new", clients=1),
    ],
    ids=["Flower's folder", "a log", "a command's log", "certificates"],
)
def test_a_full_disk_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], object]
) -> None:
    monkeypatch.setattr(Path, "mkdir", full)
    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(NetworkError, match="No space left on device") as told:
        write(tmp_path)
    sentence(told.value)


def test_a_client_without_room_for_its_copies_says_what_to_do(
    net: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "TemporaryDirectory", full)
    with (
        pytest.raises(NetworkError, match="TMPDIR") as told,
        unpacked(certificates.bundle_folder(net.folder, 0)),
    ):
        pass
    sentence(told.value)
