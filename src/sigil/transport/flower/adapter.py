"""Everything of Flower that is neither its public interface nor one of its commands, in one place.

Flower normally starts a process for each task: the ServerApp of a run, the ClientApp for a message. With
``--isolation process`` it leaves that to somebody else who knows a shared secret. Here that somebody is the
process of ``sigil serve`` or ``sigil join`` itself (:class:`Runtime`):

- the owner's key stays in the one process that the owner started;
- a client executes the Sigil that it installed, never code from the network;
- a round does not begin with seconds of imports.

And Flower's public interface, ``flwr.app``, ``flwr.clientapp``, ``flwr.serverapp`` and
``flwr.simulation``, has nothing for that. What a command can do is left to it: starting both, registering
nodes, starting and ending runs (:mod:`sigil.transport.flower.processes`). A release of Flower may move or
change any of these names: then this module changes, and its contract test
(``tests/transport/flower/test_adapter.py``) says which ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, get_type_hints

import httpx
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message

if TYPE_CHECKING:
    from flwr.superlink.grid import HttpGrid

__all__ = [
    "HttpGrid",
    "RuntimeHttpClient",
    "RuntimeTokenHttpInterceptor",
    "RuntimeVersionHttpInterceptor",
    "SuperExecAuthHttpInterceptor",
    "TaskIdentity",
    "ask",
    "grid_of",
    "pull_task_input",
    "push_message",
]


def __getattr__(name: str) -> Any:
    """HttpGrid when it is first used: it brings the SuperLink's database, which a client never opens."""
    if name == "HttpGrid":
        from flwr.superlink.grid import HttpGrid

        return HttpGrid
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def ask(method: Callable[[Any], Any], **fields: Any) -> Any:
    """Call a method of Flower's clients: what its request is called, the method itself says."""
    return method(get_type_hints(method)["request"](**fields))


def grid_of(address: str, *, certificates: bytes, token: str, run_id: int) -> HttpGrid:
    """A grid that carries the messages of this run."""
    from flwr.superlink.grid import HttpGrid

    grid = HttpGrid(address, root_certificates=certificates, token=token)
    run = get_type_hints(grid.set_run)["run"]
    grid.set_run(run.create_empty(run_id))  # nothing but its number is asked of it
    return grid


# The kinds of tasks and the two ways in which they end, as they are called on the line.
SERVER_APP: Final = "flwr-serverapp"
CLIENT_APP: Final = "flwr-clientapp"
COMPLETED: Final = "completed"
FAILED: Final = "failed"
# Flower takes a task for dead after a minute without a sign of life.
HEARTBEAT_SECONDS: Final = 15.0

_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


@dataclass(frozen=True)
class Runtime:
    """Where a SuperLink or SuperNode hands out tasks, and what it takes to get one."""

    address: str
    secret: bytes
    certificates: bytes | None = None

    def connect(self, token: str | None = None) -> RuntimeHttpClient:
        """A client of the Runtime API: for one task if given its token, else for taking tasks."""
        authentication = (
            SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods=frozenset({_ACQUIRE}))
            if token is None
            else RuntimeTokenHttpInterceptor(token)
        )
        return RuntimeHttpClient.from_server_address(
            self.address,
            insecure=self.certificates is None,
            root_certificates=self.certificates,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), authentication],
        )

    def acquire(self, kind: str) -> str | None:
        """The token of a task of this kind that waits to be done, or None."""
        client = self.connect()
        try:
            token: str = ask(client.AcquireTask, supported_task_types=[kind]).token
        finally:
            client.close()
        return token or None

    @contextmanager
    def task(self, token: str, *, ended: Callable[[], object] = lambda: None) -> Iterator[RuntimeHttpClient]:
        """Do a task: Flower hears all the time that it is alive, and in the end how it went.

        `ended` is called, on another thread, if Flower has ended the task meanwhile.
        """
        client = self.connect(token)
        done = threading.Event()
        heart = threading.Thread(target=_beat, args=(client, done, ended), daemon=True)
        heart.start()
        outcome = {"sub_status": FAILED, "details": "It was interrupted."}
        try:
            yield client
            outcome = {"sub_status": COMPLETED}
        finally:
            done.set()
            heart.join()
            with suppress(httpx.HTTPError):
                ask(client.PushTaskOutput, **outcome)
            client.close()


def _beat(client: RuntimeHttpClient, done: threading.Event, ended: Callable[[], object]) -> None:
    while True:
        with suppress(httpx.HTTPError):  # the next one may get through
            if not ask(client.SendTaskHeartbeat).success:
                ended()
                return
        if done.wait(HEARTBEAT_SECONDS):
            return
