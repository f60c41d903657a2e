"""A Ray of this machine's own, started patiently.

Ray waits 15 seconds for each of its servers, a limit that cannot be set. Where those come from a cold disk
and the cores are busy, the first start can take longer; the next finds them in memory.
"""

from __future__ import annotations

import logging
import os
import time

ATTEMPTS = 4
PAUSE = 5.0  # seconds between them


def start(cores: int) -> None:
    """Start a Ray on this machine with `cores` places for work, and connect to it.

    What prevents the last attempt is raised as Ray raised it: `ImportError` if it is not installed, else
    anything, as its own exceptions have no common ancestor below `Exception`.
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
    for left in reversed(range(ATTEMPTS)):
        try:
            ray.init(
                address="local",
                num_cpus=cores,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
            return
        except Exception:
            ray.shutdown()
            if not left:
                raise
            time.sleep(PAUSE)
