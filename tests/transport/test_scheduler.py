"""Turns are taken in order, and bytes in flight stay within the budget."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import pytest

from sigil.transport.limits import Budget
from sigil.transport.session import Scheduler


def test_work_is_done_one_at_a_time_in_order_of_arrival() -> None:
    done: list[tuple[int, int]] = []
    inside = threading.Lock()

    def work(client: int, turn: int) -> None:
        assert inside.acquire(blocking=False)
        time.sleep(0.001)
        done.append((client, turn))
        inside.release()

    async def client(scheduler: Scheduler, index: int) -> None:
        for turn in range(5):
            await scheduler.run(lambda: work(index, turn))  # noqa: B023

    async def main() -> None:
        scheduler = Scheduler()
        await asyncio.gather(*(client(scheduler, index) for index in range(4)))
        scheduler.close()

    asyncio.run(main())
    # Everybody gets the n-th turn before anybody gets the one after the next.
    assert [turn for _, turn in done] == sorted(turn for _, turn in done)
    assert all(sum(1 for client, _ in done if client == index) == 5 for index in range(4))


def test_the_budget_is_never_exceeded_and_nobody_is_forgotten() -> None:
    seen: list[int] = []
    served: list[int] = []

    async def client(budget: Budget, index: int, amount: int) -> None:
        await budget.acquire(amount)
        await asyncio.sleep(0.001)
        served.append(index)
        budget.release(amount)

    async def main() -> None:
        budget = Budget(100, changed=seen.append)
        random.seed(0)
        await asyncio.gather(*(client(budget, index, random.randint(1, 100)) for index in range(50)))
        assert seen[-1] == 0

    asyncio.run(main())
    assert max(seen) <= 100
    assert sorted(served) == list(range(50))


def test_a_large_step_is_not_overtaken_for_ever_by_small_ones() -> None:
    order: list[str] = []

    async def client(budget: Budget, name: str, amount: int) -> None:
        await budget.acquire(amount)
        order.append(name)

    async def main() -> None:
        budget = Budget(10)
        await budget.acquire(6)
        tasks = [asyncio.create_task(client(budget, "large", 8))]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(client(budget, "small", 1)))
        await asyncio.sleep(0.01)
        assert order == []
        budget.release(6)
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert order == ["large", "small"]


@pytest.mark.parametrize("after_its_turn_came", [False, True])
def test_who_leaves_the_queue_blocks_nobody(after_its_turn_came: bool) -> None:
    async def main() -> None:
        used: list[int] = []
        budget = Budget(10, changed=used.append)
        await budget.acquire(10)
        leaver = asyncio.create_task(budget.acquire(10))
        stayer = asyncio.create_task(budget.acquire(5))
        await asyncio.sleep(0)
        if after_its_turn_came:
            budget.release(10)
            leaver.cancel()
        else:
            leaver.cancel()
            await asyncio.sleep(0)
            budget.release(10)
        await asyncio.wait_for(stayer, 1)
        assert used[-1] == 5

    asyncio.run(main())
