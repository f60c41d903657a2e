"""The service against clients that break its rules, one rule a test, and the rounds it directs."""

from __future__ import annotations

import gc
import logging
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
import torch

from harness.waiting import until
from sigil.errors import ConfigError, NetworkError
from sigil.federation.messages import CutGradient, Logits
from sigil.federation.observers import ServerObserver
from sigil.federation.recording import ReferenceRecorder
from sigil.federation.server import Server
from sigil.transport import (
    ClientCredentials,
    Limits,
    Reason,
    RoundTask,
    ServerCredentials,
    Status,
    wire,
)
from sigil.transport.wire import Header, Kind

NAN, INFINITY = float("nan"), float("inf")


def control(kind: Kind, step: int, *, number: int = 1, client: int = 0) -> bytes:
    return Header(kind, number, client, step).pack()


def tensor(
    kind: Kind,
    shape: tuple[int, ...],
    *,
    fill: float = 0.5,
    step: int = 1,
    dtype: torch.dtype = torch.float32,
) -> list[bytes]:
    values = torch.full(shape, fill, dtype=dtype)
    return list(wire.frame(kind, values, round_number=1, client=0, step=step))


def one_bad(shape: tuple[int, ...], value: float) -> list[bytes]:
    """An activation in which a single number is not one."""
    values = torch.ones(shape)
    values.view(-1)[-1] = value
    return list(wire.frame(Kind.ACTIVATION, values, round_number=1, client=0, step=1))


# What a client says after HELLO, and why it is thrown out. A list of messages at a time; after each list
# but the last the server answers with a tensor.
Speech = Callable[[Any], list[list[bytes]]]
OFFENCES: dict[str, tuple[Reason, Speech]] = {
    "a gradient before any logits": (Reason.ORDER, lambda net: [net.gradient()]),
    "a step skipped": (Reason.ORDER, lambda net: [net.activation(step=2)]),
    "step zero": (Reason.ORDER, lambda net: [net.activation(step=0)]),
    "a step repeated": (
        Reason.ORDER,
        lambda net: [net.activation(), net.gradient(), net.activation(step=1)],
    ),
    "two activations in a row": (Reason.ORDER, lambda net: [net.activation(), net.activation()]),
    "the gradient of another step": (Reason.ORDER, lambda net: [net.activation(), net.gradient(step=2)]),
    "a message of the server's": (Reason.ORDER, lambda net: [tensor(Kind.LOGITS, (4, 10))]),
    "a greeting of the server's": (Reason.ORDER, lambda net: [[control(Kind.WELCOME, 0)]]),
    "an end before the beginning": (Reason.ORDER, lambda net: [[control(Kind.FINISH, 0)]]),
    "an end in the middle of a step": (
        Reason.ORDER,
        lambda net: [net.activation(), [control(Kind.FINISH, 1)]],
    ),
    "an end after fewer steps than done": (
        Reason.ORDER,
        lambda net: [net.activation(), net.gradient(), [control(Kind.FINISH, 0)]],
    ),
    "the end of another client": (
        Reason.IDENTITY,
        lambda net: [net.activation(), net.gradient(), [control(Kind.FINISH, 1, client=1)]],
    ),
    "a step of another client": (Reason.IDENTITY, lambda net: [net.activation(client=1)]),
    "a step of another round": (Reason.IDENTITY, lambda net: [net.activation(number=2)]),
    "a second greeting": (Reason.MALFORMED, lambda net: [[net.hello("00" * 32)]]),
    "an empty message": (Reason.MALFORMED, lambda net: [[b""]]),
    "another shape": (Reason.SHAPE, lambda net: [tensor(Kind.ACTIVATION, (4, *net.shape[:-1], 9))]),
    "another number of axes": (Reason.SHAPE, lambda net: [tensor(Kind.ACTIVATION, (4, 128))]),
    "a single sample": (Reason.SHAPE, lambda net: [net.activation(samples=1)]),
    "too large a batch": (Reason.SHAPE, lambda net: [net.activation(samples=18)]),
    "a gradient for fewer samples": (
        Reason.SHAPE,
        lambda net: [net.activation(samples=4), net.gradient(samples=3)],
    ),
    "a gradient for more classes": (
        Reason.SHAPE,
        lambda net: [net.activation(samples=4), tensor(Kind.LOGIT_GRADIENT, (4, 11))],
    ),
    "a narrow gradient": (
        Reason.DTYPE,
        lambda net: [net.activation(), tensor(Kind.LOGIT_GRADIENT, (4, 10), dtype=torch.bfloat16)],
    ),
    "a short chunk": (Reason.SIZE, lambda net: [[net.activation()[0], net.activation()[1][:-1]]]),
    "a long chunk": (Reason.SIZE, lambda net: [[net.activation()[0], net.activation()[1] + b"\0"]]),
    "another header instead of a chunk": (
        Reason.SIZE,
        lambda net: [[net.activation()[0], net.activation()[0]]],
    ),
    "NaN": (Reason.VALUES, lambda net: [one_bad((4, *net.shape), NAN)]),
    "infinity": (Reason.VALUES, lambda net: [one_bad((4, *net.shape), -INFINITY)]),
    "NaN in a gradient": (
        Reason.VALUES,
        lambda net: [net.activation(), tensor(Kind.LOGIT_GRADIENT, (4, 10), fill=NAN)],
    ),
}


