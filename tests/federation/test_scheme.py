"""Which scheme a training has, and what its clients' gradients carry under it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from harness.luck import Margin
from harness.training import changed
from sigil import data
from sigil.errors import ConfigError
from sigil.federation.federation import Federation
from sigil.federation.from_settings import resolve
from sigil.federation.observers import ServerObserver, Step
from sigil.federation.settings import Settings, make
from sigil.keys.key import Key

SHAPE = (16, 4, 4)


SMALL = {
    "model": {"name": "resnet18", "width": 8, "cut": "layer2"},
    "data": {"name": "digits", "train_limit": 600, "test_limit": 100},
    "federation": {"clients": 4, "rounds": 6, "local_epochs": 2, "batch_size": 16},
    "optimizer": {"lr": 0.05, "warmup_rounds": 0},
    "watermark": {"strength": 0.5},
    "run": {"device": "cpu", "workers": 1, "precision": "float32", "seed": 3},
}


def settings(**sections: dict[str, Any]) -> Settings:
    return changed(SMALL, **sections)


def key(**stated: Any) -> Key:
    return Key.generate("ACME", shape=SHAPE, bits=32, seed=bytes(32), **stated)


@pytest.fixture(scope="module")
def digits() -> data.Dataset:
    return data.load("digits", train_limit=600, test_limit=100)


@pytest.fixture(scope="module")
def few_digits() -> data.Dataset:
    """Enough where nothing has to be learned."""
    return data.load("digits", train_limit=80, test_limit=20)


@pytest.mark.parametrize(
    ("federation", "scheme", "strength"),
    [
        ({"clients": 4}, "shares", 0.3),
        ({"clients": 3}, "paper", 0.1),
        ({"clients": 10, "mode": "sl"}, "paper", 0.1),
        ({"clients": 10, "mode": "sfl"}, "shares", 0.3),
        ({"clients": 10, "server_halves": "shared"}, "shares", 0.3),
    ],
)
def test_shares_are_automatic_where_four_clients_are_averaged(
    federation: dict[str, Any], scheme: str, strength: float
) -> None:
    mark = resolve(make({"federation": federation}), None).watermark
    assert (mark.scheme, mark.strength) == (scheme, strength)


def test_a_run_follows_what_its_key_states() -> None:
    assert resolve(settings(), key()).watermark.scheme == "paper"
    assert resolve(settings(watermark={"strength": 0}), None).watermark.scheme == "paper"
    assert resolve(settings(), key(scheme="shares")).watermark.scheme == "shares"
    few = settings(federation={"clients": 2})
    assert resolve(few, key(scheme="shares")).watermark.scheme == "shares"
    assert resolve(resolve(few, key(scheme="shares")), None) == resolve(few, key(scheme="shares"))


@pytest.mark.parametrize(
    ("sections", "stated", "sentence"),
    [
        ({"watermark": {"scheme": "shares"}}, {}, "the key states 'paper'"),
        ({"watermark": {"scheme": "paper"}}, {"scheme": "shares"}, "the key states 'shares'"),
        ({"federation": {"mode": "sl"}}, {"scheme": "shares"}, '"sl" averages none'),
        ({"watermark": {"carriers_per_bit": 2}}, {}, "belongs to the scheme shares"),
        (
            {"watermark": {"carriers_per_bit": 1}},
            {"scheme": "shares", "carriers_per_bit": 2},
            "states 2 carriers per bit, but 1",
        ),
        (
            {"watermark": {"carriers_per_bit": 2}, "federation": {"clients": 1}},
            {"scheme": "shares"},
            "of 1 with 2 carriers per bit is impossible",
        ),
    ],
)
def test_settings_that_contradict_the_key_or_the_clients_are_refused(
    sections: dict[str, Any], stated: dict[str, Any], sentence: str, digits: data.Dataset
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Federation(settings(**sections), digits, key=key(**stated))


class Marks(ServerObserver):
    """What was added to the gradients of each client."""

    def __init__(self) -> None:
        self.added: dict[int, list[Tensor]] = {}

    def on_gradient_sent(self, at: Step, *, activation: Tensor, main: Tensor, final: Tensor) -> None:
        self.added.setdefault(at.client, []).append((final - main).flatten(1).double())


def outside(rows: Tensor, columns: Tensor) -> float:
    """The share of the rows' energy that lies outside the span of the columns."""
    basis = torch.linalg.qr(columns.double()).Q
    return float((rows - rows @ basis @ basis.T).square().sum() / rows.square().sum())


def test_a_client_carries_its_share_and_the_average_the_whole_mark(
    digits: data.Dataset, margin: Margin
) -> None:
    secret, marks = key(scheme="shares"), Marks()
    strong = settings(watermark={"strength": 1.0})
    federation = Federation(strong, digits, key=secret, server_observers=[marks])
    for _ in range(4):
        federation.run_round()
    for client in range(4):
        mine = secret.share_of(client, 4)
        added = torch.cat(marks.added[client])
        assert int(mine.sum()) == 8
        assert outside(added, secret.matrix[:, mine]) < 1e-6
    noise = federation.read_mark(secret)[0]
    assert noise.kind == "noise"
    margin("log10 p", noise.log10_p_before, below=-7)  # proof begins at 3e-7
    carried = torch.stack([secret.share_of(client, 4) for client in range(4)])
    shares = torch.tensor(noise.bit_shares)
    margin("WSR of a share", min(float(shares[mine].mean()) for mine in carried), above=0.75)


def test_two_carriers_per_bit(few_digits: data.Dataset) -> None:
    secret, marks = key(scheme="shares", carriers_per_bit=2), Marks()
    Federation(settings(), few_digits, key=secret, server_observers=[marks]).run_round()
    assert [int(secret.share_of(client, 4).sum()) for client in range(4)] == [16] * 4
    for client, added in marks.added.items():
        assert outside(torch.cat(added), secret.matrix[:, secret.share_of(client, 4)]) < 1e-6


def test_under_the_scheme_of_the_paper_everyone_carries_everything(few_digits: data.Dataset) -> None:
    secret, marks = key(), Marks()
    Federation(settings(), few_digits, key=secret, server_observers=[marks]).run_round()
    for added in marks.added.values():
        assert outside(torch.cat(added), secret.matrix) < 1e-6
        assert outside(torch.cat(added), secret.matrix[:, :8]) > 0.5


def test_more_clients_than_bits_leave_some_without_any(few_digits: data.Dataset) -> None:
    secret = Key.generate("ACME", shape=SHAPE, bits=3, seed=bytes(32), scheme="shares")
    marks = Marks()
    Federation(settings(), few_digits, key=secret, server_observers=[marks]).run_round()
    empty = [client for client in range(4) if not secret.share_of(client, 4).any()]
    assert len(empty) == 1
    assert all(float(torch.cat(added).abs().max()) == 0 for added in (marks.added[empty[0]],))
