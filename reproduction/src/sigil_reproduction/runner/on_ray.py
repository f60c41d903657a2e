"""The same trainings and cells as tasks of a Ray cluster: many machines instead of many processes.

All machines must see the folders of results, runs and data under the same paths (a network file system), and
have this software installed. Each task takes one core. Ray comes with Flower's simulation.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from sigil import hardware, local_ray
from sigil.errors import ExperimentError, reason
from sigil_reproduction.runner.store import Store


class RayPool:
    """Work as Ray tasks, `size` at a time."""

    def __init__(self, task: Any, size: int, sign: Path) -> None:
        self.size = size
        self._task, self._sign = task, sign

    def submit(self, work: Callable[..., None], /, *arguments: object) -> Future[None]:
        """Start a piece of work somewhere in the cluster."""
        outcome: Future[None] = Future()

        def finish(remote: Future[None]) -> None:
            error = remote.exception()
            if error is None:
                outcome.set_result(None)
            else:
                # Ray wraps an error of a task into one of its own, with the remote traceback in its text.
                outcome.set_exception(getattr(error, "cause", None) or error)

        self._task.remote(self._sign, work, *arguments).future().add_done_callback(finish)
        return outcome


@contextmanager
def cluster(address: str, store: Store, *, jobs: int = 0) -> Iterator[tuple[RayPool, Store]]:
    """Connect to a Ray cluster: its pool, and the store with paths that hold on every machine.

    `address` is HOST:PORT or ray://HOST:PORT of a cluster, `auto` for one that runs on this machine, or
    `local` to start one here with `jobs` workers (0: one per core).
    """
    try:
        import ray
    except ImportError:
        raise ExperimentError(
            "Ray is not installed, so nothing can run on a cluster; install it with "
            "`pip install 'sigil-watermark[simulation]'` or leave --ray out."
        ) from None
    shared = Store(
        store.scale,
        results=store.results.parent.resolve(),
        runs=store.runs.parent.resolve(),
        data_dir=None if store.data_dir is None else store.data_dir.resolve(),
    )
    try:
        if address == "local":
            local_ray.start(jobs or hardware.cores())
        else:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray itself raises bare exceptions when a node does not start
        raise ExperimentError(
            f"Ray cannot be reached at {address!r} ({reason(error)}); start a cluster with "
            "`ray start --head`, or leave --ray out."
        ) from None
    shared.runs.mkdir(parents=True, exist_ok=True)
    sign = shared.runs / f".shared-{secrets.token_hex(8)}"
    try:
        sign.touch()
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        size = jobs or max(1, int(resources.get("CPU", 1)))
        yield RayPool(ray.remote(num_cpus=1)(_work), size, sign), shared
    finally:
        sign.unlink(missing_ok=True)
        if address == "local":
            local_ray.stop()
        else:
            ray.shutdown()


def _work(sign: Path, work: Callable[..., None], *arguments: object) -> None:
    """Do a piece of work on whatever machine this is."""
    if not sign.exists():
        raise ExperimentError(
            f"The machine {socket.gethostname()!r} does not see {sign.parent}; give --results, --runs and "
            "--data-dir on a folder that all machines of the cluster share."
        )
    torch.set_num_threads(1)
    work(*arguments)
