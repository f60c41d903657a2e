"""Neither baseline can be embedded by the server: its types give it nothing to embed with."""

from __future__ import annotations

import inspect

import pytest
import torch

from harness.luck import Margin
from sigil import data
from sigil.baselines import Backdoor, ParameterMark
from sigil.federation.federation import Federation
from sigil.federation.observers import ClientObserver, ServerObserver
from sigil.federation.settings import make

SETTINGS = make(
    {
        "model": {"name": "resnet18", "width": 8, "cut": "layer2"},
        "data": {"name": "digits"},
        "federation": {"clients": 2, "rounds": 3, "local_epochs": 3, "batch_size": 16},
        "optimizer": {"warmup_rounds": 0, "lr": 0.05},
        "watermark": {"strength": 0.0},
        "run": {"workers": 1, "threads": 1},
    }
)


def test_what_the_baselines_need_is_offered_to_clients_only() -> None:
    for need in ("on_batch", "on_update"):
        assert hasattr(ClientObserver, need)
        assert not hasattr(ServerObserver, need)
    sees = inspect.signature(ServerObserver.on_gradient_sent).parameters
    assert set(sees) == {"self", "at", "activation", "main", "final"}
    assert not issubclass(Backdoor, ServerObserver)
    assert not issubclass(ParameterMark, ServerObserver)


@pytest.mark.parametrize("mark", [Backdoor(), ParameterMark()], ids=["backdoor", "parameter"])
def test_as_the_servers_observer_a_baseline_embeds_nothing(mark: Backdoor | ParameterMark) -> None:
    """Put there in spite of its type, it is never given an image, a label or a parameter."""
    dataset = data.load("digits", train_limit=60, test_limit=60)

    def state(observers: list[ServerObserver]) -> dict[str, torch.Tensor]:
        federation = Federation(SETTINGS, dataset, server_observers=observers)
        federation.run_round()
        return federation.client_state

    class AtTheServer(ServerObserver):
        """A server that would run the mark's code if anything called it."""

        on_batch = mark.on_batch
        on_update = mark.on_update

    clean, tried = state([]), state([AtTheServer()])
    assert all(torch.equal(value, tried[name]) for name, value in clean.items())


def test_cooperating_clients_embed_both_in_the_same_federation(margin: Margin) -> None:
    dataset = data.load("digits", train_limit=300, test_limit=100)
    # A patch of three pixels is learned in time from every seed; one of two is not from each.
    backdoor, parameter = Backdoor(size=3), ParameterMark()
    federation = Federation(SETTINGS, dataset, client_observers=[backdoor, parameter])
    fresh = parameter.verify(federation.halves()[0]).wsr
    for _ in range(3):
        federation.run_round()
    client_half, server_half = federation.halves()
    margin("parameter mark", parameter.verify(client_half).wsr, above=0.8)
    margin("parameter mark gained", parameter.verify(client_half).wsr - fresh, above=0.15)
    hit = backdoor.verify(client_half, server_half, dataset, precision=federation.precision)
    margin("backdoor", hit.wsr, above=0.5)
    assert hit.trials >= 80
