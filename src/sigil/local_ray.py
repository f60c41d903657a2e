"""A Ray of this machine's own, started patiently and ended completely.

Ray waits 15 seconds for each of its servers, a limit that cannot be set. Where those come from a cold disk
and the cores are busy, the first start can take longer; the next finds them in memory. A start that failed
leaves the servers it had started running, and Ray itself no longer knows of them: they are ended here.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

ATTEMPTS = 4
PAUSE = 5.0  # seconds between them
GRACE = 10.0  # seconds for what was killed to be gone

_started: set[psutil.Process] = set()


def start(cores: int) -> None:
    """Start a Ray on this machine with `cores` places for work, and connect to it; :func:`stop` ends it.

    What prevents the last attempt is raised as Ray raised it: `ImportError` if it is not installed, else
    anything, as its own exceptions have no common ancestor below `Exception`. Nothing of a failed attempt
    is left running.
    """
    import ray

    # There is one node, this machine: while it is busy, it is not dead. And its workers do what was asked
    # for: at Ray's niceness of 15 they would hardly get a core beside anything else.
    os.environ |= {
        "RAY_worker_niceness": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_health_check_timeout_ms": "60000",
        "RAY_health_check_failure_threshold": "60",
    }
    atexit.unregister(stop)  # once, and before what Ray itself does at the end, which asks its servers
    atexit.register(stop)
    before = _servers()
    for left in reversed(range(ATTEMPTS)):
        try:
            ray.init(
                address="local",
                num_cpus=cores,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
            _started.update(_servers() - before)
            return
        except BaseException as error:  # an interrupted start leaves servers behind, too
            _started.update(_servers() - before)
            stop()
            if not left or not isinstance(error, Exception):
                raise
            time.sleep(PAUSE)


def stop() -> None:
    """Disconnect from the Ray that :func:`start` started, and end every process of it."""
    import psutil
    import ray

    # Whom the workers belong to can only be asked while the server that started them is alive.
    processes = _started.copy()
    for server in _started:
        with contextlib.suppress(psutil.NoSuchProcess):
            processes.update(server.children(recursive=True))
    try:
        ray.shutdown()
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=GRACE)
        _started.clear()


def _servers() -> set[psutil.Process]:
    """The children of this process that run a program of Ray's."""
    import psutil  # comes with Ray
    import ray

    package = str(Path(ray.__file__).parent)
    servers = set()
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if any(word.startswith(package) for word in child.cmdline()):
                servers.add(child)
    return servers
