"""Child processes that run Flower's own commands and never outlive the process that started them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# Run in the child: a thread ends it as soon as its parent is gone, by whatever signal, so that no forgotten
# SuperLink keeps a port or a database. Then the child is Flower's own command, with Flower's own arguments;
# when that returns the process ends, even if a thread of Flower's is still serving.
_CHILD = """
import os, sys, threading, time
parent, module, function = int(sys.argv[1]), sys.argv[2], sys.argv[3]
sys.argv[:4] = [function]
def watch():
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
threading.Thread(target=watch, daemon=True).start()
getattr(__import__(module, fromlist=[function]), function)()
os._exit(0)
"""

# As module and function; named here and not in the adapter, which imports Flower, and `quiet` comes before.
COMMANDS = {
    "flower-superlink": ("flwr.superlink.cli", "flower_superlink"),
    "flower-supernode": ("flwr.supernode.cli", "flower_supernode"),
}


def quiet(home: Path) -> None:
    """Keep Flower, in this process and its children, to `home`, and from calling anybody.

    Call it before Flower is imported: some of these are read then.
    """
    home.mkdir(parents=True, exist_ok=True)
    os.environ |= {
        "FLWR_HOME": str(home.resolve()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }


def start(command: str, arguments: Sequence[str], *, log: Path) -> subprocess.Popen[bytes]:
    """Start one of :data:`COMMANDS` as a child that ends with this process; its output goes to `log`."""
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(os.getpid()), *COMMANDS[command], *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for this process, which ends its children in its own order.
            start_new_session=True,
        )


def stop(process: subprocess.Popen[bytes], *, patience: float = 5.0) -> None:
    """End a child: politely, and after `patience` seconds for good."""
    process.terminate()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port(*, wanted: int = 0) -> int:
    """A port of the loopback address that nobody uses at this moment; OSError if a wanted one is not free."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", wanted))
        port: int = one.getsockname()[1]
    return port
