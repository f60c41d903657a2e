"""The server can be given no image, no label and no client parameter."""

from __future__ import annotations

import gc
import inspect
import types
import typing

import torch
from torch import Tensor, nn

from sigil.federation.client import Client
from sigil.federation.messages import Activation, CutGradient, LogitGradient, Logits
from sigil.federation.observers import ServerObserver, Step
from sigil.federation.precision import Precision
from sigil.federation.server import Server
from sigil.federation.step import step
from sigil.injector import Injector
from sigil.keys.key import Key

CPU = Precision(torch.device("cpu"), bfloat16=False)
NOW = Step(round=1, client=0, step=1)


def reachable_tensors(root: object) -> list[Tensor]:
    """Every tensor that can be reached from an object by following references."""
    seen, queue, found = set(), [root], []
    while queue:
        item = queue.pop()
        if id(item) in seen or isinstance(item, type | types.ModuleType | types.FrameType):
            continue
        seen.add(id(item))
        if isinstance(item, types.FunctionType | types.BuiltinFunctionType):
            continue  # code is shared by everybody and holds no data
        if isinstance(item, Tensor):
            found.append(item)
            queue += [item.grad if item.is_leaf else None, item.grad_fn]
        if isinstance(item, torch.autograd.graph.Node):
            queue += [node for node, _ in item.next_functions if node is not None]
            queue.append(getattr(item, "variable", None))
        queue += gc.get_referents(item)
    return found


class Watched(Server):
    """Looks at all it can reach at the worst moments: while it holds a batch."""

    def __init__(self, *args: typing.Any, **options: typing.Any) -> None:
        super().__init__(*args, **options)
        self.storages: set[int] = set()
        self.values: list[Tensor] = []

    def _look(self, *roots: object) -> None:
        mine, self.storages, self.values = (self.storages, self.values), set(), []
        for tensor in reachable_tensors([self, *roots]):
            mine[0].add(tensor.untyped_storage().data_ptr())
            mine[1].append(tensor.detach().clone())
        self.storages, self.values = mine

    def forward(self, message: Activation) -> Logits:
        answer = super().forward(message)
        self._look(message)
        return answer

    def backward(self, message: LogitGradient) -> CutGradient:
        self._look(message)
        return super().backward(message)


def test_nothing_private_is_reachable_from_the_server_during_a_step() -> None:
    torch.manual_seed(0)
    client_half = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())
    server_half = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
    images, labels = torch.rand(6, 3, 4, 4), torch.randint(5, (6,))
    client = Client(0, client_half, torch.optim.SGD(client_half.parameters(), lr=0.1), precision=CPU)
    server = Watched(
        server_half, torch.optim.SGD(server_half.parameters(), lr=0.1), shape=(4, 4, 4), precision=CPU
    )
    step(client, server, images, labels, at=NOW)

    private = {"images": images, "labels": labels, **dict(client_half.named_parameters())}
    assert any(value.shape == (6, 4, 4, 4) for value in server.values), "the walk sees the activation"
    for name, secret in private.items():
        assert secret.untyped_storage().data_ptr() not in server.storages, name
        for value in server.values:
            same = value.shape == secret.shape and torch.equal(value.to(secret.dtype), secret.detach())
            assert not same, f"a copy of {name} reached the server"


def test_the_walk_would_find_a_leak() -> None:
    secret = torch.rand(3)
    holder = types.SimpleNamespace(deep=[{"x": (secret * 2).requires_grad_()}])
    assert any(torch.equal(tensor, secret * 2) for tensor in reachable_tensors(holder))
    graph = (secret.requires_grad_() * 3).detach().requires_grad_() + secret
    assert any(tensor is secret for tensor in reachable_tensors(graph))


def test_the_servers_methods_take_the_two_messages_and_nothing_else() -> None:
    public = {
        name: typing.get_type_hints(method)
        for name, method in inspect.getmembers(Server, inspect.isfunction)
        if not name.startswith("_")
    }
    assert public == {
        "forward": {"message": Activation, "return": Logits},
        "backward": {"message": LogitGradient, "return": CutGradient},
    }
    made_of = typing.get_type_hints(Server.__init__)
    numbers = {name for name, kind in made_of.items() if kind is int}
    assert numbers == {"round", "client", "statistics_every"}
    rest = {"half", "optimizer", "shape", "precision", "injector", "observers", "return"}
    rest |= {"loss", "repetitions"}
    assert set(made_of) == rest | numbers
    assert typing.get_type_hints(Step) == {"round": int, "client": int, "step": int}


def test_a_server_counts_its_steps_and_records_its_injections() -> None:
    key = Key.generate("ACME", shape=(4, 4, 4), bits=8, seed=bytes(32))
    seen: list[Step] = []

    class Watch(ServerObserver):
        def on_gradient_sent(self, at: Step, *, activation: Tensor, main: Tensor, final: Tensor) -> None:
            seen.append(at)

    def run(**options: typing.Any) -> Server:
        half = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
        server = Server(
            half, torch.optim.SGD(half.parameters(), lr=0.1), shape=(4, 4, 4), precision=CPU, **options
        )
        for _ in range(5):
            server.forward(Activation(torch.rand(6, 4, 4, 4)))
            server.backward(LogitGradient(torch.randn(6, 5)))
        return server

    marked = run(injector=Injector(key), observers=[Watch()], round=3, client=2, statistics_every=2)
    assert seen == [Step(3, 2, number) for number in range(1, 6)]
    assert marked.steps == 5
    assert len(marked.injections) == 3  # of the steps 1, 3 and 5
    assert len({row.main_norm for row in marked.injections}) == 3
    assert run(injector=Injector(key)).injections == run(statistics_every=1).injections == []


def test_a_server_that_measures_nothing_leaves_the_injectors_own_setting() -> None:
    key = Key.generate("ACME", shape=(4, 4, 4), bits=8, seed=bytes(32))
    injector = Injector(key, statistics=True)
    half = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
    server = Server(
        half, torch.optim.SGD(half.parameters(), lr=0.1), shape=(4, 4, 4), precision=CPU, injector=injector
    )
    server.forward(Activation(torch.rand(6, 4, 4, 4)))
    server.backward(LogitGradient(torch.randn(6, 5)))
    assert injector.last is not None
