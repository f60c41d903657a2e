"""How a process of ours takes a task of Flower's and does it.

Flower normally starts a process for each task: the ServerApp of a run, the ClientApp for a message. With
``--isolation process`` it leaves that to somebody else who knows a shared secret. Here that somebody is the
process of ``sigil serve`` or ``sigil join`` itself:

- the owner's key stays in the one process that the owner started;
- a client executes the Sigil that it installed, never code from the network;
- a round does not begin with seconds of imports.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import httpx

from sigil.transport.flower.adapter import (
    RuntimeHttpClient,
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
    ask,
)

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
        own = (
            SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods=frozenset({_ACQUIRE}))
            if token is None
            else RuntimeTokenHttpInterceptor(token)
        )
        return RuntimeHttpClient.from_server_address(
            self.address,
            insecure=self.certificates is None,
            root_certificates=self.certificates,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), own],
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
