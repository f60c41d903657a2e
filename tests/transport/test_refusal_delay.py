"""Who is refused again and again waits for the next refusal; nobody else does."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from sigil.transport import Limits, Reason, wire
from sigil.transport import service as services
from sigil.transport.service import RefusalDelay


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    asked: list[float] = []
    gate = asyncio.Event()

    async def sleep(seconds: float) -> None:
        asked.append(seconds)
        await gate.wait()

    monkeypatch.setattr(services.asyncio, "sleep", sleep)
    return asked


def test_so_many_refusals_in_a_minute_are_free() -> None:
    clock = Clock()
    kept = RefusalDelay(3, clock=clock)
    assert [kept.spent("a") for _ in range(5)] == [False, False, False, True, True]
    assert not kept.spent("b")
    clock.now = 59.9
    assert kept.spent("a")
    clock.now = 130.0
    assert not kept.spent("a")


@pytest.mark.parametrize("limit", [0.5, 1, 1.9])
def test_a_broken_number_is_rounded_down_to_one_at_least(limit: float) -> None:
    kept = RefusalDelay(limit, clock=Clock())  # type: ignore[arg-type]
    assert [kept.spent("a") for _ in range(2)] == [False, True]


def test_no_more_are_held_than_are_no_burden(pauses: list[float]) -> None:
    async def flood() -> int:
        kept = RefusalDelay(1, clock=Clock())
        kept.spent("a")
        held = [asyncio.ensure_future(kept.wait("a")) for _ in range(services._HELD + 50)]
        await asyncio.wait(held, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        answered = sum(task.done() for task in held)
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        assert kept._held == 0
        return answered

    assert asyncio.run(flood()) == 50
    assert len(pauses) == services._HELD


def test_a_client_that_greets_in_a_loop_waits_and_the_others_do_not(
    net: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with net.service(limits=Limits(refusals_per_minute=2)) as service:
        tickets = net.open(service, service.initial_state, clients=2)
        foreign = net.hello(tickets[1], client=1)
        slept: list[float] = []
        sleep = asyncio.sleep

        async def noted(seconds: float) -> None:
            if seconds == services._PAUSE:
                slept.append(seconds)
            await sleep(seconds)

        monkeypatch.setattr(services.asyncio, "sleep", noted)
        for _ in range(2):
            assert net.raw(service, 0).send(foreign).refusal() is Reason.CERTIFICATE
        assert not slept
        assert net.raw(service, 0).send(foreign).refusal() is Reason.CERTIFICATE
        assert slept == [services._PAUSE]
        net.train(net.task(service, tickets[1], net.local().client_state), 1)
        assert net.raw(service, 1).send(net.hello(tickets[0])).refusal() is Reason.CERTIFICATE
        assert slept == [services._PAUSE]


def test_a_connection_has_few_streams_at_once_so_that_few_are_held(
    net: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "_PAUSE", 0.125)
    held: list[int] = []
    with net.service(limits=Limits(refusals_per_minute=1, streams_per_client=4)) as service:
        wait = service._delay.wait

        async def noted(holder: str) -> None:
            held.append(service._delay._held)
            await wait(holder)

        monkeypatch.setattr(service._delay, "wait", noted)
        tickets = net.open(service, service.initial_state, clients=2)
        foreign = net.hello(tickets[1], client=1)
        with net.channel(service, net.credentials(0)) as channel:
            calls = [channel.stream_stream(wire.METHOD)(iter([foreign])) for _ in range(60)]
            codes = {call.code() for call in calls}
    assert grpc.StatusCode.OK not in codes
    assert 10 < len(held) <= 60  # gRPC itself refuses those that come before a client knows the limit
    assert max(held) <= 10