@pytest.mark.parametrize("name", OFFENCES)
def test_an_offence_ends_the_clients_round_with_its_reason(net: Any, service: Any, name: str) -> None:
    reason, speech = OFFENCES[name]
    tickets = net.open(service, service.initial_state, clients=1)
    stream = net.raw(service).send(net.hello(tickets[0]))
    assert stream.receive() == Header(Kind.WELCOME, 1, 0, 0)
    *accepted, last = speech(net)
    for messages in accepted:
        stream.send(*messages)
        stream.receive()
    assert stream.send(*last).refusal() is reason
    assert service.metrics.rejections()[reason] == 1
    assert net.raw(service).send(net.hello(tickets[0])).refusal() is Reason.CLOSED
    with pytest.raises(NetworkError, match="Only 0 of 1 clients"):
        service.wait_round(timeout=120)


def test_an_offender_does_not_disturb_the_others(net: Any, service: Any) -> None:
    federation = net.local()
    tickets = net.open(service, federation.server_state, clients=2)
    assert net.raw(service).send(net.hello(tickets[0]), *net.activation(step=7)).refusal() is Reason.ORDER
    net.train(net.task(service, tickets[1], federation.client_state), 1)
    outcome = service.wait_round(timeout=120)
    assert outcome.finished == [1]
    assert outcome.clients[0].status is Status.EXPELLED
    assert outcome.clients[0].reason is Reason.ORDER


@pytest.mark.parametrize("wire", ["bfloat16", "int8"])
def test_a_narrow_wire_takes_nothing_else(net: Any, wire: str) -> None:
    with net.service(wire=wire) as service:
        tickets = net.open(service, service.initial_state, clients=1)
        stream = net.raw(service).send(net.hello(tickets[0]), *net.activation())
        assert stream.refusal() is Reason.DTYPE


def test_eight_bits_are_refused_where_they_were_not_agreed_on(net: Any, service: Any) -> None:
    tickets = net.open(service, service.initial_state, clients=1)
    stream = net.raw(service).send(net.hello(tickets[0]))
    stream.receive()
    values = torch.ones(4, *net.shape)
    frame = wire.frame(Kind.ACTIVATION, values, round_number=1, client=0, step=1, wire="int8")
    assert stream.send(*frame).refusal() is Reason.DTYPE


@pytest.mark.parametrize("scale", [NAN, INFINITY, -1.0, 3e38])
def test_hostile_scales_end_the_clients_round(net: Any, scale: float) -> None:
    with net.service(wire="int8") as service:
        tickets = net.open(service, service.initial_state, clients=1)
        stream = net.raw(service).send(net.hello(tickets[0]))
        stream.receive()
        values = torch.ones(4, *net.shape)
        header, content = wire.frame(Kind.ACTIVATION, values, round_number=1, client=0, step=1, wire="int8")
        hostile = content[:12] + struct.pack("<f", scale) + content[16:]
        assert stream.send(header, hostile).refusal() is Reason.VALUES
        assert service.metrics.rejections()[Reason.VALUES] == 1


