"""The remote server stub against servers that do not keep to the protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
import torch

from sigil.errors import NetworkError
from sigil.federation import Activation, LogitGradient
from sigil.federation.precision import Precision
from sigil.transport import Reason, Refused, RemoteServer, ServerCredentials, wire
from sigil.transport.wire import Header, Kind

CPU = Precision(torch.device("cpu"), bfloat16=False)
WELCOME = Header(Kind.WELCOME, 1, 0, 0).pack()
SHAPE = (4, 8, 2, 2)

Handler = Callable[[Iterator[bytes], Any], Iterator[bytes]]


@contextmanager
def impostor(net: Any, handler: Handler) -> Iterator[str]:
    """A server with good certificates and bad manners."""
    mine = ServerCredentials.load(net.folder)
    server = grpc.server(ThreadPoolExecutor(4))
    _, service, method = wire.METHOD.split("/")
    methods = {method: grpc.stream_stream_rpc_method_handler(handler)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    secure = grpc.ssl_server_credentials([(mine.key, mine.certificate)], mine.authority, True)
    port = server.add_secure_port("127.0.0.1:0", secure)
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0)


def remote(net: Any, address: str, **changes: Any) -> RemoteServer:
    arguments: dict[str, Any] = {
        "ticket": "00" * 32,
        "round_number": 1,
        "client": 0,
        "classes": 10,
        "credentials": net.credentials(0),
        "precision": CPU,
        "patience": 1.0,
    }
    return RemoteServer(address, **{**arguments, **changes})


def frames(kind: Kind, shape: tuple[int, ...], step: int = 1) -> list[bytes]:
    return list(wire.frame(kind, torch.zeros(shape), round_number=1, client=0, step=step))


@pytest.mark.parametrize(
    "answers",
    [
        [b"nonsense"],
        [Header(Kind.WELCOME, 1, 0, 7).pack()],
        [Header(Kind.FINISHED, 1, 0, 0).pack()],
        [WELCOME, *frames(Kind.CUT_GRADIENT, SHAPE)],
        [WELCOME, *frames(Kind.LOGITS, (4, 10), step=2)],
        [WELCOME, *frames(Kind.LOGITS, (5, 10))],
        [WELCOME, Header(Kind.LOGITS, 1, 0, 1, torch.float32, False, (2**31, 2**20)).pack()],
        [WELCOME, frames(Kind.LOGITS, (4, 10))[0], bytes(159)],
    ],
    ids=["noise", "too far", "no welcome", "other kind", "other step", "other shape", "huge", "short chunk"],
)
def test_an_answer_that_is_not_the_one_is_refused(net: Any, answers: list[bytes]) -> None:
    def handler(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        yield from answers
        next(requests)
        yield from ()

    with impostor(net, handler) as address:
        server = remote(net, address)
        with pytest.raises(NetworkError, match="does not follow the protocol"):
            server.forward(Activation(torch.rand(SHAPE)))
        server.close()


def test_a_server_that_hangs_up_again_and_again_is_given_up(net: Any) -> None:
    calls = 0

    def handler(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        nonlocal calls
        calls += 1
        yield WELCOME

    with (
        impostor(net, handler) as address,
        pytest.raises(NetworkError, match=f"{address} cannot be reached"),
    ):
        remote(net, address).forward(Activation(torch.rand(SHAPE)))
    assert calls > 1


@pytest.mark.parametrize(("reason", "final"), [(Reason.TICKET, True), (Reason.STREAMS, False)])
def test_a_refusal_is_final_unless_it_passes(net: Any, reason: Reason, final: bool) -> None:
    calls = 0

    def handler(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        nonlocal calls
        calls += 1
        context.set_trailing_metadata(((wire.REASON_KEY, reason.value),))
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "for a reason")

    with impostor(net, handler) as address, pytest.raises(NetworkError) as error:
        remote(net, address).forward(Activation(torch.rand(SHAPE)))
    assert isinstance(error.value, Refused) == final
    assert (calls == 1) == final


def test_a_lost_confirmation_of_a_closed_round_is_left_to_the_owner(net: Any) -> None:
    def handler(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        hello, _ = wire.read_hello(next(requests))
        if hello.step:  # back after the end, but the round is over
            context.set_trailing_metadata(((wire.REASON_KEY, Reason.CLOSED.value),))
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "over")
        yield WELCOME
        next(requests), next(requests)
        yield from frames(Kind.LOGITS, (4, 10))
        next(requests), next(requests)
        yield from frames(Kind.CUT_GRADIENT, SHAPE)
        assert wire.unpack(next(requests)).kind is Kind.FINISH

    with impostor(net, handler) as address:
        server = remote(net, address)
        server.forward(Activation(torch.rand(SHAPE)))
        server.backward(LogitGradient(torch.zeros(4, 10)))
        server.finish()
        server.close()


def test_a_ticket_that_is_none_is_said_so_before_connecting(net: Any) -> None:
    with pytest.raises(NetworkError, match="ticket"):
        remote(net, "127.0.0.1:1", ticket="nonsense")
