"""A Ray that is slow to start, does not start at all, or is interrupted: nothing of it is left."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray
from ray._private import node

from sigil import local_ray

waiting = node.wait_for_persisted_port


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(local_ray, "PAUSE", 0)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    yield
    local_ray.stop()


def impatient(monkeypatch: pytest.MonkeyPatch, *, times: int) -> list[int]:
    """Let Ray wait not at all for its first server instead of 15 seconds, the first `times` times."""
    calls: list[int] = []

    def wait(*arguments: Any, **options: Any) -> Any:
        calls.append(len(calls))
        return waiting(*arguments, **(options | ({"timeout_ms": 0} if len(calls) <= times else {})))

    monkeypatch.setattr(node, "wait_for_persisted_port", wait)
    return calls


def commands(leftovers: Callable[[], list[str]]) -> list[str]:
    """The names of the programs that run because of this session."""
    return sorted(os.path.basename(line.split(" ")[0]) for line in leftovers())


def test_a_server_that_was_too_slow_is_started_again(
    monkeypatch: pytest.MonkeyPatch, leftovers: Callable[[], list[str]]
) -> None:
    calls = impatient(monkeypatch, times=1)
    local_ray.start(1)
    assert len(calls) == 2
    assert ray.get(ray.remote(lambda: os.nice(0)).remote()) == os.nice(0)
    assert ray.cluster_resources()["CPU"] == 1
    # One of each: the server of the first attempt is gone.
    assert commands(leftovers).count("gcs_server") == commands(leftovers).count("raylet") == 1
    local_ray.stop()
    assert leftovers() == []


def test_a_server_that_never_starts_is_given_up_with_rays_own_reason(
    monkeypatch: pytest.MonkeyPatch, leftovers: Callable[[], list[str]]
) -> None:
    calls = impatient(monkeypatch, times=local_ray.ATTEMPTS)
    with pytest.raises(RuntimeError, match="Timed out waiting for file"):
        local_ray.start(1)
    assert len(calls) == local_ray.ATTEMPTS
    assert not ray.is_initialized()
    assert leftovers() == []


def test_an_interrupted_start_leaves_nothing_and_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, leftovers: Callable[[], list[str]]
) -> None:
    running: list[str] = []

    def interrupted(*arguments: Any, **options: Any) -> Any:
        running.extend(commands(leftovers))
        raise KeyboardInterrupt

    monkeypatch.setattr(node, "wait_for_persisted_port", interrupted)
    with pytest.raises(KeyboardInterrupt):
        local_ray.start(1)
    assert running == ["gcs_server"]
    assert leftovers() == []


def test_stopping_what_was_never_started_does_nothing() -> None:
    local_ray.stop()
    assert not ray.is_initialized()