@pytest.mark.parametrize("loss", ["cross-entropy", "any"])
def test_a_half_that_a_client_ruined_is_not_averaged(net: Any, loss: str) -> None:
    federation = net.settings.federation.model_copy(update={"loss": loss})
    settings = net.settings.model_copy(update={"federation": federation})
    with replace(net, settings=settings).service() as service:
        tickets = net.open(service, service.initial_state, clients=1)
        stream = net.raw(service).send(net.hello(tickets[0]))
        stream.receive()
        huge = tensor(Kind.ACTIVATION, (4, *net.shape), fill=3e38)
        stream.send(*huge).receive()
        stream.send(*tensor(Kind.LOGIT_GRADIENT, (4, 10), fill=3e38))
        if loss == "cross-entropy":
            assert stream.refusal() is Reason.LOSS  # no such gradient exists, so the half stays sound
        else:
            stream.receive()
            assert stream.send(control(Kind.FINISH, 1)).refusal() is Reason.VALUES


# --- tickets -------------------------------------------------------------------------------------------


def test_a_ticket_serves_its_own_client_round_and_certificate_only(net: Any, service: Any) -> None:
    tickets = net.open(service, service.initial_state)
    assert net.raw(service, 1).send(net.hello(tickets[0])).refusal() is Reason.CERTIFICATE
    assert net.raw(service, 0).send(net.hello(tickets[0], client=1)).refusal() is Reason.TICKET
    assert net.raw(service, 0).send(net.hello(tickets[0], number=2)).refusal() is Reason.CLOSED
    assert net.raw(service, 0).send(net.hello("5a" * 32)).refusal() is Reason.TICKET
    assert net.raw(service, 0).send(net.hello(tickets[0])).receive().kind is Kind.WELCOME


def test_no_ticket_is_good_before_and_after_the_round(net: Any, service: Any) -> None:
    assert net.raw(service).send(net.hello("00" * 32)).refusal() is Reason.CLOSED
    tickets = net.open(service, service.initial_state)
    with pytest.raises(NetworkError):
        service.wait_round(timeout=0.1)
    assert net.raw(service).send(net.hello(tickets[0])).refusal() is Reason.CLOSED


def test_a_certificate_of_another_authority_gets_no_connection(net: Any, make_net: Any, service: Any) -> None:
    tickets = net.open(service, service.initial_state)
    stranger, own = make_net().credentials(0), net.credentials(0)
    mixed = ClientCredentials(own.authority, stranger.certificate, stranger.key)
    channel = net.channel(service, mixed)
    with pytest.raises(grpc.FutureTimeoutError):
        grpc.channel_ready_future(channel).result(timeout=2)
    call = channel.stream_stream(wire.METHOD)(iter([net.hello(tickets[0])]))
    with pytest.raises(grpc.RpcError) as error:
        next(call)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    channel.close()


def test_a_clients_certificate_cannot_pass_for_the_servers(net: Any) -> None:
    bundle = net.credentials(1)
    thief = ServerCredentials(bundle.authority, bundle.certificate, bundle.key)
    with net.service(credentials=thief) as service:
        task = RoundTask(1, service.address, "00" * 32, lr=0.1, client_state=net.local().client_state)
        with pytest.raises(NetworkError, match="certificate"):
            net.train(task, 0, patience=1.0)


# --- limits --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limits",
    [
        Limits(steps_per_round=1),
        Limits(samples_per_round=7),
        Limits(bytes_per_round=4 * 4 * 32 + 4 * 4 * 10 + 4 * 4 * 32 - 1),
    ],
)
def test_a_round_has_room_for_so_much_and_no_more(net: Any, limits: Limits) -> None:
    assert net.shape == (8, 2, 2)
    with net.service(limits=limits) as service:
        tickets = net.open(service, service.initial_state, clients=1)
        stream = net.raw(service).send(net.hello(tickets[0]), *net.activation())
        stream.receive(), stream.receive()
        stream.send(*net.gradient()).receive()
        assert stream.send(*net.activation(step=2)).refusal() is Reason.STEPS


def test_a_replay_does_not_give_a_client_more_bytes(net: Any) -> None:
    with net.service(limits=Limits(bytes_per_round=4 * 4 * 32 + 10)) as service:
        tickets = net.open(service, service.initial_state, clients=1)
        first = net.raw(service).send(net.hello(tickets[0]), *net.activation())
        first.receive(), first.receive()
        again = net.raw(service).send(net.hello(tickets[0]), *net.activation())
        assert again.refusal() is Reason.STEPS


def test_streams_are_counted_by_certificate_and_in_all(net: Any) -> None:
    with net.service(limits=Limits(streams=3, streams_per_client=2, hello_seconds=60.0)) as service:
        tickets = net.open(service, service.initial_state)
        held = [net.raw(service, 0).send(net.hello(tickets[0])), net.raw(service, 0)]
        held[0].receive()
        until(lambda: service._streams.total() == 2)
        assert net.raw(service, 0).refusal() is Reason.STREAMS
        held.append(net.raw(service, 1).send(net.hello(tickets[1], client=1)))
        held[2].receive()
        assert net.raw(service, 2).refusal() is Reason.STREAMS
        held[2].call.cancel()
        until(lambda: service._streams.total() == 2)
        assert net.raw(service, 2).send(net.hello(tickets[2], client=2)).receive().kind is Kind.WELCOME


def test_a_flood_of_streams_on_one_connection_keeps_nobody_from_training(net: Any) -> None:
    with net.service(limits=Limits(streams_per_client=2, hello_seconds=600.0)) as service:
        channel = net.channel(service, net.credentials(0))
        quiet = threading.Event()

        def say_nothing() -> Iterator[bytes]:
            quiet.wait()
            yield from ()

        calls = [channel.stream_stream(wire.METHOD)(say_nothing()) for _ in range(40)]
        until(lambda: service._streams.total() == 2)
        tickets = net.open(service, service.initial_state, clients=2)
        federation = net.local()
        net.train(net.task(service, tickets[1], federation.client_state), 1)
        assert service._streams.total() <= 3
        quiet.set()
        for call in calls:
            call.cancel()
        channel.close()


def test_coming_back_too_often_ends_the_round(net: Any) -> None:
    with net.service(limits=Limits(reconnects=2)) as service:
        tickets = net.open(service, service.initial_state, clients=1)
        for _ in range(3):
            stream = net.raw(service).send(net.hello(tickets[0]))
            stream.receive()
            assert stream.hang_up().refusal() is Reason.TRUNCATED
        assert net.raw(service).send(net.hello(tickets[0])).refusal() is Reason.RECONNECTS
        with pytest.raises(NetworkError, match="Only 0 of 1"):
            service.wait_round(timeout=120)


def test_a_newer_stream_of_the_same_client_ends_the_older(net: Any, service: Any) -> None:
    tickets = net.open(service, service.initial_state, clients=1)
    older = net.raw(service).send(net.hello(tickets[0]), *net.activation())
    older.receive(), older.receive()
    newer = net.raw(service).send(net.hello(tickets[0], answers=1))
    assert newer.receive() == Header(Kind.WELCOME, 1, 0, 1)
    assert older.refusal() is Reason.SUPERSEDED
    newer.send(*net.gradient())
    assert newer.receive().kind is Kind.CUT_GRADIENT
    assert service.metrics.registry.get_sample_value("sigil_clients_training") == 1


def test_a_client_cannot_claim_answers_that_were_never_given(net: Any, service: Any) -> None:
    tickets = net.open(service, service.initial_state, clients=1)
    stream = net.raw(service).send(net.hello(tickets[0]), *net.activation())
    stream.receive(), stream.receive()
    stream.call.cancel()
    assert net.raw(service).send(net.hello(tickets[0], answers=4)).refusal() is Reason.ORDER
    assert net.raw(service).send(net.hello(tickets[0], answers=1)).receive().step == 1


def test_a_lost_answer_is_sent_again_and_not_computed_again(net: Any, service: Any) -> None:
    tickets = net.open(service, service.initial_state, clients=1)
    stream = net.raw(service).send(net.hello(tickets[0]), *net.activation())
    stream.receive(), stream.receive()
    stream.send(*net.gradient())
    first = [next(stream.call), next(stream.call)]
    again = net.raw(service).send(net.hello(tickets[0], answers=1))
    assert again.receive() == Header(Kind.WELCOME, 1, 0, 2)
    assert [next(again.call), next(again.call)] == first
    assert again.send(control(Kind.FINISH, 1)).receive() == Header(Kind.FINISHED, 1, 0, 1)
    assert service.wait_round(timeout=120).clients[0].images == 4


# --- deadlines -----------------------------------------------------------------------------------------


def test_a_stream_that_says_nothing_is_closed(net: Any) -> None:
    with net.service(limits=Limits(hello_seconds=0.2)) as service:
        net.open(service, service.initial_state)
        assert net.raw(service).refusal() is Reason.DEADLINE


@pytest.mark.parametrize(
    "speech",
    [
        lambda net: [],
        lambda net: net.activation()[:1],
        lambda net: net.activation(),
    ],
    ids=["nothing", "a header alone", "an activation and never its gradient"],
)
def test_a_step_cannot_be_held_open(net: Any, speech: Callable[[Any], list[bytes]]) -> None:
    with net.service(limits=Limits(step_seconds=0.5)) as service:
        tickets = net.open(service, service.initial_state, clients=1)
        stream = net.raw(service).send(net.hello(tickets[0]), *speech(net))
        assert stream.refusal() is Reason.DEADLINE  # of the step: after HELLO there is no other
        until(lambda: service.metrics.registry.get_sample_value("sigil_in_flight_bytes") == 0)
        assert net.raw(service).send(net.hello(tickets[0], answers=1)).receive().step == 0


@pytest.fixture(scope="module")
def wide(make_net: Any) -> Any:
    """A federation whose steps take several chunks."""
    return make_net(model={"cut": "pool1", "width": 8}, federation={"batch_size": 4096})


def test_a_step_cannot_be_stretched_by_one_chunk_a_while(wide: Any) -> None:
    with wide.service(limits=Limits(step_seconds=1.0)) as service:
        tickets = wide.open(service, service.initial_state, clients=1)
        header, *chunks = wide.activation(samples=4096)
        assert len(chunks) == 2
        stream = wide.raw(service).send(wide.hello(tickets[0]), header)
        time.sleep(0.7)
        stream.send(chunks[0])
        time.sleep(0.7)
        assert stream.send(chunks[1]).refusal() is Reason.DEADLINE


def test_a_client_that_does_not_take_its_answer_is_not_waited_for_and_stays_the_only_one(
    make_net: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = 16_384
    net = make_net(model={"cut": "pool1", "width": 8}, federation={"batch_size": samples})
    monkeypatch.setattr(Server, "forward", lambda self, message: Logits(torch.zeros(samples, 10)))
    monkeypatch.setattr(
        Server, "backward", lambda self, message: CutGradient(torch.zeros(samples, *net.shape))
    )
    # Made before, so that the time of the step goes into nothing but sending.
    activation, gradient = net.activation(samples), net.gradient(samples)
    with net.service(limits=Limits(step_seconds=10.0, streams_per_client=1)) as service:
        tickets = net.open(service, service.initial_state, clients=1)
        stream = net.raw(service).send(net.hello(tickets[0]), *activation)
        stream.receive(), stream.receive()
        stream.send(*gradient)  # and 8 MiB come back, of which nothing is read
        until(lambda: service.metrics.rejections()[Reason.DEADLINE] == 1)
        until(lambda: service.metrics.registry.get_sample_value("sigil_in_flight_bytes") == 0)
        # gRPC cannot close a stream whose data is not taken, so it still counts.
        assert net.raw(service).send(net.hello(tickets[0])).refusal() is Reason.STREAMS
        stream.call.cancel()
        until(lambda: service._streams.total() == 0)


def test_a_header_alone_holds_nothing_once_its_client_is_gone(net: Any, service: Any) -> None:
    tickets = net.open(service, service.initial_state, clients=1)
    stream = net.raw(service).send(net.hello(tickets[0]), net.activation()[0])
    until(lambda: service.metrics.registry.get_sample_value("sigil_in_flight_bytes") > 0)
    stream.call.cancel()
    until(lambda: service.metrics.registry.get_sample_value("sigil_in_flight_bytes") == 0)


def test_time_away_counts_for_an_open_step(net: Any) -> None:
    with net.service(limits=Limits(step_seconds=2.0)) as service:
        tickets = net.open(service, service.initial_state, clients=1)
        stream = net.raw(service).send(net.hello(tickets[0]), *net.activation())
        stream.receive(), stream.receive()
        assert service.metrics.registry.get_sample_value("sigil_in_flight_bytes") > 0
        stream.call.cancel()
        until(lambda: service.metrics.registry.get_sample_value("sigil_in_flight_bytes") == 0)
        # The step is gone, the round is not: the client may begin it again.
        assert net.raw(service).send(net.hello(tickets[0], answers=1)).receive().step == 0


# --- rounds --------------------------------------------------------------------------------------------


def one_stays_away(net: Any, service: Any) -> RoundTask:
    """A round of two clients: the first trains, the second is gone again; returns the latter's task."""
    federation = net.local()
    tickets = net.open(service, federation.server_state, clients=2)
    stream = net.raw(service, 1).send(net.hello(tickets[1], client=1))
    stream.receive()
    stream.call.cancel()
    first, second = (net.task(service, tickets[client], federation.client_state) for client in (0, 1))
    net.train(first, 0)
    return second


def test_a_round_goes_on_without_a_client_that_stays_away(net: Any) -> None:
    with net.service(limits=Limits(return_seconds=0.3)) as service:
        one_stays_away(net, service)
        outcome = service.wait_round(timeout=None)
        assert (outcome.finished, list(outcome.clients)) == ([0], [0, 1])
        assert outcome.clients[1].status is Status.LOST


def test_a_round_waits_for_a_client_that_stays_away_if_told_so(net: Any) -> None:
    with net.service(limits=Limits(return_seconds=None)) as service:
        task = one_stays_away(net, service)
        late = threading.Timer(1.0, lambda: net.train(task, 1))
        late.start()
        assert service.wait_round(timeout=None).finished == [0, 1]
        late.join()


def test_a_client_whose_every_step_is_in_time_can_still_take_too_long(net: Any) -> None:
    """Just below `step_seconds` each, 20,000 steps would hold up a round for days."""
    with net.service(limits=Limits(round_seconds=1.0)) as service:
        tickets = net.open(service, net.local().server_state, clients=1)
        stream = net.raw(service, 0).send(net.hello(tickets[0]))
        stream.receive()
        assert stream.refusal() is Reason.DEADLINE
        assert service.progress() == {0: (Status.LOST, 0)}
        assert net.raw(service, 0).send(net.hello(tickets[0])).refusal() is Reason.CLOSED
        assert service.wait_round(minimum=0).finished == []


def test_the_deadline_of_a_round_ends_it_for_a_client_at_work(net: Any, service: Any) -> None:
    federation = net.local()
    tickets = net.open(service, federation.server_state, clients=2)
    net.train(net.task(service, tickets[0], federation.client_state), 0)
    stream = net.raw(service, 1).send(net.hello(tickets[1], client=1), *net.activation(client=1))
    stream.receive(), stream.receive()
    outcome = service.wait_round(timeout=0.2)
    assert outcome.finished == [0]
    assert stream.refusal() is Reason.CLOSED
    assert service.metrics.registry.get_sample_value("sigil_in_flight_bytes") == 0


def test_a_step_waits_while_others_fill_the_budget(net: Any) -> None:
    samples = 17
    room = 2 * samples * 8 * 2 * 2 * 4  # one step of the largest batch
    with net.service(limits=Limits(bytes_in_flight=room)) as service:
        tickets = net.open(service, service.initial_state, clients=2)
        first = net.raw(service, 0).send(net.hello(tickets[0]), *net.activation(samples))
        first.receive(), first.receive()
        second = net.raw(service, 1).send(net.hello(tickets[1], client=1), *net.activation(samples, client=1))
        assert second.receive().kind is Kind.WELCOME
        answered = threading.Event()
        threading.Thread(target=lambda: (second.receive(), answered.set()), daemon=True).start()
        assert not answered.wait(0.5)
        first.send(*net.gradient(samples)).receive()
        assert answered.wait(120)
        assert service.metrics.registry.get_sample_value("sigil_in_flight_bytes") == room


def test_observers_see_what_those_of_one_process_see(net: Any) -> None:
    federation = net.local()
    local, remote = ReferenceRecorder(net.shape), ReferenceRecorder(net.shape)
    federation.server_observers.append(local)
    client_state, server_state = federation.client_state, federation.server_state
    federation.run_round()
    with net.service(replace(net.training(), server_observers=[remote])) as service:
        net.round(service, client_state, server_state, 1)
    assert remote.sums["count"] == local.sums["count"] > 0
    for name, value in local.sums.items():
        torch.testing.assert_close(remote.sums[name], value)


def test_what_cannot_work_is_said_before_anybody_connects(net: Any, make_net: Any) -> None:
    with pytest.raises(ConfigError, match="must be usfl"):
        make_net(federation={"mode": "sfl"}).service()
    with pytest.raises(ConfigError, match="server_halves per-client"):
        make_net(federation={"server_halves": "shared"}).service()
    with pytest.raises(ConfigError, match="observer"):
        net.service(replace(net.training(), server_observers=[ServerObserver()]))
    with pytest.raises(ConfigError, match="no key to embed"):
        net.service(net.training(key=None))
    with pytest.raises(ConfigError, match="bytes_in_flight"):
        net.service(limits=Limits(bytes_in_flight=1000))
    service = net.service()
    with pytest.raises(NetworkError, match="not running"):
        net.open(service, {})
    with pytest.raises(NetworkError, match="no address"):
        _ = service.address


def test_a_taken_port_is_named(net: Any, service: Any) -> None:
    with pytest.raises(NetworkError, match=f"cannot listen on {service.address}"):
        net.service(address=service.address).start()


def test_a_service_that_cannot_start_says_so(net: Any) -> None:
    mine = ServerCredentials.load(net.folder)
    broken = ServerCredentials(mine.authority, mine.certificate, b"nonsense")
    with pytest.raises(NetworkError, match="cannot listen"):
        net.service(credentials=broken).start()


def test_a_round_needs_clients_and_waiting_needs_a_round(net: Any, service: Any) -> None:
    with pytest.raises(NetworkError, match="at least one client"):
        service.open_round(1, service.initial_state, lr=0.1, clients={})
    with pytest.raises(NetworkError, match="no open round"):
        service.wait_round()


def test_a_failure_of_the_server_tells_a_client_nothing(
    net: Any, service: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("sigil.transport.session.Session.forward", fail)
    tickets = net.open(service, service.initial_state, clients=1)
    with caplog.at_level(logging.ERROR):
        stream = net.raw(service).send(net.hello(tickets[0]), *net.activation())
        assert stream.refusal() is Reason.INTERNAL
    assert "secret" not in stream.call.details()
    with pytest.raises(NetworkError, match="Only 0 of 1"):
        service.wait_round()  # at once: the client is out
    assert "RuntimeError" in caplog.text


def test_stopping_in_the_middle_of_a_round_prints_no_traceback(
    net: Any, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    running = net.service().start()
    tickets = net.open(running, running.initial_state)
    streams = [net.raw(running, client).send(net.hello(tickets[client], client)) for client in tickets]
    for stream in streams:
        assert stream.receive().kind is Kind.WELCOME
    # One waits for its next message, one is in the middle of a step, one in the middle of a tensor.
    streams[1].send(*net.activation(client=1)).receive()
    streams[2].send(net.activation(client=2)[0])
    running.close()
    for stream in streams:
        stream.refusal()
    gc.collect()  # tasks that nobody waited for complain when they are collected
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert "Traceback" not in capfd.readouterr().err
